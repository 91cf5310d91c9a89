"""Sentence pairs for BERT's next-sentence task (Devlin et al. 2019, section 3.1), unbiased in length.

A chunk is split after one of its sentences into A and B. For half of the chunks, B is text from another document
instead. In BERT's own procedure a random B is filled up and a true one is not, so the two differ in length. Here both
have the same form: the random B has as many tokens as the true one, begins at the beginning of a sentence like it, and
ends at the end of a sentence if and only if the true one does.

CorpusChunks exchange their second parts: in each copy, chunk i of a pool of n (`order.py`) has chunk (r - i) mod n
of that pool as its partner, with r drawn for the copy. The two are split at about the same share of their length, and
both or neither get a random B, so each reads the part that the other loses, and nearly every token is read in every
epoch. A partner from the same document, or one without a stretch that fits, is replaced by another one.

A chunk of a single sentence has no B. It has no label, nor does a chunk for which no stretch fits.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import SENTENCE_END
from reread.training.data.batch import IGNORED, Rows, percentage
from reread.training.data.order import random
from reread.training.data.order.chunks import Bounds, CorpusChunks, Locations, TextRanges, flags_around
from reread.training.data.order.order import Order
from reread.training.data.order.random import Purpose

RANDOM_NEXT_PROBABILITY = 0.5
_TRIES = 32
"""Maximum number of partners tried for a chunk. Few need more than two; if B ends with its document, a stretch of the
same length that ends with a sentence must be found."""

log = logging.getLogger("reread")

Keys = NDArray[np.uint64]


class Part(NamedTuple):
    """The corpus of a sample, or the corpora of samples [B]."""

    seed: Any
    sample: Any
    """The number of its first sample."""
    document: Any
    """The number of its first document."""
    documents: Any
    """How many it has."""


class Sentences:
    """Binary search for sentence ends in flags [B, width], whose column 0 is token origin[i]."""

    def __init__(self, flags: NDArray[np.uint8], origin: Bounds) -> None:
        self.base = np.arange(len(flags)) * flags.shape[1] - origin
        self.ends = np.append(np.flatnonzero(flags & SENTENCE_END != 0), flags.size)

    def from_token(self, tokens: Bounds) -> Bounds:
        """The number of the first sentence end at or after each token."""
        return np.searchsorted(self.ends[:-1], self.base + tokens)

    def after(self, numbers: Bounds) -> Bounds:
        """The token after each sentence end."""
        return self.ends[numbers] - self.base + 1


class Pairs:
    """CorpusChunks split in two, half of them with a second part from elsewhere."""

    def __init__(
        self, chunks: CorpusChunks, order: Order, short_probability: float, part: Callable[[Bounds], Part]
    ) -> None:
        """`part`: the corpora of chunks [B]."""
        self.chunks, self.order, self.short_probability, self.part = chunks, order, short_probability, part

    def log_narrow(self) -> None:
        """Log what a corpus with few documents leaves to draw from."""
        corpus, order = self.chunks.corpus, self.order
        if corpus.documents == 1:
            _log_single(str(corpus.location), corpus.split)
        elif 0 < corpus.documents < 2 * order.pools:
            _log_narrow(str(corpus.location), corpus.split, order.pools)

    def draw(
        self, copies: Bounds, indices: Bounds, locations: Locations
    ) -> tuple[TextRanges, TextRanges, NDArray[np.int32]]:
        """A, B and label int32 [B] of the chunks `indices` [B], which are at `locations`, in `copies` [B].

        The label is 0 if B follows A, 1 if it is random, -100 if B is empty or has no replacement.
        """
        text, split, ends, is_random = self._split(copies, indices, locations)
        a, b = text._replace(stop=split), text._replace(start=split)
        sizes = text.stop - split
        label = np.full(len(indices), IGNORED, np.int32)
        rows = np.flatnonzero(sizes > 0)
        for number in range(_TRIES):
            if len(rows) == 0:
                break
            other, found = self._other(
                number, copies[rows], indices[rows], locations.document[rows], sizes[rows], ends[rows]
            )
            label[rows[found]] = is_random[rows[found]]
            chosen = found & is_random[rows]
            b = _replaced(b, rows[chosen], other, np.flatnonzero(chosen))
            rows = rows[~found]
        return a, b, label

    def _split(
        self, copies: Bounds, indices: Bounds, locations: Locations
    ) -> tuple[TextRanges, Bounds, NDArray[np.bool_], NDArray[np.bool_]]:
        """The text of each row; the token at which B begins, or the end of the text if there is no B; whether the text
        ends with a sentence; and whether B is random."""
        part = self.part(indices)
        keys = random.key(part.seed, copies, locations.document - part.document, locations.chunk)
        text, sentences = draw_sentences(self.chunks, locations, keys, self.short_probability)
        partners = self._partner(0, copies, indices)
        ordered = np.minimum(indices, partners) - part.sample, np.maximum(indices, partners) - part.sample
        pairs = random.key(part.seed, copies, *ordered)
        share = random.uniform(pairs, Purpose.SPLIT, 1)[:, 0]
        first, last = sentences.from_token(text.start), sentences.from_token(text.stop - 1)
        chosen = sentences.from_token(text.start + (share * (text.stop - text.start)).astype(np.int64))
        split = np.where(first < last, sentences.after(np.minimum(chosen, last - 1)), text.stop)
        is_random = random.uniform(pairs, Purpose.RANDOM_NEXT, 1)[:, 0] < RANDOM_NEXT_PROBABILITY
        return text, split, sentences.after(last) == text.stop, is_random

    def _partner(self, number: int, copies: Bounds, indices: Bounds) -> Bounds:
        """Partner `number` of each chunk, from its pool; the partner of a chunk's partner is the chunk itself."""
        ranks, begin, size = self.order.pool(copies, indices)
        keys = random.key(self.part(indices).seed, copies)
        draws = random.bits(random.streams(keys, Purpose.PARTNER), number)
        partners = ((random.to_unit(draws) * size).astype(np.int64) - (ranks - begin)) % size
        return self.order.at_rank(copies, begin + partners)

    def _other(
        self,
        number: int,
        copies: Bounds,
        indices: Bounds,
        documents: Bounds,
        sizes: Bounds,
        ends: NDArray[np.bool_],
    ) -> tuple[TextRanges, NDArray[np.bool_]]:
        """The first stretch of `sizes` tokens in each partner's text that begins with a sentence and ends with one if
        and only if `ends` is true; and whether there is one, in another document.

        The first partner is searched from the beginning of its B on, the others from the beginning of their chunk.
        """
        partners = self._partner(number, copies, indices)
        locations = self.chunks.locate(partners)
        if number == 0:
            begin = self._split(copies, partners, locations)[1]
        else:
            begin = locations.text.start + locations.chunk * self.chunks.stride
        flags = flags_around(self.chunks.corpus, locations.text, begin - 1, 2 * self.chunks.longest)
        is_end = flags & SENTENCE_END != 0
        row, column = np.nonzero(is_end)
        last = column + sizes[row]
        inside = (last <= (locations.text.stop - begin)[row]) & (last < is_end.shape[1])
        row, column, last = row[inside], column[inside], last[inside]
        fits = is_end[row, last] == ends[row]
        row, first = np.unique(row[fits], return_index=True)
        start = begin.copy()
        start[row] += column[fits][first]
        found = np.zeros(len(indices), bool)
        found[row] = True
        is_other = abs(partners - indices) > 3  # in a corpus of one document, whose stretch may lie two chunks on
        found &= np.where(self.part(indices).documents > 1, locations.document != documents, is_other)
        return locations.text._replace(start=start, stop=start + sizes), found


