"""Sentence pairs as BERT makes them (Devlin et al. 2019; Google's `create_instances_from_document`).

The sentences of a chunk are split at random into A and B; half of the time, and always where the chunk is a single
sentence, B is text from another document instead, filled up with sentences to the target length. What is too long is
cut token by token from the longer side, at its front or back at random.

Two things differ, because chunk borders are fixed by arithmetic and documents are never read whole. The sentences
after a split with a random B are not put back but are seen in other copies. The first sentence of a random B is the one
around a random token, so a long sentence is drawn more often than a short one.
"""

import logging
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import SENTENCE_END
from training.data import random
from training.data.chunks import Bounds, Chunks, Places, Text, flags_around, last_break
from training.data.random import Purpose

RANDOM_NEXT_PROBABILITY = 0.5
_TRIES = 10
_LOOK_BACK = 128
"""How many tokens before a random one the beginning of its sentence is looked for."""

log = logging.getLogger("reread")

Keys = NDArray[np.uint64]


class Sentences:
    """Sentence ends in flags [B, width], whose column 0 is token origin[i]; finds them by binary search."""

    def __init__(self, flags: NDArray[np.uint8], origin: Bounds) -> None:
        self.base = np.arange(len(flags)) * flags.shape[1] - origin
        self.ends = np.append(np.flatnonzero(flags & SENTENCE_END != 0), flags.size)

    def from_token(self, tokens: Bounds) -> Bounds:
        """The number of the first sentence end at or after a token."""
        return np.searchsorted(self.ends[:-1], self.base + tokens)

    def after(self, numbers: Bounds) -> Bounds:
        """The token after a sentence end."""
        return self.ends[numbers] - self.base + 1


def draw_pairs(
    chunks: Chunks, places: Places, keys: Keys, short_probability: float
) -> tuple[Text, Text, NDArray[np.int32]]:
    """A and B of each chunk, and label int32 [B]: 0 where B follows A, 1 where it is random."""
    text, sentences, targets = draw_sentences(chunks, places, keys, short_probability)
    first, last = sentences.from_token(text.start), sentences.from_token(text.stop - 1)
    inner = last - first  # sentence ends before the last token: the places to split at
    chosen = first + random.integers(keys, Purpose.SPLIT, 1, inner[:, None])[:, 0]
    split: Bounds = np.where(inner > 0, sentences.after(chosen), text.stop)
    is_random = (inner == 0) | (random.uniform(keys, Purpose.RANDOM_NEXT, 1)[:, 0] < RANDOM_NEXT_PROBABILITY)

    rows = np.flatnonzero(is_random)
    other = _random_text(chunks, places, rows, keys[rows], (targets - (split - text.start))[rows])
    a, b = truncate(text._replace(stop=split), _replaced(text._replace(start=split), rows, other), chunks.longest, keys)
    return a, b, is_random.astype(np.int32)


def draw_sentences(
    chunks: Chunks, places: Places, keys: Keys, short_probability: float
) -> tuple[Text, Sentences, NDArray[np.int64]]:
    """The sentences of each chunk, for short rows only some in its middle; and the target length of the row [B].

    With `short_probability` the target is uniform in 2..longest instead of `longest`, and sentences are taken from a
    random one on until they reach it.
    """
    text, flags, origin = chunks.bounds(places)
    start, stop = text.start, text.stop
    sentences = Sentences(flags, origin)
    is_short = random.uniform(keys, Purpose.SHORT, 1)[:, 0] < short_probability
    rows = np.flatnonzero(is_short)
    targets = np.full(len(keys), chunks.longest, np.int64)
    targets[rows] = 2 + random.integers(keys[rows], Purpose.TARGET_LENGTH, 1, chunks.longest - 1)[:, 0]
    first, last = sentences.from_token(start), sentences.from_token(stop - 1)
    skipped = random.integers(keys, Purpose.FIRST_SENTENCE, 1, (last - first + 1)[:, None])[:, 0] * is_short
    start = np.where(skipped > 0, sentences.after(first + skipped - 1), start)
    reached = sentences.from_token(start + targets - 1)
    stop = np.where(is_short & (reached < last), sentences.after(reached), stop)
    return text._replace(start=start, stop=stop), sentences, targets


