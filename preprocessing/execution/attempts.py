"""Temporary folders for processes on many machines that work in one folder of a shared file system without locks."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` that no other process on any machine writes to; it is removed at the end.

    If the process is killed, the folder stays until `remove_abandoned`.
    """
    folder = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove from the work folder the temporary folders of killed processes of this machine, and of no other."""
    for path in folder.glob("*/*.*.*.*"):
        name, process, _ = path.name.rsplit(".", 2)
        if name.endswith(f".{socket.gethostname()}") and not _is_alive(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
