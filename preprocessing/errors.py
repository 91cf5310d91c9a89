"""Errors that a user sees as a single line: mistakes, and what the system refuses."""

import difflib
import errno
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or control a terminal."""


def escaped(text: str) -> str:
    """`text` with its line ends, control characters and undecodable bytes as Python writes them."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class UserError(Exception):
    """A mistake the user can correct: the message names the file, the field and the way out.

    `reread` prints it without a traceback and exits with `status`: 2, or 1 if its `cause` may pass by itself. It is
    always one line: line ends, control characters and undecodable bytes in what it quotes are escaped.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.status = 1 if cause is not None and may_pass(cause) else 2

    def __str__(self) -> str:
        return escaped(super().__str__())


class DamagedError(UserError):
    """Something is proven to differ from what was written; only then may it be skipped or replaced."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WAYS_OUT = {
    **dict.fromkeys(_FULL, "make room, then run the same command again; no finished work is lost"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give another place, or the right to use this one"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY), "give another place"),
    **dict.fromkeys((errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP), "check the path"),
}
"""Errors of the system that recur until the user changes something, and what to change."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, which may be pages long, or the class's name if there is no message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def error_number(error: BaseException) -> int | None:
    """The errno of an error of the system; None for any other error. safetensors gives it in its message alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\bos error (\d+)", str(error))
    return int(found[1]) if found else None


def may_pass(error: BaseException) -> bool:
    """Whether the same may succeed later though nobody changes anything, as after trouble of a network or a disk.

    A job of Slurm that ends by such an error is requeued (slurm/supervise.py).
    """
    if isinstance(error, UserError):
        return error.status == 1
    status = getattr(error, "status", None)
    if isinstance(status, int):  # HTTP's: too slow, too many requests, the server's own trouble
        return status in (408, 429) or not 400 <= status < 500
    if isinstance(error, FileNotFoundError | PermissionError):  # libraries raise them without a number
        return False
    return error_number(error) not in _WAYS_OUT


def describe(error: UserError | OSError) -> tuple[str, int] | None:
    """The line (file, reason, way out) for an error, and the exit status: 1 if it may pass by itself, else 2.

    None for an error of the system that names no file: it does not concern a path of the user's.
    """
    if isinstance(error, UserError):
        return str(error), error.status
    if error.errno is None or error.filename is None:
        return None
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else error.filename
    way_out = _WAYS_OUT.get(error.errno)
    line = f"{name}: {os.strerror(error.errno)}; {way_out or 'the same command continues once it can be used'}"
    if error.errno in _FULL:
        with suppress(OSError):
            place = Path(name)
            line += f" ({shutil.disk_usage(place if place.exists() else place.parent).free:,} bytes are free)"
    found = UserError(line, error)
    return str(found), found.status


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise errors of the system that recur as a `UserError`, and give others that name no file the name of `folder`.

    A full disk is always reported with `folder`. `FileNotFoundError` passes, since a caller may know why the file went.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (number := error_number(error)) is None:
            raise
        found = error if isinstance(error, OSError) else OSError(number, os.strerror(number))
        if found.filename is None or number in _FULL:
            found.filename = str(folder)
        if number in _WAYS_OUT and number != errno.ENOENT and (described := describe(found)):
            raise UserError(described[0]) from None
        raise found from None


class ReportedElsewhereError(UserError):
    """Ends a process whose line is printed by another process, with the status of that one."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def one_line() -> Iterator[None]:
    """End the process with one line, not a traceback, at a mistake or a file that cannot be used."""
    try:
        yield
    except ReportedElsewhereError as error:
        sys.exit(error.status)
    except (UserError, OSError) as error:
        if (found := describe(error)) is None:
            raise
        print(f"reread: {found[0]}", file=sys.stderr)
        sys.exit(found[1])


def nearest(name: str, known: Collection[str], label: str = "known", cutoff: float = 0.5) -> str:
    """The hint for a wrong name: the nearest right one, or all of `known` after `label`."""
    near = close_to(name, known, cutoff)
    return f"did you mean `{near[0]}`?" if near else f"{label}: {', '.join(known)}"


def close_to(name: str, known: Collection[str], cutoff: float = 0.5) -> list[str]:
    """The names that are similar to `name`, nearest first, but before all others those that begin with it."""
    close = difflib.get_close_matches(name, known, n=len(known) or 1, cutoff=cutoff)
    return sorted(close, key=lambda one: not one.startswith(name))
