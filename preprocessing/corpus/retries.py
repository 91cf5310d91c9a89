"""Retries after errors of a network or a disk, and the error lines if all tries fail."""

import asyncio
import errno
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from reread.preprocessing.corpus.address import TIMEOUT
from reread.preprocessing.corpus.cache import Cache, FullError
from reread.preprocessing.errors import DamagedError, UserError, first_line

log = logging.getLogger("reread")

T = TypeVar("T")

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 30.0
"""Seconds."""


def retried(action: Callable[[], T], tries: int, location: str, line: Callable[[Exception], UserError]) -> T:
    """The result of `action`, tried up to `tries` times; raises `line(error)` for the last error.

    A `UserError` is raised at once, and so is `line(error)` if access is forbidden. A `DamagedError` is tried again,
    since the data may have been altered in transit. `location` names the file in the log.
    """

    def report(state: RetryCallState) -> None:
        assert state.outcome is not None
        log.info("%s: %s; trying again", location, reason(state.outcome.exception()))

    attempts = Retrying(
        stop=stop_after_attempt(tries),
        wait=wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
        retry=retry_if_exception_type(DamagedError) | (retry_if_not_exception_type(UserError) & _MAY_PASS),
        before_sleep=report,
        reraise=True,
    )
    try:
        for attempt in attempts:
            with attempt:
                return action()  # attempts(action) would keep the result, a file in use, until garbage is collected
    except DamagedError as error:
        raise line(error) from None
    except UserError:
        raise
    except Exception as error:
        raise line(error) from None
    raise AssertionError("the last attempt neither returned nor raised")


def _forbidden(error: BaseException) -> bool:
    """Whether access is denied for good, by an HTTP status or by a PermissionError of a file system or library."""
    return isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403)


_MAY_PASS = retry_if_exception(lambda error: isinstance(error, Exception) and not _forbidden(error))


def reason(error: BaseException | None) -> str:
    """A short description of an error for a log or error line."""
    if isinstance(error, FileNotFoundError):
        return "not there"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):  # two classes before Python 3.11
        return f"no answer for {TIMEOUT:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error) if error is not None else ""


def unreadable(location: str, error: Exception, tries: int) -> UserError:
    """The error for a file that cannot be read at its address."""
    if _forbidden(error):
        return UserError(f"{location}: {reason(error)}; get the right to read it, or correct the address", error)
    return UserError(
        f"{location}: {reason(error)}, after {tries} tries; repair the server or the connection, then run the same "
        "command again (data.cache.tries sets the number of tries)",
        error,
    )


def no_room(cache: Cache, location: str, error: Exception, tries: int) -> UserError:
    """The error for a file that cannot be stored in the cache."""
    if isinstance(error, FullError):
        found, way_out = f"{reason(error)} by this and other jobs", "raise data.cache.size"
    else:
        found, way_out = reason(error), "give another folder, or lower data.cache.size"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            way_out = "make room, give another folder, or lower data.cache.size"
            with suppress(OSError):
                way_out += f" ({shutil.disk_usage(cache.folder).free:,} bytes are free)"
    after = "" if _forbidden(error) else f", after {tries} tries"
    return UserError(f"data.cache: {cache.folder}: {found}, so {location} cannot be kept{after}; {way_out}", error)
