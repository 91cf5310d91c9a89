"""Shared by benchmarks of cold data: bytes read from the disk, and the file system's cache dropped."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil


class Read(NamedTuple):
    """What an action cost."""

    seconds: float
    bytes: int
    """Read from the disk by this process; nothing is counted on a file system without one, such as tmpfs."""
    result: Any


def read_bytes() -> int:
    """Bytes that this process had read from a disk so far, read-ahead included (Linux)."""
    return int(psutil.Process().io_counters().read_bytes)


def reading(action: Callable[[], Any]) -> Read:
    before, begin = read_bytes(), time.perf_counter()
    result = action()
    return Read(time.perf_counter() - begin, read_bytes() - before, result)


def drop_cache(folder: Path) -> None:
    """Drop every file below `folder` from the file system's cache; a process that maps one keeps what it touched."""
    for path in folder.rglob("*"):
        if path.is_file():
            drop_range(path, 0, 0)


def drop_range(path: Path, start: int, size: int) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), start - start % mmap.PAGESIZE, size, os.POSIX_FADV_DONTNEED)
