"""How many processes write one folder on a shared file system without locks: each aside, then renaming into place."""

import errno
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, Any


def to_json(values: Any, indent: int | None = None) -> bytes:
    """In UTF-8; bytes of a file's name that are not stand as their escapes, which are read back as the same name."""
    return json.dumps(values, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A new folder beside `path` that no other process, on any machine, writes to; it is removed at the end.

    A process that is killed leaves it, for `clear_attempts`.
    """
    folder = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_attempts(folder: Path) -> None:
    """Remove from the work folder what processes of this machine left that are gone; other machines do their own."""
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


def move(path: Path, target: Path) -> None:
    """Rename a file or folder; of two folders moved to one place the first stays, and is as good."""
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
