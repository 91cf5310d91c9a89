"""One job at a time in a run folder, on one machine or on many that share a file system.

The lock is flock on RUN/.lock, which is released however the process ends. A network file system may have no locks, or
keep that of a machine that died; then the progress files of the other job (training.watchdog) decide.
"""

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from preprocessing.errors import UserError
from training.watchdog import BEAT_SECONDS, LOOK_SECONDS, has_ended, read_progress

log = logging.getLogger("reread")

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def only_job(
    run: Path, host: str = socket.gethostname(), look: float = 3 * BEAT_SECONDS, silence: float = LOOK_SECONDS
) -> Iterator[None]:
    """Lock the run folder; raises `UserError`, which names the holder, if another job has it.

    A job of another `host` without a lock counts only if it makes progress within `look` seconds; one with the lock
    counts as dead after `silence` seconds without progress.
    """
    path = run / ".lock"
    with ExitStack() as stack:
        lock = stack.enter_context(path.open("a+", encoding="utf-8"))
        lock.seek(0)
        holder = lock.read()
        there, far = _take(lock), _fields(holder).get("host", host) != host
        if there is False:
            if not far or _shows_life(run, silence):
                raise _taken(run, holder)
            log.info("%s: held by %s, which has made no progress for %g s: taken over", path, _named(holder), silence)
            path.unlink()
            lock = stack.enter_context(path.open("a+", encoding="utf-8"))
            if _take(lock) is False:
                raise _taken(run, holder)
        elif there is None or far:
            going_on = not all(has_ended(note) for note in read_progress(run).values())
            if going_on and _shows_life(run, look):
                raise _taken(run, holder)
        lock.truncate(0)
        job = os.environ.get("SLURM_JOB_ID")
        lock.write(json.dumps({"host": host, "pid": os.getpid()} | ({"Slurm job": job} if job else {})))
        lock.flush()
        yield


def _take(lock: IO[str]) -> bool | None:
    """Whether this process now holds the lock; None where the file system has no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.info(
            "%s: no locks here (%s); another job is recognised by its progress files alone", lock.name, error.strerror
        )
        return None
    return True


def _shows_life(run: Path, seconds: float) -> bool:
    first, end = read_progress(run), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(BEAT_SECONDS, seconds / 4))
        if read_progress(run) != first:
            return True
    return False


def _taken(run: Path, holder: str) -> UserError:
    return UserError(
        f"{run}: another job is training in this folder ({_named(holder)}); stop it, or choose another name"
    )


def _named(holder: str) -> str:
    """`host node07, pid 123, Slurm job 4711`"""
    fields = _fields(holder)
    return ", ".join(f"{name} {value}" for name, value in fields.items()) or "unknown"


def _fields(holder: str) -> dict[str, str]:
    try:
        return dict(json.loads(holder))
    except (TypeError, ValueError):
        return {}
