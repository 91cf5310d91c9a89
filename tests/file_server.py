"""A web server on loopback for the files of a folder, which fails as it is asked to."""

import base64
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

HANG, CUT, FLIP, WHOLE = "hang", "cut", "flip", "whole"


class FileServer(ThreadingHTTPServer):
    """Answers requests for ranges of bytes. `faults[name]` are what happens to the next requests for a file: a status,
    HANG (no answer), CUT (half of the bytes), FLIP (a byte is another) or WHOLE (all bytes whatever was asked). The
    first is for all that follow if `forever` has the name.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.secret = ""
        """Whoever does not give it in the query or as the password is answered 403."""
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.faults: dict[str, list[object]] = {}
        self.forever: set[str] = set()
        self.asked: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """File -> (start, stop) of each request."""
        self.closed = threading.Event()
        self.open = threading.Event()
        """While it is not set, no shard is sent."""
        self.open.set()
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave."""

    def next_fault(self, name: str) -> object:
        with self.lock:
            waiting = self.faults.get(name, [])
            return None if not waiting else waiting[0] if self.forever & {name} else waiting.pop(0)

    def shards_asked(self) -> dict[str, list[tuple[int, int]]]:
        return {name: parts for name, parts in self.asked.items() if name.endswith(".tar")}


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        name, _, query = self.path.lstrip("/").partition("?")
        path = self.server.folder / name
        fault = self.server.next_fault(name)
        login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if self.server.secret not in unquote(query) + login:
            fault = 403
        if isinstance(fault, int) or not path.is_file():
            self.server.asked[name].append((0, 0))
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        data = path.read_bytes()
        start, stop = 0, len(data)
        if (asked := self.headers.get("Range")) and fault != WHOLE:
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop = int(first), int(last) + 1
        self.server.asked[name].append((start, stop))
        data = data[start:stop]
        if name.endswith(".tar"):
            self.server.open.wait()
        if fault == HANG:
            self.server.closed.wait()
            return
        if fault == FLIP:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(206 if asked and fault != WHOLE else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault == CUT else data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[FileServer]:
    with FileServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closed.set()
            server.open.set()
            server.shutdown()
            thread.join()
