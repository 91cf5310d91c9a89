"""Shards, which are read through memory maps: checks of their sizes and of the checksums of their pages."""

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.corpus.index import PAGE, page_count
from reread.preprocessing.corpus.job import trusting
from reread.preprocessing.corpus.maps import map_file, read_ahead, read_parts
from reread.preprocessing.errors import UserError

_PAGES_AT_ONCE = 128
"""Pages that are read ahead at a time, while the previous batch of as many pages is verified."""


_MAPPING: "WeakSet[ShardFiles]" = WeakSet()
"""All of this process: what is mapped counts together."""


@cache
def _most_maps() -> int:
    """Shards that this process keeps mapped: half of the maps that Linux lets it have, which are 65,530 by default."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text()) // 2
    except (OSError, ValueError):
        return 1 << 15


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
        """In the order in which they were mapped."""
        _MAPPING.add(self)

    def expect(self, name: str, size: int) -> None:
        """Add a shard of `size` bytes, which are checked now, unless another process of a job has, and when it is
        mapped.

        Raises `UserError` for another size.
        """
        if os.path.basename(name) != name or name in ("", "."):
            raise UserError(
                f"{self.folder}: its manifest names `{name}`, which is not a file of this folder; do not use it"
            )
        self._sizes[name] = size
        if not trusting():
            self._check_size(name, self._size_on_disk(name))

    def map(self, name: str) -> mmap.mmap:
        """The bytes of a shard; raises `UserError` unless it has the size that it should have."""
        mapped = self._maps.get(name)
        if mapped is None:
            if sum(len(files._maps) for files in _MAPPING) >= _most_maps():
                self._maps.pop(next(iter(self._maps), name), None)  # unmapped once nobody uses its bytes
            try:
                mapped = map_file(self.folder / name)
            except OSError as error:
                self._check_size(name, self._size_on_disk(name))
                raise UserError(
                    f"{self.folder / name}: cannot be mapped into memory ({error.strerror})", error
                ) from None
            self._check_size(name, len(mapped))
            self._maps[name] = mapped
        return mapped

    def read(self, name: str, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Bytes begins[i]..begins[i] + sizes[i] of a shard, without mapping it; raises `UserError` as `map` does."""
        try:
            parts, size = read_parts(f"{self.folder}/{name}", begins, sizes)
        except OSError as error:
            self._check_size(name, self._size_on_disk(name))
            raise UserError(f"{self.folder / name}: cannot be read ({error.strerror})", error) from None
        self._check_size(name, size)
        return parts

    def _size_on_disk(self, name: str) -> int | None:
        """Bytes of a shard; None if it is missing."""
        try:
            return os.stat(f"{self.folder}/{name}").st_size
        except (FileNotFoundError, ValueError):  # or no file can have such a name
            return None
        except OSError as error:
            raise UserError(f"{self.folder / name}: cannot be read ({error.strerror})", error) from None

    def _check_size(self, name: str, found: int | None) -> None:
        if found != self._sizes[name]:
            state = "missing" if found is None else f"{found} bytes long, {self._sizes[name]} were written"
            raise UserError(f"{self.folder / name}: {state}; {self._remedy}")

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

    Methods raise `UserError` for an altered page.
    """

    def __init__(self, files: ShardFiles, shards: Sequence[Stretch]) -> None:
        self._files, self._shards = files, shards
        self.first = np.cumsum([0, *(page_count(shard.size) for shard in shards)])
        """[shards + 1]: the number of pages before each shard."""
        self._first: list[int] = self.first.tolist()
        self._checked = np.zeros(self._first[-1], bool)
        self._unchecked = self._first[-1]

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
        self._verify(range(self._first[-1]))

    def _verify(self, pages: Sequence[int]) -> None:
        """Verify pages in ascending order. The disk reads one batch while the batch before it is verified."""
        requested: list[tuple[int, int, int, int]] = []
        for begin in range(0, len(pages) + _PAGES_AT_ONCE, _PAGES_AT_ONCE):
            coming = self._read_ahead(pages[begin : begin + _PAGES_AT_ONCE])
            for page, shard, start, stop in requested:
                name, expected = self._shards[shard].name, self._shards[shard].sums[page - self._first[shard]]
                mapped = memoryview(self._files.map(name))[start:stop]
                if crc32(mapped) != expected:
                    self._files.repair(name)
                    if crc32(mapped) != expected:
                        raise self._files.altered(name, start, "page")
                self._unchecked -= not self._checked[page]
                self._checked[page] = True
            requested = coming

    def _read_ahead(self, pages: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Ask the kernel to read pages, adjacent ones together; returns (page, number of its shard, start, stop) for
        each."""
        located: list[tuple[int, int, int, int]] = []
        runs: list[tuple[str, int, int]] = []
        for page in pages:
            shard = bisect_right(self._first, page) - 1
            name, start = self._shards[shard].name, (page - self._first[shard]) * PAGE
            stop = min(start + PAGE, self._shards[shard].size)
            located.append((page, shard, start, stop))
            if runs and runs[-1][0] == name and runs[-1][2] == start:
                runs[-1] = name, runs[-1][1], stop
            else:
                runs.append((name, start, stop))
        for name, start, stop in runs:
            read_ahead(self._files.map(name), start, stop)
        return located
