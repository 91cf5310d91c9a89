"""Documents cut into segments for models with memory (ERNIE-Doc, Ding et al. 2021, section 3).

How document i is read in copy c is a pure function of (corpus, settings, seed, c, i). For the segment-reordering task
(section 3.4) its text is cut at sentence ends into 1 to m chunks, which are permuted; the permuted text is cut into
segments of at most `sequence_length` - 2 tokens. A segment is fed as tokens, [SEP], padding, [CLS] in the last place.
"""

from array import array
from bisect import insort
from collections.abc import Iterator
from itertools import permutations
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus
from training.config import SegmentSettings
from training.data import random
from training.data.masking import IGNORED, mask
from training.data.order import locate
from training.data.random import Purpose
from training.data.samples import Rows, samples_fingerprint, special_ids

LONGEST_WORD = 32
"""A segment ends before a word that it would cut, if that word began within so many tokens."""

LEAST_DOCUMENTS = 8
"""No document is a larger part of a sample than one in so many."""

_ORDERS = [list(permutations(range(chunks))) for chunks in range(7)]
_BEGINS_WORD = bytes(not flags & int(CONTINUES_WORD) for flags in range(256))


def reorder_classes(chunks: int) -> int:
    """Permutations of 1 to `chunks` chunks: 33 for 4 (section 3.4's K)."""
    return sum(factorial(number) for number in range(1, chunks + 1))


class Reading(NamedTuple):
    """A document as it is read in one copy."""

    copy: int
    document: int
    ids: NDArray[Any]
    flags: NDArray[np.uint8]
    chunks: list[tuple[int, int]]
    """(start, stop) of each chunk in the document, in the order in which they are read."""
    label: int
    """Which permutation that is, of `reorder_classes(m)`."""
    bounds: "array[int]"
    """Segment k is tokens bounds[k]..bounds[k + 1] of the permuted text."""

    @property
    def segments(self) -> int:
        return len(self.bounds) - 1

    def parts(self, segment: int) -> list[tuple[int, int]]:
        """(start, stop) in the document of the stretches of text a segment is made of: several at chunk borders."""
        begin, end = self.bounds[segment], self.bounds[segment + 1]
        parts = []
        for start, stop in self.chunks:
            if begin < stop - start and end > 0:
                parts.append((max(start, start + begin), min(stop, start + end)))
            begin -= stop - start
            end -= stop - start
        return parts


