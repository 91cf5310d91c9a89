"""A folder of bounded size on the local disk, with files of corpora at addresses, for all processes and jobs of a user.

    FOLDER/reread-cache-UID/                  a folder of this user's (`own_folder`), the only one that is written to
        <MD5 of a manifest>/                  manifest.json, index.npz and tokenizer/ of that corpus
        <MD5 of a manifest>/shards/           its shards or stretches of them, and lengths.npy once it was needed; a
                                              file is complete or does not exist
        .index                                the names of the files that were added, one a line
        .lock, .lock-NN                       held while room is made, and while a file is fetched (filelock)
        .used                                 an upper bound of the bytes in the folder

A file is in use while a process maps it: the map holds a shared lock (flock) on the file, which ends with the map or
the process. To make room, files in the index that nobody uses are deleted, least recently opened first; other files are
counted but never deleted. A process that is killed while it writes leaves a `.tmp` file without a lock, which is
deleted in the same way. No link is followed.
"""

import errno
import fcntl
import logging
import mmap
import os
import socket
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import ByteSize, Field

from reread.preprocessing.corpus.maps import map_file
from reread.preprocessing.corpus.own_folder import open_own, opened, own_folder
from reread.preprocessing.errors import writing
from reread.preprocessing.files import write_atomically
from reread.preprocessing.settings import Settings

log = logging.getLogger("reread")

SHARDS = "shards"
_LOCKS = 64
_POLL = 0.02
"""Seconds between two attempts to take a lock that another process holds."""
_LONG = 5.0
"""Seconds after which the log names the process that holds it."""
_INDEX, _TEMPORARY = ".index", ".tmp"
_AT_ONCE = 16
"""A sixteenth of the size is freed at a time, since freeing has to list all files."""


class CacheSettings(Settings):
    """Where the shards of a corpus at an address are stored."""

    folder: Path
    """A folder on this machine's own disk. Each user has a folder `reread-cache-UID` in it, which nobody else may write
    to and which all processes and jobs of the user share; nothing outside of it is written or deleted."""
    size: ByteSize = Field(gt=0)
    """The most bytes that a user's folder may hold, for all jobs together: 200GB, 1TiB. There must be room for two
    pools (`pool_tokens`) of each corpus, and for the whole of a corpus that is not read by pools."""
    tries: int = Field(default=10, ge=1, le=1000)
    """How often a file is requested before the run ends with an error. The first wait between two tries is 1/4 s; each
    further one is twice as long, up to 30 s."""


class FullError(OSError):
    """There is no room in the cache, since all of its files are in use."""


