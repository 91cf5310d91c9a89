"""A document in one copy, cut into chunks, permuted, cut into segments (Ding et al. 2021, section 3.4)."""

from array import array
from bisect import insort
from itertools import permutations
from math import factorial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.settings import LONGEST, MaskedSettings, MaskingSettings

LONGEST_WORD = 32
"""A segment ends before a word that it would cut, if that word begins in this many last tokens."""

_ORDERS = [list(permutations(range(chunks))) for chunks in range(7)]
_BEGINS_WORD = bytes(not flags & int(CONTINUES_WORD) for flags in range(256))


class SegmentSettings(MaskedSettings):
    """Settings of lanes of documents cut into segments, for models with memory (ERNIE-Doc)."""

    kind: Literal["segments"]
    sequence_length: int = Field(default=512, ge=8, le=LONGEST)
    """Tokens in a segment, including [SEP] and [CLS]."""
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each epoch is one copy with its own masks and chunk orders; the copies repeat in turn."""
    retrospective: bool = True
    """Each document is read twice: a skim without loss, then the reading that learns (ERNIE-Doc, section 3.2)."""
    reorder_chunks: int = Field(default=4, ge=1, le=6)
    """m of the segment-reordering task (section 3.4): a document is cut into 1 to m chunks, which are permuted; 1
    disables it."""
    cut: Literal["sentence", "anywhere"] = "sentence"
    """Where chunks may be cut: after a sentence, or, as the paper has it, before any word; there the broken sentence
    may tell the order."""
    masking: MaskingSettings = MaskingSettings()

    @field_validator("masking")
    @classmethod
    def _is_read_over_many_steps(cls, value: MaskingSettings) -> MaskingSettings:
        if value.by_step:
            raise ValueError(
                "first_probability and final_probability are for data.kind rows and packed: a document is read over "
                "many steps, and twice, with the same masks; set them to null"
            )
        return value

    def lanes(self, global_batch: int) -> int:
        """Twice the batch with retrospective feed, since half of the lanes skim."""
        return 2 * global_batch if self.retrospective else global_batch

    def blank(self, rows: int) -> Rows:
        batch = super().blank(rows)
        learns = np.arange(rows) % 2 == 1 if self.retrospective else np.ones(rows, bool)
        batch["labels"][~learns] = IGNORED
        batch |= {"learns": learns, "begins": np.ones(rows, bool), "reorder_label": np.zeros(rows, np.int32)}
        return batch | {"cursors": np.zeros((rows, 3), np.int64)}


def reorder_classes(chunks: int) -> int:
    """The number of permutations of 1 to `chunks` chunks: 33 for 4 (K in section 3.4)."""
    return sum(factorial(number) for number in range(1, chunks + 1))


class CutDocument(NamedTuple):
    """A document with its chunks and segments in one copy."""

    copy: int
    number: int
    """The number of the document in the corpus."""
    ids: NDArray[Any]
    flags: NDArray[np.uint8]
    chunks: list[tuple[int, int]]
    """(start, stop) of each chunk in the document, in the order in which they are read."""
    label: int
    """The class of that permutation, below `reorder_classes(m)`."""
    bounds: "array[int]"
    """Segment k is tokens bounds[k]..bounds[k + 1] of the permuted text."""

    @property
    def segments(self) -> int:
        return len(self.bounds) - 1

    def parts(self, segment: int) -> list[tuple[int, int]]:
        """(start, stop) in the document of each stretch of text in a segment: several at chunk borders."""
        begin, end = self.bounds[segment], self.bounds[segment + 1]
        parts = []
        for start, stop in self.chunks:
            if begin < stop - start and end > 0:
                parts.append((max(start, start + begin), min(stop, start + end)))
            begin -= stop - start
            end -= stop - start
        return parts


def word_reach(capacity: int) -> int:
    """Number of tokens by which a segment of `capacity` may end early to avoid cutting a word."""
    return min(LONGEST_WORD, capacity // 4)


def permuted(
    may_end: NDArray[np.bool_], count: int, cut: list[float], order: float
) -> tuple[list[tuple[int, int]], int]:
    """The chunks in reading order, and the permutation's label; `cut` and `order` are draws from [0, 1).

    `may_end` [tokens - 1]: whether a chunk may end with a token. A document with too few such tokens is cut after each
    of them, and has the label for that number of chunks.
    """
    size = len(may_end) + 1
    if count == 1:
        return [(0, size)], 0
    ends = np.flatnonzero(may_end)
    count = min(count, len(ends) + 1)
    chosen: list[int] = []
    for number in range(count - 1):
        index = int(cut[number] * (len(ends) - number))  # among those not chosen yet
        for other in chosen:
            index += index >= other
        insort(chosen, index)
    cuts = [0, *(int(ends[index]) + 1 for index in chosen), size]
    rank = int(order * factorial(count))
    return [(cuts[chunk], cuts[chunk + 1]) for chunk in _ORDERS[count][rank]], reorder_classes(count - 1) + rank


def chunk_ends(flags: NDArray[np.uint8], cut: str) -> NDArray[np.bool_]:
    """Whether a chunk may end with a token, of all tokens but the last; `cut` as in `SegmentSettings`."""
    if cut == "sentence":
        return flags[:-1] & SENTENCE_END != 0
    return flags[1:] & CONTINUES_WORD == 0


def segment_bounds(flags: NDArray[np.uint8], chunks: list[tuple[int, int]], capacity: int) -> "array[int]":
    """The tokens of the permuted text at which segments begin, and its end. Each segment has at most `capacity` tokens
    and is as long as possible without cutting a word."""
    size, reach = len(flags), word_reach(capacity)
    if size <= capacity:
        return array("i", (0, size))
    text = flags.tobytes()
    begins = b"".join([text[start:stop] for start, stop in chunks]).translate(_BEGINS_WORD)
    bounds, latest = array("i", (0,)), capacity
    while latest < size:
        found = begins.rfind(1, latest - reach, latest + 1)
        bounds.append(found if found >= 0 else latest)
        latest = bounds[-1] + capacity
    bounds.append(size)
    return bounds


def stretch_of(flags: NDArray[np.uint8], longest: int, draw: float) -> slice:
    """`longest` tokens of a longer document, from the beginning of a word; `draw` in [0, 1) determines which word."""
    latest = int(draw * (len(flags) - longest + 1))
    begins = np.flatnonzero(flags[: latest + 1] & CONTINUES_WORD == 0)
    start = int(begins[-1]) if len(begins) else 0
    return slice(start, start + longest)
