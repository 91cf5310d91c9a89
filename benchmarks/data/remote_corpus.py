"""A corpus at an address, served over loopback, beside the same corpus in a folder.

    python benchmarks/data/remote_corpus.py --folder FOLDER [--gigabytes 1] [--address ADDRESS]

FOLDER needs room for three times the text. Rows are windows of 128 tokens, 256 a step; pools have an eighth of the
text, and the smaller cache has room for three of them. Each side reads two passes in a process of its own, the first
one with an empty cache; CPU seconds are those of the reader, without the server. With --address it reads what lies
there (the corpus that this program writes to FOLDER/corpus, copied to where it shall be measured) and serves nothing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import heading, in_process, parser, row
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import one_line
from reread.training.data.kinds import open_dataset
from reread.training.data.loader import rows_by_step
from reread.training.data.rows.samples import RowSettings

BATCH, POOLS, HELD = 256, 8, 3


class Pass(NamedTuple):
    seconds: float
    cpu_seconds: float
    rows: int
    most: int
    """Bytes in the cache, at most."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    sent = 0


class Handler(SimpleHTTPRequestHandler):
    """Parts of files, and how many bytes of shards were sent."""

    server: Server

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        asked = self.headers.get("Range")
        first, last = asked.removeprefix("bytes=").split("-") if asked else (0, path.stat().st_size - 1)
        with path.open("rb") as file:
            file.seek(int(first))
            data = file.read(int(last) + 1 - int(first))
        self.server.sent += len(data) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def two_passes(values: dict[str, Any]) -> tuple[float, list[Pass]]:
    """Seconds to the first batch, and each pass."""
    begin = time.perf_counter()
    dataset: Any = open_dataset(RowSettings.parse(values, "data"), 0, "train")
    batches = rows_by_step(dataset, BATCH, range(BATCH), 0)
    next(batches)
    first, passes = time.perf_counter() - begin, []
    for _ in range(2):
        begin, cpu, most = time.perf_counter(), time.process_time(), 0
        steps = len(dataset) // BATCH
        for step in range(steps):
            next(batches)
            if "cache" in values and step % 256 == 0:
                most = max(most, used(Path(values["cache"]["folder"])))
        passes.append(Pass(time.perf_counter() - begin, time.process_time() - cpu, steps * BATCH, most))
    return first, passes


def used(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--gigabytes", type=float, default=1)
    arguments.add_argument("--address")
    options = arguments.parse_args()
    tokens = int(options.gigabytes * 1e9 / 3)
    corpus, cache = options.folder / "corpus", options.folder / "cache"
    if not (corpus / "manifest.json").exists():
        lengths = np.random.default_rng(0).geometric(1 / 700, tokens // 700).tolist()
        random_corpus(corpus, 30_000, lengths, shard_tokens=1 << 24)
    size = sum(path.stat().st_size for path in corpus.glob("*.tar"))
    common = {"kind": "rows", "next_sentence": False, "pool_tokens": tokens // POOLS}
    heading("", "first batch: s", "pass", "rows/s", "rows a CPU-second", "fetched / corpus", "most in the cache / size")
    with serving(corpus) as server:
        address = options.address or f"http://127.0.0.1:{server.server_port}"
        for name, share in (("folder", 0.0), ("cache for all", 1.2), (f"cache for {HELD} pools", HELD / POOLS)):
            values: dict[str, Any] = {**common, "corpus": str(corpus if not share else address)}
            if share:
                values["cache"] = {"folder": str(cache), "size": int(share * size)}
            server.sent = 0
            first, passes = in_process(two_passes, values)
            shutil.rmtree(cache, ignore_errors=True)
            for number, one in enumerate(passes, 1):
                cells = f"{one.rows / one.seconds:,.0f}", f"{one.rows / one.cpu_seconds:,.0f}"
                sent = f"{server.sent / size:.3f} in both" if share and not options.address else "-"
                most = f"{one.most / share / size:.3f}" if share else "-"
                row(name, f"{first:.2f}" if number == 1 else "", number, *cells, sent if number == 1 else "", most)


if __name__ == "__main__":
    main()
