"""Documents cut into chunks that fill their rows, each found by arithmetic.

A document of at most `longest` tokens is one chunk, a longer one of n tokens 1 + ceil((n - longest) / stride). Chunk k
begins after the last sentence end in the `window` tokens up to k * stride, or else at the last word there, or else at k
* stride itself, and is `longest` tokens long; the last chunk is the end of the document, from the first word in its
last `longest` tokens on. A long document thus fills its rows, each of its tokens is in one to three chunks, and the
number of chunks follows from the lengths of the documents alone. Long documents are read longest / stride = 8/7 times.
"""

from bisect import bisect_right
from functools import lru_cache
from itertools import chain
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, LENGTHS, SENTENCE_END, Corpus
from reread.preprocessing.corpus.index import chunk_counts, chunk_window
from reread.preprocessing.errors import UserError

_CACHED_BLOCKS = 4096
"""A pool of 2^30 tokens; a block takes a few kB."""

Bounds = NDArray[np.int64]


class TextRanges(NamedTuple):
    """One stretch of text a row: tokens start[i]..stop[i] of a block.

    The block's ids and flags begin at the bytes ids_at[i] and flags_at[i] of the shard maps[i], whose first page is
    first_page[i] of the corpus.
    """

    maps: list[mmap]
    first_page: Bounds
    ids_at: Bounds
    flags_at: Bounds
    start: Bounds
    stop: Bounds


class Locations(NamedTuple):
    """Chunk `chunk` [B] of document `document` [B], and the text of that document."""

    document: Bounds
    chunk: Bounds
    text: TextRanges


class _CorpusBlock(NamedTuple):
    map: mmap
    offsets: memoryview
    """int64 [documents + 1]: the token at which each document begins."""
    chunks: memoryview
    """int32 [documents + 1]: the number of chunks before each document."""


class CorpusChunks:
    """The chunks of a corpus, numbered in corpus order; `longest` is the maximum number of tokens in a chunk."""

    def __init__(self, corpus: Corpus, longest: int) -> None:
        self.corpus, self.longest = corpus, longest
        self.window = chunk_window(longest)
        self.stride = longest - self.window
        self.before_block = np.append(0, np.cumsum(corpus.chunk_counts(longest)))
        """[blocks + 1]: the number of chunks before each block."""
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)
        self._releases = corpus.releases

    def __len__(self) -> int:
        return int(self.before_block[-1])

    def locate(self, indices: NDArray[np.int64]) -> Locations:
        """The locations of chunks `indices` [B].

        Raises `UserError` if a page with their offsets was altered on disk, or their block has another number of chunks
        than was counted.
        """
        if self._releases != self.corpus.releases:
            self._releases = self.corpus.releases
            self._block.cache_clear()
        numbers = np.searchsorted(self.before_block, indices, side="right") - 1
        self.corpus.check_offsets(numbers)
        blocks = [self._block(number) for number in numbers.tolist()]
        rest = (indices - self.before_block[numbers]).tolist()
        within = [bisect_right(block.chunks, index) - 1 for block, index in zip(blocks, rest, strict=True)]
        before = [block.chunks[document] for block, document in zip(blocks, within, strict=True)]
        chunk = np.array(rest, np.int64) - np.array(before, np.int64)
        return Locations(self.corpus.block_documents[numbers] + within, chunk, self._texts(numbers, blocks, within))

    def bounds(self, locations: Locations) -> tuple[TextRanges, NDArray[np.uint8], Bounds]:
        """The chunks, flags [B, longest + window] and the index in the block of the token in column 0.

        Flags are zero outside the document.
        """
        begin, end = locations.text.start, locations.text.stop
        nominal = begin + locations.chunk * self.stride
        is_last = nominal + self.longest >= end
        origin = np.where(is_last, end - self.longest, nominal - self.window)
        flags = flags_around(self.corpus, locations.text, origin, self.longest + self.window)
        word = (flags[:, : self.window] & CONTINUES_WORD == 0).argmax(axis=1)
        start = origin + np.where(is_last, word, last_break(flags, 0, self.window))
        start = np.where(locations.chunk == 0, begin, start)
        return locations.text._replace(start=start, stop=np.minimum(start + self.longest, end)), flags, origin

    def _texts(self, numbers: Bounds, blocks: list[_CorpusBlock], within: list[int]) -> TextRanges:
        """Document within[i] of block numbers[i]."""
        start = np.array([block.offsets[number] for block, number in zip(blocks, within, strict=True)], np.int64)
        stop = np.array([block.offsets[number + 1] for block, number in zip(blocks, within, strict=True)], np.int64)
        at = self.corpus
        maps = [block.map for block in blocks]
        return TextRanges(maps, at.first_page(numbers), at.ids_at[numbers], at.flags_at[numbers], start, stop)

    def _read_block(self, number: int) -> _CorpusBlock:
        offsets = self.corpus.block_offsets(number)
        chunks = np.zeros(len(offsets), np.int32)
        np.cumsum(chunk_counts(np.diff(offsets), self.longest), out=chunks[1:])
        if chunks[-1] != self.before_block[number + 1] - self.before_block[number]:
            raise UserError(
                f"{self.corpus.location}: block {number} has other chunks than its index or {LENGTHS} say; run `reread "
                "preprocess` again"
            )
        return _CorpusBlock(self.corpus.map(number), offsets.data, chunks.data)