def _random_text(chunks: Chunks, places: Places, rows: Bounds, keys: Keys, wanted: Bounds) -> Text:
    """Whole sentences from a random place of another document, of at least `wanted` [rows] tokens if it has so many."""
    if chunks.corpus.documents > 1:
        draws = random.integers(keys, Purpose.OTHER_DOCUMENT, _TRIES, chunks.corpus.documents)
        is_other = draws != places.document[rows, None]
        documents = chunks.documents(draws[np.arange(len(rows)), is_other.argmax(axis=1)])
        begin, end = documents.start, documents.stop
    else:
        _say_single(str(chunks.corpus.folder))
        documents = chunks.documents(places.document[rows])
        hop = 1 + random.integers(keys, Purpose.OTHER_DOCUMENT, 1, max(1, len(chunks) - 1))[:, 0]
        begin = documents.start + (places.chunk[rows] + hop) % len(chunks) * chunks.stride
        end = np.minimum(begin + chunks.stride, documents.stop)
    token = begin + random.integers(keys, Purpose.OTHER_PLACE, 1, (end - begin)[:, None])[:, 0]

    origin = token - _LOOK_BACK
    flags = flags_around(documents, origin, _LOOK_BACK + chunks.longest)
    # The beginning of the document is one of a sentence, too.
    before = documents.start - 1 - origin
    seen = before >= 0
    flags[seen, before[seen]] |= SENTENCE_END
    start = origin + last_break(flags, 0, _LOOK_BACK)
    sentences = Sentences(flags, origin)
    enough = sentences.after(sentences.from_token(start + np.maximum(wanted, 1) - 1))
    stop = np.minimum(np.minimum(enough, start + chunks.longest), documents.stop)
    return documents._replace(start=start, stop=stop)


def _replaced(text: Text, rows: Bounds, other: Text) -> Text:
    """`text` with `other` in some rows."""
    maps = text.maps.copy()
    for row, shard in zip(rows.tolist(), other.maps, strict=True):
        maps[row] = shard
    arrays = [values.copy() for values in text[1:]]
    for values, new in zip(arrays, other[1:], strict=True):
        values[rows] = new
    return Text(maps, *arrays)


def truncate(a: Text, b: Text, longest: int, keys: Keys) -> tuple[Text, Text]:
    """Drop single tokens from the longer of A and B, front or back at random, until both together are `longest`.

    Neither is longer than that before.
    """
    sizes = np.stack([a.stop - a.start, b.stop - b.start])
    excess = sizes.sum(axis=0) - longest
    rows = np.flatnonzero(excess > 0)
    if len(rows) == 0:
        return a, b
    sizes, excess = sizes[:, rows], excess[rows]
    # Of two equally long sides BERT shortens B.
    halves = np.array([[longest - longest // 2], [longest // 2]])
    longer = np.stack([sizes[0] > sizes[1], sizes[0] <= sizes[1]])
    one_side = excess <= abs(sizes[0] - sizes[1])
    dropped = np.where(one_side, excess * longer, sizes - halves)

    words = -(-longest // 32)
    flips = np.unpackbits(random.words(keys[rows], Purpose.TRUNCATION, 2 * words).view(np.uint8), axis=1)
    flips = flips.reshape(len(rows), 2, 32 * words).swapaxes(0, 1)
    front = (flips & (np.arange(32 * words) < dropped[:, :, None])).sum(axis=2, dtype=np.int64)
    return _shorten(a, rows, front[0], dropped[0]), _shorten(b, rows, front[1], dropped[1])


def _shorten(text: Text, rows: Bounds, front: Bounds, dropped: Bounds) -> Text:
    start, stop = text.start.copy(), text.stop.copy()
    start[rows] += front
    stop[rows] -= dropped - front
    return text._replace(start=start, stop=stop)


@lru_cache
def _say_single(folder: str) -> None:
    log.info("%s: a single document, so a random next sentence comes from another part of it", folder)
