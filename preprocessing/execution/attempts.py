"""Temporary folders in a folder of a shared file system, where processes of many machines work without locks."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder beside `path`, with a name that no other process on any machine uses; removes it at the end.

    If the process is killed, the folder stays until `remove_abandoned` is called on the same machine.
    """
    folder = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders that killed processes of this machine left in the work folder `folder`."""
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
