"""What an address sends may be endless, packed or of wild values: one line, and bounded memory."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reread.preprocessing.corpus import remote
from reread.preprocessing.corpus.cache import CacheSettings
from reread.preprocessing.corpus.checksums import CHECKSUM, TOKENIZER_FILES, _checksum
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT

MEGABYTE = 1 << 20
_FETCH = """
import sys
from reread.preprocessing.corpus import checksums, remote
from reread.preprocessing.corpus.cache import CacheSettings
from reread.preprocessing.errors import UserError
remote.LARGEST = int(sys.argv.pop())
remote.fetch_folder.__wrapped__(sys.argv[1], CacheSettings(folder=sys.argv[2], size=10**9, tries=1))
"""
_REPORT = """
except UserError as error:
    print(error)
with open("/proc/self/status") as file:
    print(1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")))
"""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave."""


@contextmanager
def sending(body: bytes, *, again: bool = False, packed: bool = False) -> Iterator[str]:
    """The address of a server that answers everything by `body`, or by it `again` and again."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)
                while again:
                    self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(address: str, folder: Path) -> tuple[str, int]:
    """The line, and the most memory, of a process that fetches the manifest there."""
    *lines, last = _FETCH.strip().splitlines()
    script = "\n".join([*lines, "try:", f"    {last}", *_REPORT.strip().splitlines()])
    found = subprocess.run(
        [sys.executable, "-c", script, address, str(folder), str(16 * MEGABYTE)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    line, memory = found.stdout.decode().splitlines()
    return line, int(memory)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_endless_or_packed_manifest_is_one_line(tmp_path: Path) -> None:
    with sending(b"[" * MEGABYTE, again=True) as address:
        line, memory = fetched(address, tmp_path)
    assert line == f"{address}/manifest.json: more than 16,777,216 bytes, so it is no corpus; correct the address"
    assert memory < 250 * MEGABYTE
    with sending(gzip.compress(bytes(300 * MEGABYTE), 1), packed=True) as address:
        line, memory = fetched(address, tmp_path)
    assert line.startswith(f"{address}/manifest.json: altered since it was written")
    assert memory < 250 * MEGABYTE
    line, memory = fetched("pipe:yes {}", tmp_path)
    assert "more than 16,777,216 bytes" in line and memory < 350 * MEGABYTE


@pytest.mark.parametrize(
    "values",
    [
        {"index": "0", "shards": 3},
        {"index": "0", "shards": [{"name": 1}]},
        {"index": "0"},
        {"index": 3, "shards": []},
        {"index": "0", "shards": [], TOKENIZER_FILES: {"../x": "0"}},
        {"index": "0", "shards": [], TOKENIZER_FILES: {"x": 3}},
    ],
)
def test_a_manifest_of_wild_values_with_a_valid_checksum_is_one_line(tmp_path: Path, values: dict[str, object]) -> None:
    values = {TOKENIZER_FILES: {}, **values}
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps({CHECKSUM: _checksum(values), **values}))
    (tmp_path / "corpus" / "index.npz").write_bytes(b"")
    settings = CacheSettings(folder=tmp_path / "cache", size=10**9, tries=1)
    with pytest.raises(UserError) as raised:
        remote.fetch_folder(f"file://{tmp_path}/corpus", settings)
    assert "\n" not in str(raised.value)
