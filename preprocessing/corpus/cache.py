"""A bounded folder on this machine's disk with files of corpora at addresses, shared by processes and jobs.

    FOLDER/<MD5 of a manifest>/               manifest.json, index.npz and tokenizer/ of that corpus
    FOLDER/<MD5 of a manifest>/shards/        its shards or stretches of them, each a file that is whole or not there
    FOLDER/.lock, FOLDER/.lock-NN             held while room is made, and while a file is fetched (filelock)
    FOLDER/.used                              bytes in the folder, at most

A file is in use while a process maps it: the map holds a shared lock (flock) on it, which goes with the map or with the
process. To make room, files that nobody uses are deleted, those that were opened longest ago first. A process that is
killed while it writes leaves a `.tmp` without a lock, which is deleted like those.
"""

import errno
import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import ByteSize, Field

from preprocessing.corpus.maps import map_file
from preprocessing.errors import writing
from preprocessing.settings import Settings

SHARDS = "shards"
_LOCKS = 64
_POLL = 0.02
"""Seconds between two looks at a lock that another process has."""
_AT_ONCE = 16
"""A sixteenth of the size is freed at once, since that reads the names of all files."""


class CacheSettings(Settings):
    """Where shards are kept that are read from an address."""

    folder: Path
    """A folder on this machine's own disk. The processes of the machine and other jobs may use the same one."""
    size: ByteSize = Field(gt=0)
    """Bytes that the folder may hold, whoever wrote them: 200GB, 1TiB. It must have room for two pools (`pool_tokens`)
    of each corpus, and for the whole of one that is not read by pools."""
    tries: int = Field(default=10, ge=1, le=1000)
    """How often a file is asked for before the run ends with one line. It waits 1/4 s, then twice as long each time, at
    most 30 s."""


class FullError(OSError):
    """There is no room, since all files are in use."""


class Cache:
    """Methods raise `UserError` or `OSError` if the folder cannot be used."""

    def __init__(self, settings: CacheSettings) -> None:
        self.folder, self.size = settings.folder, int(settings.size)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def fetching(self, path: Path) -> AbstractContextManager[Any]:
        """Held by the one process that fetches `path`; the others wait."""
        return self._locked(f".lock-{zlib.crc32(str(path.relative_to(self.folder)).encode()) % _LOCKS:02}")

    def count_again(self) -> None:
        """Call it when something was written by other means than `add`."""
        (self.folder / ".used").unlink(missing_ok=True)

    def map(self, path: Path, size: int) -> mmap.mmap | None:
        """The file, which is in use until the map goes; None if there is none of this size."""
        try:
            if path.stat().st_size != size:  # nothing cannot be mapped
                return None
            mapped = map_file(path, in_use=True)
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return mapped

    def add(self, path: Path, size: int, write: Callable[[IO[bytes]], None], spare: int = 0) -> None:
        """Make room for a file of `size` bytes, which `write` writes, and for `spare` more; hold `fetching` meanwhile.

        Raises `FullError` if there is no room, and what `write` raises.
        """
        temporary = path.with_name(path.name + ".tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._reserved(temporary, size, spare) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # or after a power failure there may be the name and zeros
                with self._counting():
                    os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _reserved(self, temporary: Path, size: int, spare: int) -> Iterator[IO[bytes]]:
        """The file, in use and with its blocks on disk."""
        with self._counting():
            used = self._used()
            if used is None or used + size + spare > self.size:
                used = self._free(size + spare)
            if used + size + spare > self.size:
                raise FullError(errno.ENOSPC, f"{used:,} of {self.size:,} bytes are in use")
            (self.folder / ".used").write_text(f"{used + size:020}")
            file = temporary.open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)
        with file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:  # the disk has less room than the folder may take: another try finds what is deleted here
                with self._counting():
                    self._free(size, self._free(0) - size)
                raise
            yield file

    def _counting(self) -> AbstractContextManager[Any]:
        """Held while files are counted, deleted or renamed."""
        return self._locked(".lock")

    def _locked(self, name: str) -> AbstractContextManager[Any]:
        from filelock import FileLock

        return FileLock(self.folder / name).acquire(poll_interval=_POLL)

    def _used(self) -> int | None:
        try:
            return int((self.folder / ".used").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _free(self, size: int, most: int | None = None) -> int:
        """The bytes in the folder. If `size` more are beyond `most`, by default the size of the cache, files that
        nobody uses are deleted until there is room for them and some more.
        """
        most = self.size if most is None else most
        used, old = 0, []
        for root, _, names in os.walk(self.folder):
            for name in names:
                path = Path(root, name)
                with suppress(FileNotFoundError):
                    status = path.stat()
                    used += status.st_size
                    if path.parent.name == SHARDS:
                        old.append((path.suffix != ".tmp", status.st_mtime, status.st_size, path))
        if used + size > most:
            for _, _, its_size, path in sorted(old):
                if used + size <= most - most // _AT_ONCE:
                    break
                if _delete_unused(path):
                    used -= its_size
        return used


def _delete_unused(path: Path) -> bool:
    """Whether the file was in use by nobody, and is deleted."""
    with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return True
    return False