def draw_sentences(
    chunks: CorpusChunks, locations: Locations, keys: Keys, short_probability: float
) -> tuple[TextRanges, Sentences]:
    """The text of each row: a chunk, or with `short_probability` some of its sentences.

    They begin with a random one and continue until they reach a length drawn uniformly from 2..longest.
    """
    text, flags, origin = chunks.bounds(locations)
    start, stop = text.start, text.stop
    sentences = Sentences(flags, origin)
    is_short = random.uniform(keys, Purpose.SHORT, 1)[:, 0] < short_probability
    targets = 2 + random.integers(keys, Purpose.TARGET_LENGTH, 1, chunks.longest - 1)[:, 0]
    first, last = sentences.from_token(start), sentences.from_token(stop - 1)
    skipped = random.integers(keys, Purpose.FIRST_SENTENCE, 1, (last - first + 1)[:, None])[:, 0] * is_short
    start = np.where(skipped > 0, sentences.after(first + skipped - 1), start)
    reached = sentences.from_token(start + targets - 1)
    stop = np.where(is_short & (reached < last), sentences.after(reached), stop)
    return text._replace(start=start, stop=stop), sentences


def _replaced(text: TextRanges, rows: Bounds, other: TextRanges, other_rows: Bounds) -> TextRanges:
    """`text` in which `rows` are replaced by `other_rows` of `other`."""
    maps = text.maps.copy()
    for row, number in zip(rows.tolist(), other_rows.tolist(), strict=True):
        maps[row] = other.maps[number]
    arrays = [values.copy() for values in text[1:]]
    for values, new in zip(arrays, other[1:], strict=True):
        values[rows] = new[other_rows]
    return TextRanges(maps, *arrays)


