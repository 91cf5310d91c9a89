"""What the processes of a job share when they open the same corpora: one checks them, the others take its word.

Outside of `opening`, whoever opens a corpus reads and checks all of it, each time.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.files import write_atomically

log = logging.getLogger("reread")

T = TypeVar("T")


@dataclass
class _Opening:
    trusting: bool
    folder: Path
    read: dict[tuple[Any, Path], Any] = field(default_factory=dict)


_OPENING: ContextVar[_Opening | None] = ContextVar("opening", default=None)


@contextmanager
def opening(folder: Path, *, trusting: bool) -> Iterator[None]:
    """Meanwhile this process opens the corpora of its job, and reads each manifest once.

    With `trusting` another process has checked them: neither the shards nor the index nor the tokenizer are checked
    before they are read. Arrays that take long to compute are kept in `folder` (`kept`).
    """
    token = _OPENING.set(_Opening(trusting, folder))
    try:
        yield
    finally:
        _OPENING.reset(token)


def trusting() -> bool:
    """Whether another process has checked the corpora that are opened now."""
    job = _OPENING.get()
    return job is not None and job.trusting


def once(read: Callable[[Path], T], folder: Path) -> T:
    """`read(folder)`, while a job is `opening` its corpora only the first time."""
    job = _OPENING.get()
    if job is None:
        return read(folder)
    if (read, folder) not in job.read:
        job.read[read, folder] = read(folder)
    values: T = job.read[read, folder]
    return values


def kept(name: str, size: int, compute: Callable[[], NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """The array [size] that `compute` returns. A job keeps it in a file, which its other processes and starts map.

    If it cannot be written, each process computes it, after a line in the log.
    """
    job = _OPENING.get()
    if job is None:
        return compute()
    path = job.folder / f"{name}.npy"
    if (found := _read(path, size)) is not None:
        return found
    values = compute()
    try:
        path.parent.mkdir(exist_ok=True)
        content = BytesIO()
        np.save(content, np.append(values, np.uint32(crc32(values))))
        write_atomically(path, content.getvalue())
    except OSError as error:
        log.info("%s: cannot be written (%s), so each process computes it", path, error.strerror)
    return values


def _read(path: Path, size: int) -> NDArray[np.uint32] | None:
    """The array [size] in a file, whose last value is the CRC-32 of the others; None if there is no such file."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        log.info("%s: not readable (%s), so it is computed again", path, error)
        return None
    if values.dtype != np.uint32 or values.shape != (size + 1,) or crc32(values[:-1]) != values[-1]:
        log.info("%s: altered since it was written, so it is computed again", path)
        return None
    return np.asarray(values[:-1])
