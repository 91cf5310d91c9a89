"""Memory maps that hold no file descriptor, so that a process may map more files than it may have open.

A corpus has thousands of shards, all of which are read at random, and Linux lets a process open 1,024 files unless told
otherwise. `mmap.mmap` keeps a descriptor as long as it lives (until Python 3.13, whose `trackfd=False` lets it go), and
a limit to the number of maps would have rows that are drawn from everywhere map and unmap a file each.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import cast

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> mmap.mmap:
    """The whole file, which must not be empty; unmapped when the last reference, an array's too, has gone.

    It stands in for an `mmap.mmap`: slices are bytes, and `np.frombuffer` reads it. It must not be written to.
    Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    mapped = (ctypes.c_char * size).from_address(address)
    weakref.finalize(mapped, _LIBC.munmap, address, size).atexit = False  # a thread may still read
    return cast(mmap.mmap, mapped)