@lru_cache
def _log_single(location: str, split: str) -> None:
    log.info(
        "%s: a single document in its %s split, so a random next sentence comes from another part of it",
        location,
        split,
    )


@lru_cache
def _log_narrow(location: str, split: str, pools: int) -> None:
    log.warning(
        "%s: some of the %d pools of its %s split hold a single document, whose rows have no next sentence to exchange "
        "and no label; raise train.data.pool_tokens",
        *(location, pools, split),
    )


def pair_statistics(batches: list[Rows]) -> list[tuple[str, str]]:
    """How many rows have a next-sentence label, and whether lengths predict it; for `reread inspect`."""
    label = np.concatenate([rows["next_sentence_label"] for rows in batches])
    tokens, second = (
        np.concatenate([rows[name].sum(axis=1) for rows in batches])[label != IGNORED]
        for name in ("attention_mask", "token_type_ids")
    )
    rows, label = len(label), label[label != IGNORED]
    found = [
        ("rows with a next-sentence label", percentage(len(label), rows)),
        ("… of them random", percentage(int(label.sum()), len(label))),
    ]
    if len(label) > 1:
        by = {"|A|": tokens - second, "|B|": second, "|A|+|B|": tokens}
        guesses = ", ".join(f"{100 * guessed(lengths, label):.1f} % by {name}" for name, lengths in by.items())
        larger = max(label.mean(), 1 - label.mean())
        found.append(("… guessed from lengths alone", f"{guesses}; {100 * larger:.1f} % are of one class"))
    return found


def guessed(lengths: NDArray[np.int64], label: NDArray[np.int64]) -> float:
    """The share of rows whose label (0 or 1) is the majority label at their length, by tenfold cross-validation.

    If it is well above the share of the larger class, a model can predict the label from the length.
    """
    fold = np.arange(len(label)) % min(10, len(label))
    counts = np.zeros((fold.max() + 1, lengths.max() + 1, 2))
    np.add.at(counts, (fold, lengths, label), 1)
    others = (counts.sum(axis=0) - counts)[fold, lengths]
    commoner = np.where(others[:, 0] == others[:, 1], label.mean() >= 0.5, others.argmax(axis=1))
    return float((commoner == label).mean())
