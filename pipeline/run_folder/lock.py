"""One job at a time in a run folder, on one machine or on many that share a file system.

The lock is an flock on RUN/.lock, which the kernel releases however the process ends. A network file system may have no
locks, or may keep the lock of a machine that has failed. In that case the progress files of the other job
(training/run/watchdog.py) show whether it is alive. If several jobs start at the same moment without locks, each writes
its name into the file, and the job whose name remains continues.
"""

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from reread.preprocessing.errors import UserError
from reread.training.run.files import RunFile
from reread.training.run.watchdog import BEAT_SECONDS, LOOK_SECONDS, has_ended, read_progress

log = logging.getLogger("reread")

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def only_job(
    run: Path, host: str = socket.gethostname(), look: float = 3 * BEAT_SECONDS, silence: float = LOOK_SECONDS
) -> Iterator[None]:
    """Lock the run folder. Raises `UserError`, which names the holder, if another job has it.

    A job on another `host` that has no lock is alive if it makes progress within `look` seconds. A job that has the
    lock is dead if it makes no progress for `silence` seconds. On a file system without locks this takes somewhat
    longer than `look` seconds, in which another job that starts at the same time is noticed.
    """
    path = RunFile.LOCK.of(run)
    with ExitStack() as stack:
        lock = stack.enter_context(path.open("a+", encoding="utf-8", errors="replace"))
        lock.seek(0)
        holder = lock.read()
        there, far = _take(lock), _fields(holder).get("host", host) != host
        if there is False:
            if not far or _shows_life(run, silence):
                raise _taken(run, holder)
            log.info(
                "%s: held by %s, which has made no progress for %g s; this job takes over",
                path,
                _named(holder),
                silence,
            )
            path.unlink()
            lock = stack.enter_context(path.open("a+", encoding="utf-8", errors="replace"))
            if _take(lock) is False:
                raise _taken(run, holder)
        elif there is None or far:
            going_on = not all(has_ended(note) for note in read_progress(run).values())
            if going_on and _shows_life(run, look):
                raise _taken(run, path.read_text(encoding="utf-8", errors="replace"))
        job = os.environ.get("SLURM_JOB_ID")
        name = json.dumps({"host": host, "pid": os.getpid()} | ({"Slurm job": job} if job else {}))
        if there is None:
            _claim(run, name, look + 2 * _pause(look))
        else:
            lock.truncate(0)
            lock.write(name)
            lock.flush()
        yield


def _claim(run: Path, name: str, seconds: float) -> None:
    """Write the name of this job into the lock file. Raises `UserError` if another name is there after `seconds`.

    A job that has not seen this name writes its own within the time in which it looks for others, so `seconds` must be
    longer than that.
    """
    path = RunFile.LOCK.of(run)
    temporary = path.with_name(f".lock-{secrets.token_hex(8)}")
    temporary.write_text(name, encoding="utf-8")
    temporary.replace(path)  # whole, whoever else writes it
    time.sleep(seconds)
    if (found := path.read_text(encoding="utf-8", errors="replace")) != name:
        raise _taken(run, found)


def _take(lock: IO[str]) -> bool | None:
    """Whether this process now holds the lock; None if the file system has no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.info(
            "%s: this file system has no locks (%s); another job is noticed only by its progress files",
            lock.name,
            error.strerror,
        )
        return None
    return True


def _shows_life(run: Path, seconds: float) -> bool:
    """Whether a job writes its progress, or its name into the lock file, within `seconds`."""

    def written() -> tuple[object, bytes]:
        return read_progress(run), RunFile.LOCK.of(run).read_bytes()

    first, end = written(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_pause(seconds))
        if written() != first:
            return True
    return False


def _pause(seconds: float) -> float:
    """Seconds between two looks at the files within `seconds`."""
    return min(BEAT_SECONDS, seconds / 4)


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
