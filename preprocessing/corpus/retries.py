"""Trying again what a network or a disk refused, and the one line in the end."""

import errno
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from preprocessing.corpus.address import TIMEOUT
from preprocessing.corpus.cache import Cache, FullError
from preprocessing.errors import DamagedError, UserError, first_line

log = logging.getLogger("reread")

T = TypeVar("T")

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 30.0
"""Seconds."""


def retried(action: Callable[[], T], tries: int, place: str, line: Callable[[Exception], UserError]) -> T:
    """The result of `action`, tried up to `tries` times. In the end it raises `line` of the last error.

    A `UserError` is raised at once, unless something was altered, which may have been on the way, and `line` of what is
    forbidden.
    """

    def report(state: RetryCallState) -> None:
        assert state.outcome is not None
        log.info("%s: %s; trying again", place, reason(state.outcome.exception()))

    def again(error: BaseException) -> bool:
        return isinstance(error, Exception) and not _is_line(error) and not _forbidden(error)

    attempts = Retrying(
        stop=stop_after_attempt(tries),
        wait=wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
        retry=retry_if_exception(again),
        before_sleep=report,
        reraise=True,
    )
    try:
        for attempt in attempts:
            with attempt:
                return action()  # attempts(action) would keep the result, a file in use, until garbage is collected
    except Exception as error:
        raise error if _is_line(error) else line(error) from None
    raise AssertionError("the last attempt neither returned nor raised")


def _is_line(error: BaseException) -> bool:
    return isinstance(error, UserError) and not isinstance(error, DamagedError)


def _forbidden(error: BaseException) -> bool:
    """Whether it is refused for good: by HTTP's status, or as the file system and libraries of other schemes say it."""
    return isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403)


def reason(error: BaseException | None) -> str:
    if isinstance(error, FileNotFoundError):
        return "not there"
    if isinstance(error, TimeoutError):
        return f"no answer for {TIMEOUT:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error) if error is not None else ""


def unreadable(place: str, error: Exception, tries: int) -> UserError:
    """The line for a file at an address."""
    if _forbidden(error):
        return UserError(f"{place}: {reason(error)}; get the right to read it, or correct the address", error)
    return UserError(
        f"{place}: {reason(error)}, after {tries} tries; see to it, then run the same command again (data.cache.tries "
        "sets how many)",
        error,
    )


def no_room(cache: Cache, place: str, error: Exception, tries: int) -> UserError:
    """The line for a file that the cache cannot take."""
    if isinstance(error, FullError):
        found, way_out = f"{reason(error)} by this and other jobs", "raise data.cache.size"
    else:
        found, way_out = reason(error), "give another folder, or lower data.cache.size"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            way_out = "make room, give another folder, or lower data.cache.size"
            with suppress(OSError):
                way_out += f" ({shutil.disk_usage(cache.folder).free:,} bytes are free)"
    after = "" if _forbidden(error) else f", after {tries} tries"
    return UserError(f"data.cache: {cache.folder}: {found}, so {place} cannot be kept{after}; {way_out}", error)
