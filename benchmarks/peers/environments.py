"""An environment for each peer: a venv with what its own requirements pin, made once."""

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


class NotInstalledError(Exception):
    """pip could not install a peer; the message is its last line."""


def python_of(peer: str, folder: Path) -> Path:
    """The Python of the peer's environment under `folder`, which is made if its requirements are new.

    Raises `NotInstalledError`.
    """
    requirements, environment = REQUIREMENTS / f"{peer}.txt", folder / peer
    python, made = environment / "bin" / "python", environment / "requirements.txt"
    if not made.exists() or made.read_text() != requirements.read_text():
        print(f"installing {', '.join(requirements.read_text().split())}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        _run(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements))
        made.write_text(requirements.read_text())
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotInstalledError(lines[-1] if lines else f"status {done.returncode}")
