"""The same text at an address, read by us and by mosaicml-streaming from one server on this machine.

The server is moto's S3; ours asks it by http, mosaicml-streaming by its S3 client. What is read is that of loading.py,
through a cache that is empty at first and has room for all. Costs are seconds of the clock, and the bytes that are in
the cache in the end.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.network import free_port
from benchmarks.peers.loading import BATCH, import_streaming, in_batches, rows
from benchmarks.peers.sizes import POOL_TOKENS, RESUMED, STEPS

Batches = Callable[[str, Path, int], Iterator[Any]]
"""(address, folder of the cache, first step) -> batches."""
BUCKET = "text"
START_SECONDS = 60.0


def pools(folder: Path, seed: int) -> dict[str, float]:
    from reread.preprocessing.corpus.address import RemoteFolder

    RemoteFolder("http://127.0.0.1")  # imports are on no side of the comparison
    server = folder.parents[1] / "environments" / "mosaicml-streaming" / "bin" / "python"
    with _serving(server, folder / "ours") as address:
        return _costs(f"{address}/{BUCKET}", _rows)


def mosaicml(folder: Path, seed: int) -> dict[str, float]:
    import_streaming()
    with _serving(Path(sys.executable), folder / "mosaicml") as address:
        os.environ |= {"S3_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        return _costs(f"s3://{BUCKET}", _mosaicml_windows)


def _costs(address: str, batches: Batches) -> dict[str, float]:
    costs = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:  # threads may still fetch
        begin = time.perf_counter()
        reader = batches(address, Path(cache), 0)
        next(reader)
        costs["first"] = time.perf_counter() - begin
        for _ in islice(reader, STEPS):
            pass
        costs["cold"] = time.perf_counter() - begin - costs["first"]
        held = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
        costs["bytes"] = held / (BATCH * (STEPS + 1))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:  # threads may still fetch
        begin = time.perf_counter()
        next(batches(address, Path(cache), RESUMED))
        costs["resume"] = time.perf_counter() - begin
    return costs


def _rows(address: str, cache: Path, step: int) -> Iterator[Any]:
    return rows(address, step, POOL_TOKENS, {"folder": cache, "size": "10GB"})


def _mosaicml_windows(address: str, cache: Path, step: int) -> Iterator[Any]:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(remote=address, local=str(cache), shuffle=True, batch_size=BATCH)
    if step:
        dataset.load_state_dict(dataset.state_dict(step * BATCH, False))
    return in_batches(iter(dataset))


@contextmanager
def _serving(python: Path, files: Path) -> Iterator[str]:
    """The address of a server of an environment that has moto, with a bucket of these files."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _put_first(f"{address}/{BUCKET}")
        for path in sorted(path for path in files.rglob("*") if path.is_file()):
            _put(f"{address}/{BUCKET}/{path.relative_to(files)}", path.read_bytes())
        yield address
    finally:
        server.kill()
        server.wait()


def _put_first(address: str) -> None:
    """Make the bucket as soon as the server is there."""
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            return _put(address, b"")
        except (OSError, HTTPException):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def _put(address: str, data: bytes) -> None:
    headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers, method="PUT"), timeout=START_SECONDS):
        pass