class Segments:
    """The documents of a corpus as readings and rows. Pass p over the corpus shows copy p % copies."""

    def __init__(self, corpus: Corpus, settings: SegmentSettings, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        tokenizer = corpus.manifest.tokenizer
        self.special = special_ids(tokenizer)
        self.vocab_size: int = tokenizer["vocab_size"]
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        self._replacements = np.setdiff1d(np.arange(self.vocab_size), list(self.special.values()))
        self._capacity = settings.sequence_length - 2
        self._reach = min(LONGEST_WORD, self._capacity // 4)
        # Once a block of this size was freed, glibc keeps smaller ones for reuse: else each call's arrays page-fault.
        np.empty(1 << 24, np.uint8)

    def __len__(self) -> int:
        """Documents of one pass."""
        return self.corpus.documents

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal readings of every document in every copy."""
        return samples_fingerprint(self.corpus_fingerprint, self.corpus.split, self.settings, self.seed)

    def verify(self) -> None:
        """Read the corpus once; raises `UserError` for the first block that differs from what was written."""
        self.corpus.verify()

    def read(
        self, copies: NDArray[np.int64], documents: NDArray[np.int64], *, longest: int | None = None
    ) -> list[Reading]:
        """Documents [B] in copies [B]. Of one with more tokens than `longest`, a stretch of at most so many is read and
        permuted as if it were the whole; where it begins is drawn, evenly over the document.

        Raises `UserError` where a block was altered on disk.
        """
        most = self.settings.reorder_chunks
        keys = random.key(self.seed, copies, documents)
        counts = random.integers(keys, Purpose.CHUNK_COUNT, 1, most)[:, 0] + 1
        cuts = random.uniform(keys, Purpose.CHUNK_CUT, most - 1).tolist()
        orders = random.uniform(keys, Purpose.CHUNK_ORDER, 1)[:, 0].tolist()
        places = random.uniform(keys, Purpose.STRETCH, 1)[:, 0].tolist()
        numbers = zip(copies.tolist(), documents.tolist(), counts.tolist(), cuts, orders, places, strict=True)
        readings = []
        for copy, document, count, cut, order, place in numbers:
            ids, flags = self.corpus.document(document)
            if longest is not None and len(ids) > longest:
                stretch = _stretch(flags, longest, place)
                ids, flags = ids[stretch], flags[stretch]
            chunks, label = self._permuted(flags, count, cut, order)
            readings.append(Reading(copy, document, ids, flags, chunks, label, self._bounds(flags, chunks)))
        return readings

    def sample(self, segments: int) -> tuple[int, int | None]:
        """A sample of the split that is read in at most `segments` segments: (number of documents, `longest`).

        They are the first documents of pass 0, in its random order, each whole; of one that would be more than an
        eighth of the sample, a stretch of `longest` tokens, as `read` takes it. Where all text fits, it is all text.
        """
        surely = self._capacity - self._reach  # tokens that fit in a segment, wherever words end
        for longest in (None, max(1, segments // LEAST_DOCUMENTS) * surely):
            documents = spent = 0
            for length in self._lengths():
                spent += -(-(length if longest is None else min(length, longest)) // surely)
                if spent > segments:
                    break
                documents += 1
            if documents == len(self):
                break
        return documents, longest

    def rows(self, readings: list[Reading], segments: list[int], learns: NDArray[np.bool_]) -> Rows:
        """Segment `segments` [B] of `readings` [B]: input_ids, attention_mask and labels int32 [B, L], and
        continues_word bool [B, L].

        A row that does not learn (a skim's) has the ids of the one that does, masks included, and no labels: were the
        skim to see the unmasked text, its memory would hand the answers to the pass that learns.
        """
        parts = [
            (reading, a, b)
            for reading, segment in zip(readings, segments, strict=True)
            for a, b in reading.parts(segment)
        ]
        lengths = np.array([r.bounds[s + 1] - r.bounds[s] for r, s in zip(readings, segments, strict=True)], np.int64)
        columns = self.settings.sequence_length
        column = np.arange(columns, dtype=np.min_scalar_type(columns))
        is_text = column < lengths.astype(column.dtype)[:, None]
        attention = column <= lengths.astype(column.dtype)[:, None]
        attention[:, -1] = True
        ids = np.full(is_text.shape, self.special["pad"], np.int32)
        ids[is_text] = np.concatenate([reading.ids[a:b] for reading, a, b in parts])
        ids[np.arange(len(ids)), lengths] = self.special["sep"]
        ids[:, -1] = self.special["cls"]
        flags = np.zeros(is_text.shape, np.uint8)
        flags[is_text] = np.concatenate([reading.flags[a:b] for reading, a, b in parts])
        continues = (flags & CONTINUES_WORD).view(bool)
        keys = random.key(self.seed, [r.copy for r in readings], [r.document for r in readings], segments)
        labels = mask(
            ids,
            continues,
            is_text,
            lengths=lengths + 2,
            keys=keys,
            settings=self.settings.masking,
            replacements=self._replacements,
            mask_id=self.special["mask"],
        )
        labels[~learns] = IGNORED
        rows = {"input_ids": ids, "attention_mask": attention.astype(np.int32), "labels": labels}
        return {**rows, "continues_word": continues}

    def at(self, copies: NDArray[np.int64], documents: NDArray[np.int64]) -> Rows:
        """The first segments of documents [B] in copies [B], as rows that learn."""
        return self.rows(self.read(copies, documents), [0] * len(documents), np.ones(len(documents), bool))

    def _lengths(self) -> Iterator[int]:
        """Tokens of each document, in the order of pass 0; no text is read for it."""
        ends = self.corpus.block_documents
        for begin in range(0, len(self), 1024):
            positions = np.arange(begin, min(begin + 1024, len(self)))
            for document in locate(positions, len(self), self.seed)[1].tolist():
                block = int(np.searchsorted(ends, document, side="right")) - 1
                start, stop = self.corpus.block_offsets(block)[document - ends[block] :][:2]
                yield int(stop - start)

    def _permuted(
        self, flags: NDArray[np.uint8], count: int, cut: list[float], order: float
    ) -> tuple[list[tuple[int, int]], int]:
        """The chunks in the order they are read in, and the permutation's label; drawn from numbers in [0, 1).

        A document with too few sentences has as many chunks as it has sentences, and the label of those.
        """
        size = len(flags)
        if count == 1:
            return [(0, size)], 0
        ends = np.flatnonzero(flags[:-1] & SENTENCE_END)
        count = min(count, len(ends) + 1)
        chosen: list[int] = []
        for number in range(count - 1):
            place = int(cut[number] * (len(ends) - number))  # among those not chosen yet
            for other in chosen:
                place += place >= other
            insort(chosen, place)
        cuts = [0, *(int(ends[place]) + 1 for place in chosen), size]
        rank = int(order * factorial(count))
        return [(cuts[chunk], cuts[chunk + 1]) for chunk in _ORDERS[count][rank]], reorder_classes(count - 1) + rank

    def _bounds(self, flags: NDArray[np.uint8], chunks: list[tuple[int, int]]) -> "array[int]":
        """Where segments begin in the permuted text, and its end: each as long as it can be without cutting a word."""
        size = len(flags)
        if size <= self._capacity:
            return array("i", (0, size))
        text = flags.tobytes()
        begins = b"".join([text[start:stop] for start, stop in chunks]).translate(_BEGINS_WORD)
        bounds, latest = array("i", (0,)), self._capacity
        while latest < size:
            found = begins.rfind(1, latest - self._reach, latest + 1)
            bounds.append(found if found >= 0 else latest)
            latest = bounds[-1] + self._capacity
        bounds.append(size)
        return bounds


def _stretch(flags: NDArray[np.uint8], longest: int, place: float) -> slice:
    """`longest` tokens of a longer document, from where a word begins; where that is, `place` in [0, 1) says."""
    latest = int(place * (len(flags) - longest + 1))
    begins = np.flatnonzero(flags[: latest + 1] & CONTINUES_WORD == 0)
    start = int(begins[-1]) if len(begins) else 0
    return slice(start, start + longest)
