"""Documents cut into chunks of nearly equal length, every one of them found by arithmetic.

A document of n tokens has ceil(n / stride) chunks. Chunk k begins at the last sentence end in the `window` tokens up to
k * stride, else at the last word there, else at k * stride itself. So each token is in exactly one chunk, no chunk is
longer than stride + window, and how many there are follows from the lengths of the documents alone.
"""

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus

_CACHED_BLOCKS = 1024

Bounds = NDArray[np.int64]


class Block(NamedTuple):
    """A block of the corpus, and the number of chunks before each of its documents [documents + 1]."""

    ids: NDArray[Any]
    flags: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    chunks: NDArray[np.int32]


_NOTHING = (Block(np.empty(0, np.uint16), np.empty(0, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int32)), 0, 0)


class Text(NamedTuple):
    """Stretches of text, one a row: tokens start[i]..stop[i] of blocks[i]."""

    blocks: list[Block]
    start: Bounds
    stop: Bounds


class Places(NamedTuple):
    """Where chunks are: number `chunk` [B] of document `document` [B], which is tokens start..stop of a block."""

    document: Bounds
    chunk: Bounds
    text: Text


class Chunks:
    """The chunks of a corpus, numbered in source order; `longest` is the greatest number of tokens in one."""

    def __init__(self, corpus: Corpus, longest: int) -> None:
        self.corpus, self.longest = corpus, longest
        self.window = max(1, longest // 8)
        self.stride = longest - self.window
        counts = [self._counts(corpus.block_offsets(number)).sum() for number in range(len(corpus.block_documents) - 1)]
        self._before_block = np.cumsum([0, *counts])
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return int(self._before_block[-1])

    def locate(self, indices: NDArray[np.int64]) -> Places:
        """Raises `UserError` where a block was altered on disk."""
        numbers = np.searchsorted(self._before_block, indices, side="right") - 1
        blocks = [self._block(number) for number in numbers.tolist()]
        rest = (indices - self._before_block[numbers]).astype(np.int32)
        pairs = zip(blocks, rest, strict=True)
        within = [int(block.chunks.searchsorted(index, "right")) - 1 for block, index in pairs]
        chunk = rest - np.array(
            [block.chunks.item(index) for block, index in zip(blocks, within, strict=True)], np.int64
        )
        documents = self.corpus.block_documents[numbers] + within
        return Places(documents, chunk, _documents(blocks, within))

    def documents(self, numbers: NDArray[np.int64]) -> Text:
        """Whole documents by their number in the corpus."""
        of = np.searchsorted(self.corpus.block_documents, numbers, side="right") - 1
        blocks = [self._block(number) for number in of.tolist()]
        return _documents(blocks, (numbers - self.corpus.block_documents[of]).tolist())

    def bounds(self, places: Places) -> tuple[Text, NDArray[np.uint8], Bounds]:
        """The chunks, their flags [B, longest + 1] and the token in the block that column 0 stands for.

        Flags are zero outside the document.
        """
        blocks, begin, end = places.text
        origin = begin + places.chunk * self.stride - self.window
        flags = read_flags(places.text, origin, self.longest + 1)
        start = origin + last_break(flags, 0, self.window)
        stop = origin + last_break(flags, self.stride, self.longest)
        is_last = begin + (places.chunk + 1) * self.stride >= end
        return Text(blocks, np.where(places.chunk == 0, begin, start), np.where(is_last, end, stop)), flags, origin

    def _counts(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return -(-np.diff(offsets) // self.stride)

    def _read_block(self, number: int) -> Block:
        ids, flags, offsets = self.corpus.block(number)
        chunks = np.zeros(len(offsets), np.int32)
        np.cumsum(self._counts(offsets), out=chunks[1:])
        return Block(ids, flags, offsets, chunks)


def read_flags(documents: Text, origin: Bounds, width: int) -> NDArray[np.uint8]:
    """[B, width]: flags of the tokens from origin[i] on, zero outside the document."""
    start = np.maximum(documents.start, origin)
    stop = np.minimum(documents.stop, origin + width)
    column = np.arange(width, dtype=np.int32)
    first, last = ((at - origin).astype(np.int32)[:, None] for at in (start, stop))
    inside = (column >= first) & (column < last)
    flags = np.zeros(inside.shape, np.uint8)
    flags[inside] = np.concatenate([block.flags[a:b] for block, a, b in pieces(Text(documents.blocks, start, stop))])
    return flags


def pieces(*texts: Text) -> list[tuple[Block, int, int]]:
    """(block, start, stop) of the stretches of each row in turn; an empty one is added where there are no rows."""
    columns = [zip(text.blocks, text.start.tolist(), text.stop.tolist(), strict=True) for text in texts]
    return list(chain.from_iterable(zip(*columns, strict=True))) or [_NOTHING]


def last_break(flags: NDArray[np.uint8], low: int, high: int) -> NDArray[np.int64]:
    """Per row the largest column in (low, high] where a sentence may begin, else a word, else `high`."""
    sentence, found = _last(flags[:, low:high] & SENTENCE_END != 0)
    word, word_found = _last(flags[:, low + 1 : high + 1] & CONTINUES_WORD == 0)
    back = np.where(found, sentence, np.where(word_found, word, 0))
    return high - back


def _last(marks: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How far from the right end of its row the last mark is, and whether there is one."""
    back = marks[:, ::-1].argmax(axis=1)
    return back, marks[np.arange(len(marks)), marks.shape[1] - 1 - back]


def _documents(blocks: list[Block], numbers: list[int]) -> Text:
    start = [block.offsets.item(number) for block, number in zip(blocks, numbers, strict=True)]
    stop = [block.offsets.item(number + 1) for block, number in zip(blocks, numbers, strict=True)]
    return Text(blocks, np.array(start, np.int64), np.array(stop, np.int64))
