"""A folder that belongs to this user, in one that others may write to as well: /scratch/reread-cache-1000 in /scratch.

The folder is not trusted for its name. It must not be a link, this user must own it, nobody else may have the right to
write to it, and it must hold our mark, the file CACHEDIR.TAG. Nothing else in /scratch is read or deleted.
"""

import errno
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import move

MARK = "CACHEDIR.TAG"
"""The file by which backup programs recognise a cache (https://bford.info/cachedir/)."""
_CONTENT = b"""Signature: 8a477f597d28d172789f06886806bc55
# A cache of reread: parts of corpora at addresses. It may be deleted while no run reads it.
"""


def own_folder(above: Path) -> Path:
    """This user's folder in the folder `above`; both are made if they do not exist.

    Raises `UserError` if something else has the folder's name or it belongs to somebody else, and OSError if it cannot
    be made.
    """
    above.mkdir(parents=True, exist_ok=True)
    above = above.absolute()
    for part in (above, *above.parents):
        if part.is_symlink() and (owner := part.lstat().st_uid) not in (0, os.geteuid()):
            raise _refused(part, f"is a link that {_name(owner)} made")
    folder = above / f"reread-cache-{os.geteuid()}"
    if not os.path.lexists(folder):
        made = Path(tempfile.mkdtemp(dir=above, prefix=".reread-cache-"))  # whoever sees the folder sees the mark
        try:
            (made / MARK).write_bytes(_CONTENT)
            with suppress(NotADirectoryError):  # a link came first
                move(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    with opened(folder):
        return folder


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Yields a descriptor of the folder; raises `UserError` unless `own_folder` made it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise _refused(folder, f"belongs to {_name(folder.lstat().st_uid)}") from None
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise _refused(folder, "is a link" if folder.is_symlink() else "is not a folder") from None
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _refused(folder, f"belongs to {_name(status.st_uid)}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _refused(folder, f"can be written to by others (mode {status.st_mode & 0o777:o})")
        if not _is_marked(descriptor):
            raise _refused(folder, f"was not made by reread (its {MARK} is missing or differs)")
        yield descriptor
    finally:
        os.close(descriptor)


def open_own(path: Path | str, mode: str = "rb", folder: int | None = None) -> IO[bytes]:
    """Open a file in binary mode, relative to the descriptor `folder` if given; raises OSError if it is a link."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder))


def _is_marked(folder: int) -> bool:
    try:
        with open_own(MARK, folder=folder) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(len(_CONTENT) + 1) == _CONTENT
    except OSError:
        return False


def _refused(path: Path, reason: str) -> UserError:
    return UserError(f"data.cache.folder: {path}: {reason}, so nothing is kept there; give another folder")


def _name(owner: int) -> str:
    try:
        return f"user {pwd.getpwuid(owner).pw_name}"
    except KeyError:
        return f"user {owner}"
