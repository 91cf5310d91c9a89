"""Reading the documents of a corpus."""

import logging
import mmap
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus.index import CHUNK_LENGTHS, CorpusIndex, chunk_counts, page_count
from reread.preprocessing.corpus.job import kept, once
from reread.preprocessing.corpus.lengths import LENGTHS, open_lengths, read_lengths
from reread.preprocessing.corpus.manifest import Manifest, Shard
from reread.preprocessing.corpus.maps import read_ahead
from reread.preprocessing.corpus.shards import CheckedPages, ShardFiles, Stretch
from reread.preprocessing.errors import DamagedError

log = logging.getLogger("reread")

_MANY_BLOCKS = 1024
"""For fewer blocks, reading the lengths of all documents takes less than a second."""
_DOCUMENTS_AT_ONCE = 1 << 17
"""Documents whose lengths are looked at together, some megabytes: a shard has a hundred or a million of them."""


class Corpus:
    """One split of a corpus, read through memory maps; documents are numbered in source order.

    Opening it reads the manifest and maps the index, and raises `UserError` for a missing or truncated shard, unless
    another process of a job has looked for that (`reread.preprocessing.corpus.job`). The first read of an altered page
    of a shard raises `UserError`, too.
    """

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        self.folder = Path(folder)
        self.location: Path | str = self.folder
        """The folder or address of the corpus, for messages."""
        self.split = split
        self.manifest = once(Manifest.read, self.folder)
        self.fingerprint = self.manifest.fingerprint
        shards = [shard for shard in self.manifest.shards if shard.split == split]
        self._open(shards, self.manifest.split_index(split))

    def _open(self, shards: list[Shard], index: CorpusIndex) -> None:
        files = ShardFiles(self.folder, "reread preprocess")
        for shard in shards:
            files.expect(shard.name, shard.bytes)
        self._read_from(files, whole_shards(shards, index.pages), index)

    def _read_from(self, files: ShardFiles, stretches: list[Stretch], index: CorpusIndex) -> None:
        """Set up the arrays that locate the blocks of `index` in the files of `stretches`."""
        blocks, starts = index.blocks, np.array([stretch.start for stretch in stretches], np.int64)
        self._files, self._pages = files, CheckedPages(files, stretches)
        self._names = [stretch.name for stretch in stretches]
        self._first_block = np.cumsum([0, *(stretch.blocks for stretch in stretches)])
        self._shard_of = np.repeat(np.arange(len(stretches), dtype=np.int32), np.diff(self._first_block))
        self._chunks = index.chunks

        def within(name: str) -> NDArray[np.int64]:
            return blocks[name] - starts[self._shard_of] if starts.any() else blocks[name]

        self.ids_at = within("ids_at")
        """[blocks]: the byte offset in its file at which each block's ids begin."""
        self.flags_at = within("flags_at")
        self._offsets_at = within("offsets_at")
        self.block_documents: NDArray[np.int64] = np.append(0, np.cumsum(blocks["documents"]))
        """[blocks + 1]: the number of documents before each block."""
        self.block_tokens: NDArray[np.int64] = np.append(0, np.cumsum(blocks["tokens"]))
        """[blocks + 1]: the number of tokens before each block."""
        self._first = self.block_documents.data
        """`block_documents`; one of its numbers costs less here."""
        self.documents: int = self._first[-1]
        self.tokens = int(self.block_tokens[-1])
        self.dtype = np.dtype(self.manifest.dtype)

    @property
    def blocks(self) -> int:
        return len(self._shard_of)

    def first_page(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the first page of the shard of each of the blocks `numbers` [n], for `check`."""
        return self._pages.first[self._shard_of[numbers]]

    def map(self, number: int) -> mmap.mmap:
        """The bytes of the shard that holds block `number`; call `check` for the bytes that are read."""
        return self._files.map(self._names[self._shard_of[number]])

    def check(self, first_page: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
        """Verify bytes start[i]..stop[i] of the shard with `first_page`[i]; raises `UserError` if they were altered.

        Whole pages are read and verified, each of them once.
        """
        self._pages.check(first_page, start, stop)

    def check_offsets(self, numbers: NDArray[np.int64]) -> None:
        """`check` the offsets of blocks `numbers` [n] together, which `block_offsets` would check one by one."""
        start, documents = self._offsets_at[numbers], self.block_documents[numbers + 1] - self.block_documents[numbers]
        self.check(self.first_page(numbers), start, start + 8 * (documents + 1))

    def block_offsets(self, number: int) -> NDArray[np.int64]:
        """[documents + 1]: the token of the block at which each document begins.

        Raises `UserError` if the offsets do not fit the block's size, since then the index points to a wrong location.
        """
        at = int(self._offsets_at[number])
        offsets = self._array(number, np.dtype(np.int64), at, 0, self._documents(number) + 1)
        tokens = self.block_tokens[number + 1] - self.block_tokens[number]
        if offsets[0] != 0 or offsets[-1] != tokens or (offsets[1:] < offsets[:-1]).any():
            raise self._files.altered(self._names[self._shard_of[number]], at, "offsets of documents")
        return offsets

    def text(self, number: int, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The ids [stop - start] and flags [stop - start] of tokens start..stop of a block, as views of the file."""
        ids = self._array(number, self.dtype, int(self.ids_at[number]), start, stop)
        return ids, self._array(number, np.dtype(np.uint8), int(self.flags_at[number]), start, stop)

    def document(self, index: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The token ids [n] and flags [n] of a document, as views of the file."""
        number = bisect_right(self._first, index) - 1
        start, stop = self.block_offsets(number)[index - self._first[number] :][:2].tolist()
        return self.text(number, start, stop)

    def chunk_counts(self, longest: int) -> NDArray[np.int64]:
        """[blocks]: the number of chunks of at most `longest` tokens (`reread.training.data.order.chunks`)."""
        if longest in CHUNK_LENGTHS:
            return self._chunks[:, CHUNK_LENGTHS.index(longest)].astype(np.int64)
        name = f"{self.fingerprint}-{self.split}-{longest}"
        return kept(name, self.blocks, lambda: self._count_chunks(longest)).astype(np.int64)

    def _count_chunks(self, longest: int) -> NDArray[np.uint32]:
        """`chunk_counts` by the lengths of all documents, whose offsets are read without verifying them.

        Pages are verified only where lengths cannot be right, since this reads a little of each of many pages. A corpus
        that has its lengths in a file of their own is counted by that, of which all is verified.
        """
        if self.manifest.lengths is not None:
            with self._open_lengths(self.manifest.lengths) as file:
                return self._chunks_by_lengths(file, longest)
        if self.blocks > _MANY_BLOCKS:
            log.info("%s: reads the lengths of all documents, since its index has none for %d", self.location, longest)
        counts, read, begin = np.empty(self.blocks, np.uint32), list[bytes](), 0
        sizes = 8 * (np.diff(self.block_documents) + 1)
        for name, (first, stop) in zip(self._names, pairwise(self._first_block.tolist()), strict=True):
            if first < stop:
                read += self._files.read(name, self._offsets_at[first:stop].tolist(), sizes[first:stop].tolist())
            if begin < stop and (stop == self.blocks or self._first[stop] - self._first[begin] >= _DOCUMENTS_AT_ONCE):
                counts[begin:stop] = self._chunks_by_offsets(b"".join(read), begin, stop, longest)
                read, begin = [], stop
        return counts

    @property
    def releases(self) -> int:
        """How often files were released; whoever keeps a map from before the last time should drop it."""
        return 0

    def use(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Announce that from now on mostly these ranges of blocks (first, stop) are read."""

    def read_ahead(self, first: int, stop: int) -> None:
        """Ask the kernel to read blocks first..stop, without waiting for them."""
        for number in range(first, stop):
            self._read_block_ahead(number)

    def _read_block_ahead(self, number: int) -> None:
        stop = int(self._offsets_at[number]) + 8 * (self._documents(number) + 1)
        read_ahead(self.map(number), int(self.ids_at[number]), stop)

    def verify(self) -> None:
        """Read everything once; raises `UserError` for the first page that was altered, or altered lengths."""
        self._pages.verify()
        if self.manifest.lengths is not None:
            self._open_lengths(self.manifest.lengths).close()

    def _open_lengths(self, checksum: int) -> IO[bytes]:
        """lengths.npy, verified."""
        return open_lengths(self.folder, self.manifest.documents, checksum)

    def _chunks_by_lengths(self, file: IO[bytes], longest: int) -> NDArray[np.uint32]:
        """`chunk_counts` by lengths.npy, some blocks after the others."""
        counts, begin = np.empty(self.blocks, np.uint32), 0
        for run in self.manifest.runs(self.split):
            before = run.documents.start - self._first[begin]  # documents of other splits
            end = begin + run.blocks.stop - run.blocks.start
            while begin < end:
                most = self._first[begin] + _DOCUMENTS_AT_ONCE
                stop = min(end, max(begin + 1, bisect_right(self._first, most) - 1))
                borders = self.block_documents[begin : stop + 1] - self._first[begin]
                lengths = read_lengths(file, before + self._first[begin], before + self._first[stop]).astype(np.int64)
                if (_sums(lengths, borders) != np.diff(self.block_tokens[begin : stop + 1])).any():
                    raise DamagedError(
                        f"{self.folder}: {LENGTHS} belongs to other shards; run `reread preprocess` again"
                    )
                counts[begin:stop] = _sums(chunk_counts(lengths, longest), borders)
                begin = stop
        return counts

    def _chunks_by_offsets(self, read: bytes, first: int, stop: int, longest: int) -> NDArray[np.int64]:
        """`chunk_counts` of the blocks first..stop, by their offsets one after the other."""
        documents, offsets = np.diff(self.block_documents[first : stop + 1]), np.frombuffer(read, np.int64)
        ends = np.cumsum(documents + 1)
        lengths = np.delete(np.diff(offsets), ends[:-1] - 1)  # not from one block to the next
        borders = np.append(0, np.cumsum(documents))
        counts, tokens = _sums(chunk_counts(lengths, longest), borders), np.diff(self.block_tokens[first : stop + 1])
        wrong = offsets[ends - documents - 1] != 0
        wrong |= (_sums(lengths <= 0, borders) > 0) | (_sums(lengths, borders) != tokens)
        for one in np.flatnonzero(wrong).tolist():
            counts[one] = chunk_counts(np.diff(self.block_offsets(first + one)), longest).sum()  # verified
        return counts

    def _documents(self, number: int) -> int:
        return self._first[number + 1] - self._first[number]

    def _array(self, number: int, dtype: np.dtype[Any], at: int, start: int, stop: int) -> NDArray[Any]:
        begin = at + dtype.itemsize * start
        self._pages.check_range(int(self._pages.first[self._shard_of[number]]), begin, at + dtype.itemsize * stop)
        values = np.frombuffer(self.map(number), dtype, stop - start, begin)
        values.flags.writeable = False
        return values


def _sums(values: NDArray[Any], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n]: the sum of `values` from each of the `borders` [n + 1] to the next."""
    return np.diff(np.append(0, np.cumsum(values))[borders])


def whole_shards(shards: list[Shard], pages: NDArray[np.uint32]) -> list[Stretch]:
    """Each shard as one stretch; `pages` [pages] are the checksums of the pages of all shards."""
    ends = accumulate(page_count(shard.bytes) for shard in shards)
    return [
        Stretch(shard.name, shard.name, 0, shard.bytes, shard.blocks, pages[end - page_count(shard.bytes) : end])
        for shard, end in zip(shards, ends, strict=True)
    ]
