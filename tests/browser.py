"""Chromium without a window, driven by its DevTools protocol over a pipe; for pages that a person reads."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
]


class Page:
    """One page in a browser, as wide as asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb", 0)
        self._sent, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        """What the browser reported by itself: requests, messages in the console, errors."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters}
        self._commands.write(
            json.dumps({**command, "sessionId": self._session} if self._session else command).encode() + b"\0"
        )
        while True:
            message = self._next()
            if message.get("id") == self._sent:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def show(self, path: Path, width: int, dark: bool = False) -> None:
        """Load a file in a window of this width."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.events.clear()
        assert "errorText" not in self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, path: Path, width: int, height: int, top: int = 0) -> None:
        """Write a part of the page as PNG."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and addresses that the page asked for beside its own."""
        found = []
        for event in self.events:
            values = event.get("params", {})
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(values))
            elif event["method"] == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
                found.append(json.dumps(values["args"]))
            elif event["method"] == "Network.requestWillBeSent":
                address = values["request"]["url"]
                found += [] if address.startswith(("file://", "data:")) else [address]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers.fileno(), 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page in a browser of its own, which keeps what it writes in the folder `profile`."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'  # the descriptors that Chromium uses
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait()