class Cache:
    """The cache folder of this user. Methods raise `UserError` or `OSError` if the folder cannot be used."""

    def __init__(self, settings: CacheSettings) -> None:
        self.size = int(settings.size)
        with writing(settings.folder):
            self.folder = own_folder(settings.folder)

    def fetching(self, path: Path) -> AbstractContextManager[Any]:
        """A lock for the process that fetches `path`, while all others wait."""
        return self._locked(f".lock-{zlib.crc32(str(path.relative_to(self.folder)).encode()) % _LOCKS:02}")

    def count_again(self) -> None:
        """Have the bytes in the folder counted again; to be called after writing files without `add`."""
        (self.folder / ".used").unlink(missing_ok=True)

    def has(self, path: Path, size: int) -> bool:
        """Whether `path` is a regular file of `size` bytes; a link is not."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size

    def map(self, path: Path, size: int) -> mmap.mmap | None:
        """A map of the file, which counts as in use as long as the map lives; None unless `has(path, size)`."""
        if not self.has(path, size):  # an empty file cannot be mapped
            return None
        try:
            mapped = map_file(path, in_use=True)
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return mapped

    def add(self, path: Path, size: int, write: Callable[[IO[bytes]], None], spare: int = 0) -> None:
        """Add a file of `size` bytes, which `write` writes; `spare` more bytes must fit, too.

        The caller holds `fetching(path)`. Raises `FullError` if there is no room, and any error of `write`.
        """
        temporary = path.with_name(path.name + _TEMPORARY)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._reserved(temporary, size, spare) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # else the name could exist with zeros in the file after a power failure
                with self._counting():
                    os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _reserved(self, temporary: Path, size: int, spare: int) -> Iterator[IO[bytes]]:
        """Yields the file `temporary`, locked, listed in the index, and with its disk blocks allocated."""
        entry = f"\n{_listed_name(temporary.relative_to(self.folder))}".encode()  # a line that was cut short ends here
        needed = len(entry) + size
        with self._counting():
            used = self._used()
            if used is None or used + needed + spare > self.size:
                used = self._free(needed + spare)
            if used + needed + spare > self.size:
                raise FullError(errno.ENOSPC, f"{used:,} of {self.size:,} bytes are in use")
            with self._deleting_for(size), open_own(self.folder / _INDEX, "ab") as index:
                index.write(entry)
                index.flush()
                os.fsync(index.fileno())  # else, after a power failure, an unlisted file could stay forever
                (self.folder / ".used").write_text(f"{used + needed:020}")
                file = open_own(temporary, "wb")
                fcntl.flock(file, fcntl.LOCK_EX)
                os.ftruncate(file.fileno(), size)  # so it counts, before the blocks are there, and is not deleted
        with file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                with self._counting(), self._deleting_for(size):
                    raise
            yield file

    @contextmanager
    def _deleting_for(self, size: int) -> Iterator[None]:
        """Free `size` bytes after an error, so that a retry may succeed: the disk may be smaller than the cache."""
        try:
            yield
        except OSError:
            self._free(size, self._free(0) - size)
            raise

    def _counting(self) -> AbstractContextManager[Any]:
        """A lock that is held while files are counted, deleted or renamed."""
        return self._locked(".lock")

    def _locked(self, name: str) -> AbstractContextManager[Any]:
        from filelock import FileLock, Timeout

        lock = FileLock(self.folder / name)
        try:
            return lock.acquire(timeout=_LONG, poll_interval=_POLL)
        except Timeout:
            if (holder := _holder(self.folder / name)) != os.getpid():  # else a thread of this process fetches
                who = f"host {socket.gethostname()}, pid {holder}" if holder else "unknown to this machine"
                log.info("%s: another process has held it for %g s (%s); waiting", self.folder / name, _LONG, who)
        return lock.acquire(poll_interval=_POLL)

    def _used(self) -> int | None:
        try:
            return int((self.folder / ".used").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _free(self, size: int, most: int | None = None) -> int:
        """The bytes in the folder, after deleting unused files of the index so that `size` more bytes fit into `most`.

        `most` is by default the size of the cache. If anything has to be deleted, a sixteenth of `most` is freed, too.
        """
        most = self.size if most is None else most
        with opened(self.folder) as root:
            used, old = self._files(root)
            if used + size <= most:
                return used
            kept = {_listed_name(path) for *_, path in old}
            for _, _, its_size, path in sorted(old):
                if used + size <= most - most // _AT_ONCE:
                    break
                if _delete_unused(path, root):
                    used -= its_size
                    kept.discard(_listed_name(path))
        with suppress(OSError):  # on a full disk the old index stays, which also names deleted files
            write_atomically(self.folder / _INDEX, "\n".join(sorted(kept)).encode())
        return used

    def _files(self, root: int) -> tuple[int, list[tuple[bool, float, int, str]]]:
        """The bytes below the descriptor `root`, and (is complete, last use, size, path) of each indexed file."""
        try:
            with open_own(_INDEX, folder=root) as index:
                listed = set(index.read().decode(errors="replace").split("\n"))
        except FileNotFoundError:
            listed = set()
        used, found = 0, []
        for folder, _, names, inside in os.fwalk(".", dir_fd=root):
            for name in names:
                path = os.path.normpath(os.path.join(folder, name))
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=inside, follow_symlinks=False)
                    used += status.st_size
                    if _listed_name(path) in listed and stat.S_ISREG(status.st_mode):
                        found.append((not name.endswith(_TEMPORARY), status.st_mtime, status.st_size, path))
        return used, found


def _listed_name(path: Path | str) -> str:
    """The name by which the index lists a file: the one it has when it is complete."""
    return str(path).removesuffix(_TEMPORARY)


def _delete_unused(path: str, root: int) -> bool:
    """Delete a file, relative to the descriptor `root`, unless it is in use; returns whether it was deleted."""
    with suppress(FileNotFoundError, BlockingIOError), open_own(path, folder=root) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path, dir_fd=root)
        return True
    return False


def _holder(path: Path) -> int | None:
    """The process of this machine that holds a flock on the file, from /proc/locks; None if there is none."""
    with suppress(OSError, ValueError):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 33: FLOCK ADVISORY WRITE 9178 fe:00:2149797 0 EOF; with -> for one that waits
            if fields[1] == "FLOCK" and fields[5] == device and int(fields[4]) > 0:
                return int(fields[4])
    return None
