"""Errors that a user sees as a single line: mistakes in input or settings, and errors of the operating system."""

import difflib
import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reread.preprocessing.redaction import redacted

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or control a terminal."""


def escaped(text: str) -> str:
    """`text` with line ends, control characters and undecodable bytes replaced by Python's escapes, such as `\\n`."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class LineFormatter(logging.Formatter):
    """Formats log records as single lines without control characters and without secrets."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = escaped(redacted(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(escaped(redacted(line)) for line in super().formatException(ei).splitlines())


class UserError(Exception):
    """A mistake the user can correct: the message names the file, the field and the way out.

    `reread` prints the message without a traceback and exits with `status`: 1 if the `cause` may be temporary, else 2.
    The message is always one line: line ends, control characters and undecodable bytes in quoted text are escaped, and
    secrets are left out.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.status = 1 if cause is not None and may_pass(cause) else 2

    def __str__(self) -> str:
        return escaped(redacted(super().__str__()))


class DamagedError(UserError):
    """Data that are proven to differ from what was written; only such data may be skipped or replaced."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WAYS_OUT = {
    **dict.fromkeys(_FULL, "make room, then run the same command again; no finished work is lost"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give another path, or get the right to use this one"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY), "give another path"),
    **dict.fromkeys((errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP), "check the path"),
}
"""Errors of the operating system that recur until the user changes something, and what to change."""


NOT_OF_THE_SYSTEM = (None, errno.EINVAL, errno.EOVERFLOW)
"""`errno` of an OSError that a library raises itself, or that seeking to a wrong offset in a damaged file causes."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, which may be pages long, or the name of its class if it has no message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def error_number(error: BaseException) -> int | None:
    """The errno of an operating system error, None for any other error. safetensors has it only in its message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\bos error (\d+)", str(error))
    return int(found[1]) if found else None


def may_pass(error: BaseException) -> bool:
    """Whether the error may be temporary, such as one of a network or a disk, so that trying again may succeed.

    A Slurm job that ends with such an error is requeued (slurm/supervise.py).
    """
    if isinstance(error, UserError):
        return error.status == 1
    status = getattr(error, "status", None)
    if isinstance(status, int):  # HTTP: a timeout, too many requests or an error of the server may pass
        return status in (408, 429) or not 400 <= status < 500
    if isinstance(error, FileNotFoundError | PermissionError):  # libraries raise them without a number
        return False
    return error_number(error) not in _WAYS_OUT


def describe(error: UserError | OSError) -> tuple[str, int] | None:
    """The line (file, reason, way out) for an error, and the exit status: 1 if the error may be temporary, else 2.

    None for an operating system error that names no file, since it does not concern a path of the user.
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
            path = Path(name)
            line += f" ({shutil.disk_usage(path if path.exists() else path.parent).free:,} bytes are free)"
    found = UserError(line, error)
    return str(found), found.status


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn operating system errors that would recur into `UserError`; give others without a file name that of `folder`.

    A full disk is always reported with `folder`. FileNotFoundError is not changed, since the caller may know why a file
    has disappeared.
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
    """Ends a process silently with `status`, because another process prints the error line."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def one_line() -> Iterator[None]:
    """End the process with one line instead of a traceback after a mistake or an unusable file."""
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
    """The hint for a wrong name: the most similar known name, or else `label` and all `known` names."""
    near = close_to(name, known, cutoff)
    return f"did you mean `{near[0]}`?" if near else f"{label}: {', '.join(known)}"


def close_to(name: str, known: Collection[str], cutoff: float = 0.5) -> list[str]:
    """The known names that are similar to `name`: first those that begin with it, then by similarity."""
    close = difflib.get_close_matches(name, known, n=len(known) or 1, cutoff=cutoff)
    return sorted(close, key=lambda one: not one.startswith(name))
