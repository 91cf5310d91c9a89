"""Files that are whole or not there: written under another name, synced and renamed."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def unfinished(path: Path) -> Path:
    """The name under which `path` is written until it is whole: hidden, and nobody else's."""
    return path.with_name(f".{path.name}.reread-tmp")


def write_atomically(path: Path, data: bytes) -> None:
    """Write under a temporary name, sync and rename: `path` holds either the old content or all of the new one."""
    temporary = unfinished(path)
    with synced(temporary) as file:
        file.write(data)
    os.replace(temporary, path)
    sync_folder(path.parent)


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """A file opened for writing; its content is on disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(path: Path, target: Path) -> None:
    """Rename a file or folder. If `target` is a folder that holds files already, it stays and no error is raised."""
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def to_json(values: Any, indent: int | None = None) -> bytes:
    """JSON in UTF-8. Bytes of a file name that are not UTF-8 become escapes, which are read back as the same name."""
    return json.dumps(values, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")
