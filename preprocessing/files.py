"""Writing files so that they are complete or do not exist: under a temporary name, synced and renamed."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from reread.preprocessing.errors import UserError

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def special_kind(status: os.stat_result) -> str | None:
    """The name of a special file, such as a pipe or a device, whose reading may block; None for a file or a folder."""
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def open_file(path: Path | str) -> BinaryIO:
    """The file, opened for reading. Raises `UserError` for a pipe, a socket or a device, and OSError for a folder."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for a writer
    if stat.S_ISDIR(os.fstat(opened).st_mode):
        os.close(opened)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind := special_kind(os.fstat(opened)):
        os.close(opened)
        raise UserError(f"{path}: is {kind}, which cannot be read twice; write its content to a file")
    return os.fdopen(opened, "rb")


def unfinished(path: Path) -> Path:
    """The hidden name under which `path` is written until it is complete."""
    return path.with_name(f".{path.name}.reread-tmp")


def write_atomically(path: Path, data: bytes) -> None:
    """Write all of a file, as `replaced` does."""
    with replaced(path) as file:
        file.write(data)


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file under a temporary name, which is synced and renamed when the block ends.

    So `path` holds either all of its old or all of its new data. After an error the temporary file is removed.
    """
    temporary = unfinished(path)
    try:
        with synced(temporary) as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file opened for writing, whose content is synced to the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the directory entries of `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(path: Path, target: Path) -> None:
    """Rename a file or folder; does nothing if `target` is a folder that holds files already."""
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def to_json(values: Any, indent: int | None = None) -> bytes:
    """`values` as JSON in UTF-8. Undecodable bytes of file names become escapes, which are read back as the same."""
    return json.dumps(values, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")
