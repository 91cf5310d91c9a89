"""A stand-in for the Hugging Face Hub on loopback: repositories of files, which can be fetched and pushed to."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`repositories[OWNER/NAME]` are files by name. Who pushes must give `token`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.revisions = {"main", COMMIT}
        self.status: int | None = None
        """Of every answer, if given."""
        self.gated: set[str] = set()
        self.token = "hf_let_me_in"
        self.asked: list[str] = []
        """Method and path of each request."""
        self.made: list[dict[str, Any]] = []
        """What was asked for each new repository."""

    @property
    def fetched(self) -> list[str]:
        """Files whose bytes were sent."""
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("GET") and "/resolve/" in path]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave."""


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self._path()
        if not self._fails(path):
            self._post(path, body)

    def _path(self) -> str:
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        return path

    def _fails(self, path: str) -> bool:
        known = [name for name in self.server.repositories if f"/{name}" in path]
        if self.server.status is not None:
            self._send(self.server.status, {"error": "as asked"})
        elif "/api/repos/create" in path or "/api/validate-yaml" in path:
            return False
        elif not known:  # as the Hub answers whoever has not logged in
            self._send(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
        elif known[0] in self.server.gated:
            self._send(403, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        else:
            return False
        return True

    def _get(self) -> None:
        path = self._path()
        if self._fails(path):
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            name, revision = found.groups()
            if revision is not None and revision not in self.server.revisions:
                self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
                return
            files = [{"rfilename": file} for file in self.server.repositories[name]]
            self._send(200, {"id": name, "sha": COMMIT, "siblings": files})
        elif found := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/(?:main|{COMMIT})/(.+)", path):
            data = self.server.repositories[found[1]][found[2]]
            etag = hashlib.sha1(data).hexdigest()
            self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(404, {"error": path})

    def _post(self, path: str, body: bytes) -> None:
        hub = self.server
        if self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            hub.made.append(asked)
            name = f"{asked['organization']}/{asked['name']}"
            hub.repositories.setdefault(name, {})
            self._send(200, {"url": f"{hub.address}/{name}", "name": name})
        elif path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self._send(200, {"files": [{"path": one["path"], **regular} for one in files]})
        elif "/branch/" in path:
            hub.revisions.add(path.rpartition("/branch/")[2])
            self._send(200, {})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    hub.repositories[found[1]][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._send(
                200, {"success": True, "commitOid": COMMIT, "commitUrl": f"{hub.address}/{found[1]}/commit/{COMMIT}"}
            )
        else:
            self._send(404, {"error": path})

    def _send(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def use_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Let this process' huggingface_hub ask `hub`, keep files in `cache` and know no token; `reread` may go online."""
    from huggingface_hub import constants

    from reread.training.exchange import hub as module

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    files = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + files)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{cache}/token")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as `stay_offline` leaves it
    module._asked_to_stay_offline.cache_clear()
    module.fetch.cache_clear()
