"""The one exception a user sees as a single line."""

import difflib
import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or steer a terminal."""


class UserError(Exception):
    """A mistake the user can correct: the message names the file, the field and the way out.

    `reread` prints it without a traceback and exits with status 2. It is one line, whatever it quotes: line ends,
    control characters and bytes that are no text stand as their escapes.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class DamagedError(UserError):
    """Something is not as it was written. Only where that is proven may it be passed over or replaced."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WAYS_OUT = {
    **dict.fromkeys(_FULL, "make room, then give the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give another place, or the right to use this one"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY), "give another place"),
    **dict.fromkeys((errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP), "check the path"),
}
"""Errors of the system that come again however often the same command is given, and what to do."""


def first_line(error: BaseException) -> str:
    """Of what a library says, which may go on for pages or be empty; then the name of its class."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def describe(error: OSError) -> tuple[str, int] | None:
    """File, reason and way out of an error of the system, and the exit status: 2 if it would come again, else 1.

    None for an error that names no file: that is not about a path of the user's.
    """
    if error.errno is None or error.filename is None:
        return None
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else error.filename
    way_out = _WAYS_OUT.get(error.errno)
    line = f"{name}: {os.strerror(error.errno)}; {way_out or 'the same command goes on once it can be used'}"
    return str(UserError(line)), 1 if way_out is None else 2


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of the system that name no file get the name of `folder`: a full disk's do not, and safetensors' are
    of a class of its own."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(folder)
        raise
    except Exception as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from None
        raise


class ReportedElsewhereError(UserError):
    """The same end for a process whose neighbour prints the line."""


def nearest(name: str, known: Collection[str], label: str = "known", cutoff: float = 0.5) -> str:
    """The way out of a wrong name: the right one nearest to it, or all of `known` after `label`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean `{near[0]}`?" if near else f"{label}: {', '.join(known)}"
