"""Shards, which are read through memory maps: checks of their sizes and of the checksums of their pages."""

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.corpus.index import PAGE, page_count
from reread.preprocessing.corpus.maps import map_file, read_ahead
from reread.preprocessing.errors import UserError

_PAGES_AT_ONCE = 128
"""Pages that are read ahead at a time, while the previous batch of as many pages is verified."""


class Stretch(NamedTuple):
    """A file that holds bytes `start` to `stop` of a shard: all of it, or a part that consists of whole blocks."""

    name: str
    shard: str
    start: int
    stop: int
    blocks: int
    sums: NDArray[np.uint32]
    """[pages]: the CRC-32 of each page; `start` is at the beginning of a page."""

    @property
    def size(self) -> int:
        return self.stop - self.start


class ShardFiles:
    """Memory maps of the shards in a folder; `command` is the command that made the folder, for error messages."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self._remedy = f"copy the shard again, or delete it and run `{command}` again"
        self._sizes: dict[str, int] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def check_size(self, name: str, size: int) -> None:
        """Raises `UserError` unless the shard has `size` bytes, which is checked again before it is mapped."""
        self._sizes[name] = size
        path = self.folder / name
        if path.name != name:
            raise UserError(
                f"{self.folder}: its manifest names `{name}`, which is not a file of this folder; do not use it"
            )
        try:
            found = path.stat().st_size if path.exists() else None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})", error) from None
        if found != size:
            state = "missing" if found is None else f"{found} bytes long, {size} were written"
            raise UserError(f"{path}: {state}; {self._remedy}")

    def map(self, name: str) -> mmap.mmap:
        """The bytes of a shard whose size was checked."""
        if name not in self._maps:
            self.check_size(name, self._sizes[name])
            try:
                self._maps[name] = map_file(self.folder / name)
            except OSError as error:
                raise UserError(
                    f"{self.folder / name}: cannot be mapped into memory ({error.strerror})", error
                ) from None
        return self._maps[name]

    def ask(self, names: Iterable[str]) -> None:
        """Announce that these shards will be mapped; does nothing for files that are on this machine already."""

    def array(self, name: str, dtype: Any, count: int, start: int) -> NDArray[Any]:
        """[count]: the values from byte `start` on, as a read-only view of the file, which is read ahead."""
        values = np.frombuffer(self.map(name), dtype, count, start)
        values.flags.writeable = False
        read_ahead(self.map(name), start, start + values.nbytes)
        return values

    def repair(self, name: str) -> None:
        """Restore altered bytes of a mapped file if it is a copy of another file; existing maps see the change."""

    def altered(self, name: str, start: int, part: str) -> UserError:
        """The error for a part of a file, such as a page, that begins at byte `start` and fails its checksum."""
        return UserError(
            f"{self.folder / name}: altered since it was written (checksum of the {part} at byte {start}); "
            f"{self._remedy}"
        )


class CheckedPages:
    """The pages of some shards, numbered consecutively; each page is verified when it is first read.

    `shards` are names and sizes, `sums` [pages] the CRC-32 of each page. Methods raise `UserError` for an altered page.
    """

    def __init__(self, files: ShardFiles, shards: Sequence[tuple[str, int]], sums: NDArray[np.uint32]) -> None:
        self._files, self._shards, self._sums = files, shards, sums
        self.first = np.cumsum([0, *(page_count(size) for _, size in shards)])
        """[shards + 1]: the number of pages before each shard."""
        self._first: list[int] = self.first.tolist()
        self._checked = np.zeros(len(sums), bool)
        self._unchecked = len(sums)

    def check(self, first: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
        """Verify the pages that hold bytes start[i]..stop[i] of the shard whose first page has the number first[i]."""
        if not self._unchecked:
            return
        begin, count = start // PAGE, np.maximum(0, (stop - 1) // PAGE - start // PAGE + 1)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pages = np.repeat(first + begin, count) + within
        self._verify(np.unique(pages[~self._checked[pages]]).tolist())

    def check_range(self, first: int, start: int, stop: int) -> None:
        """`check` for a single range of bytes."""
        begin, end = first + start // PAGE, first + (stop - 1) // PAGE + 1
        if not self._checked[begin:end].all():
            self._verify((begin + np.flatnonzero(~self._checked[begin:end])).tolist())

    def verify(self) -> None:
        """Verify all pages, also those that were verified before."""
        self._verify(range(len(self._sums)))

    def _verify(self, pages: Sequence[int]) -> None:
        """Verify pages in ascending order. The disk reads one batch while the batch before it is verified."""
        requested: list[tuple[int, str, int, int]] = []
        for begin in range(0, len(pages) + _PAGES_AT_ONCE, _PAGES_AT_ONCE):
            coming = self._read_ahead(pages[begin : begin + _PAGES_AT_ONCE])
            for page, name, start, stop in requested:
                mapped = memoryview(self._files.map(name))[start:stop]
                if crc32(mapped) != self._sums[page]:
                    self._files.repair(name)
                    if crc32(mapped) != self._sums[page]:
                        raise self._files.altered(name, start, "page")
                self._unchecked -= not self._checked[page]
                self._checked[page] = True
            requested = coming

    def _read_ahead(self, pages: Sequence[int]) -> list[tuple[int, str, int, int]]:
        """Ask the kernel to read pages, adjacent ones together; returns (page, shard, start, stop) for each."""
        located: list[tuple[int, str, int, int]] = []
        runs: list[tuple[str, int, int]] = []
        for page in pages:
            shard = bisect_right(self._first, page) - 1
            (name, size), start = self._shards[shard], (page - self._first[shard]) * PAGE
            stop = min(start + PAGE, size)
            located.append((page, name, start, stop))
            if runs and runs[-1][0] == name and runs[-1][2] == start:
                runs[-1] = name, runs[-1][1], stop
            else:
                runs.append((name, start, stop))
        for name, start, stop in runs:
            read_ahead(self._files.map(name), start, stop)
        return located