def read_ids(corpus: Corpus, *texts: TextRanges) -> NDArray[Any]:
    """The ids of all rows, concatenated; within a row the texts follow each other."""
    size = corpus.dtype.itemsize
    columns = [_slices(corpus, text, text.ids_at + text.start * size, text.ids_at + text.stop * size) for text in texts]
    return np.frombuffer(_join(columns), corpus.dtype)


def read_flags(corpus: Corpus, *texts: TextRanges) -> NDArray[np.uint8]:
    """The flags of all rows, in the order of `read_ids`."""
    columns = [_slices(corpus, text, text.flags_at + text.start, text.flags_at + text.stop) for text in texts]
    return np.frombuffer(_join(columns), np.uint8)


def _join(columns: list[list[bytes]]) -> bytes:
    return b"".join(chain.from_iterable(zip(*columns, strict=True)))


def _slices(corpus: Corpus, text: TextRanges, start: Bounds, stop: Bounds) -> list[bytes]:
    """Bytes start[i]..stop[i] of the shard of each text."""
    corpus.check(text.first_page, start, stop)
    # Bytes cost less than half of a view and copy of an array per piece, and the garbage collector ignores them.
    return [shard[a:b] for shard, a, b in zip(text.maps, start.tolist(), stop.tolist(), strict=True)]


def flags_around(corpus: Corpus, documents: TextRanges, origin: Bounds, width: int) -> NDArray[np.uint8]:
    """Flags [B, width] of the tokens from origin[i] on, zero outside the document."""
    start = np.maximum(documents.start, origin)
    stop = np.minimum(documents.stop, origin + width)
    pieces = _slices(corpus, documents, documents.flags_at + start, documents.flags_at + stop)
    cut = np.flatnonzero(stop - start < width)
    for row, last in zip(cut.tolist(), (stop - origin)[cut].tolist(), strict=True):
        pieces[row] = pieces[row].rjust(last, b"\0").ljust(width, b"\0")
    return np.frombuffer(bytearray().join(pieces), np.uint8).reshape(-1, width)


def last_break(flags: NDArray[np.uint8], low: int, high: int) -> NDArray[np.int64]:
    """The last column of each row in (low, high] at which a sentence may begin, or else a word, or else `high`."""
    sentence, found = _last(flags[:, low:high] & SENTENCE_END != 0)
    word, word_found = _last(flags[:, low + 1 : high + 1] & CONTINUES_WORD == 0)
    back = np.where(found, sentence, np.where(word_found, word, 0))
    return high - back


def _last(marks: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Distance of the last mark from the right end of its row, and whether there is one."""
    back = marks[:, ::-1].argmax(axis=1)
    return back, marks[np.arange(len(marks)), marks.shape[1] - 1 - back]
