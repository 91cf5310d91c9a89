"""Memory maps that hold no file descriptor, so that a process can map more files than it may have open.

A corpus has thousands of shards, which are read in random order, and Linux by default lets a process open 1,024 files.
`mmap.mmap` keeps a file descriptor as long as the map lives (Python 3.13 can close it, by `trackfd=False`). If as few
maps were allowed, rows drawn at random would map and unmap a file each; the limit of maps is far higher (`shards.py`).

The kernel reads nothing ahead in these maps by itself, since a row is a few hundred bytes; `read_ahead` asks for it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from reread.preprocessing.corpus.own_folder import open_own

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path, *, in_use: bool = False) -> mmap.mmap:
    """Map a whole file, which must not be empty. It is unmapped with the last reference to it, or to an array of it.

    The result is used as an `mmap.mmap`: slices are bytes, and `np.frombuffer` reads it. It must not be written to.
    With `in_use`, no link is followed and the map holds a shared flock on the file: Linux keeps a lock as long as the
    open file description lives, and the map keeps that alive. Raises OSError, and FileNotFoundError for a file that was
    deleted before it was locked.
    """
    with open_own(path) if in_use else path.open("rb") as file:
        if in_use:
            fcntl.flock(file, fcntl.LOCK_SH)
        status = os.fstat(file.fileno())
        if not status.st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        size = status.st_size
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    _LIBC.madvise(address, size, mmap.MADV_RANDOM)
    mapped = (ctypes.c_char * size).from_address(address)
    weakref.finalize(mapped, _LIBC.munmap, address, size).atexit = False  # at exit a thread may still read it
    return cast(mmap.mmap, mapped)


def read_ahead(mapped: mmap.mmap, start: int, stop: int) -> None:
    """Ask the kernel to read bytes start..stop of a file that `map_file` mapped, without waiting for them."""
    start -= start % mmap.PAGESIZE
    address = ctypes.addressof(cast("ctypes.Array[ctypes.c_char]", mapped))
    _LIBC.madvise(address + start, stop - start, mmap.MADV_WILLNEED)


def read_parts(path: str, begins: Sequence[int], sizes: Sequence[int]) -> tuple[list[bytes], int]:
    """Bytes begins[i]..begins[i] + sizes[i] of a file, and its size; a part is shorter where the file ends before.

    A few bytes of each of many files cost a third of what maps of them do. The kernel is asked for all parts of the
    file before the first is read, so that a disk reads them together. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = [*zip(begins, sizes, strict=True)]
        if hasattr(os, "posix_fadvise"):  # macOS has none
            for begin, size in parts:
                os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_WILLNEED)
        return [os.pread(descriptor, size, begin) for begin, size in parts], os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
