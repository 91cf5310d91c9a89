"""Documents cut into segments for models with memory (ERNIE-Doc, Ding et al. 2021, section 3).

How document i is read in copy c is a pure function of (corpus, settings, seed, c, i). For the segment-reordering task
(section 3.4) its text is cut into 1 to m chunks, which are permuted; the permuted text is cut into
segments of at most `sequence_length` - 2 tokens. A row is tokens, [SEP], padding, and [CLS] in the last position.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import count as numbers
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import Corpus
from reread.training.data.batch import IGNORED, Rows, percentage
from reread.training.data.dataset import Dataset, MaskedDataset
from reread.training.data.order import random
from reread.training.data.order.random import Purpose
from reread.training.data.rows.cut_documents import (
    CutDocument,
    SegmentSettings,
    chunk_ends,
    permuted,
    segment_bounds,
    stretch_of,
    word_reach,
)
from reread.training.data.rows.lanes import Lanes

LEAST_DOCUMENTS = 8
"""No document is more than 1 / `LEAST_DOCUMENTS` of a sample."""
_LANES = 64
"""Rows that learn in each step that `statistics` counts."""


class SegmentDataset(Dataset[SegmentSettings]):
    """Documents, and rows of their segments. Epoch e shows copy e % copies; `len()` is the number of documents."""

    @abstractmethod
    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, document) of each position [B] of the endless stream."""

    @abstractmethod
    def read(
        self, copies: NDArray[np.int64], documents: NDArray[np.int64], *, longest: int | None = None
    ) -> list[CutDocument]:
        """Documents [B] in copies [B]. A document of more than `longest` tokens is replaced by a stretch of that
        length, whose beginning is drawn uniformly.

        Raises `UserError` if a block was altered on disk.
        """

    @abstractmethod
    def rows(self, documents: list[CutDocument], segments: list[int], learns: NDArray[np.bool_]) -> Rows:
        """Segments `segments` [B] of `documents` [B]: input_ids, attention_mask and labels int32 [B, L], and
        continues_word bool [B, L].

        A row that does not learn (in a skim) has the same masked ids as the one that does, and no labels: if the skim
        read the unmasked text, its memory would leak the answers to the reading that learns.
        """

    def lanes(
        self,
        total: int,
        lanes: range,
        cursors: NDArray[np.int64] | None = None,
        *,
        stagger: bool = True,
        longest: int | None = None,
    ) -> Lanes:
        """Lanes `lanes` out of `total`, from `cursors` [n, 3] on; see `reread.training.data.rows.lanes.Lanes`."""
        return Lanes(self, total, lanes, cursors, stagger=stagger, longest=longest)

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Rows of one document after another; for a skim only the last segment."""
        for document in self._cut_documents():
            title = f"document {document.number}, copy {document.copy}"
            if self.settings.reorder_chunks > 1:
                begins = sorted(start for start, _ in document.chunks)
                order = " ".join(str(begins.index(start)) for start, _ in document.chunks)
                title += f", chunks in the order {order} (label {document.label})"
            sequence = [(True, segment) for segment in range(document.segments)]
            if self.settings.retrospective:
                sequence.insert(0, (False, document.segments - 1))
            for learns, segment in sequence:
                row = self.rows([document], [segment], np.array([learns]))
                yield f"{title}: {'learn' if learns else 'skim'}, segment {segment + 1} of {document.segments}", row

    def counted(self, rows: int) -> Iterator[Rows]:
        segments = ((document, number) for document in self._cut_documents() for number in range(document.segments))
        while batch := list(islice(segments, min(512, rows))):
            rows -= len(batch)
            yield self.rows([one for one, _ in batch], [number for _, number in batch], np.ones(len(batch), bool))

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        rows, documents = sum(len(batch["labels"]) for batch in batches), list[CutDocument]()
        for document in self._cut_documents():  # documents that begin in these rows
            if rows <= 0:
                break
            documents.append(document)
            rows -= document.segments
        lengths = [document.segments for document in documents]
        found = [("segments a document", f"{np.mean(lengths):.1f}, {max(lengths):,} at most")]
        if self.settings.reorder_chunks > 1:
            chunks = Counter(len(document.chunks) for document in documents)
            found += [
                (f"documents in {number} chunks", f"{percentage(chunks[number], len(documents))} of {len(documents):,}")
                for number in sorted(chunks)
            ]
        if self.settings.retrospective:
            lanes = self.settings.lanes(_LANES)
            learning = [int(rows["learns"].sum()) for rows, _ in islice(self.lanes(lanes, range(lanes)), 32)]
            mean = f"{np.mean(learning):.0f}, {min(learning)} to {max(learning)}"
            found.append((f"rows of a step that learn, in {lanes} lanes", mean))
        return [*found, ("documents an epoch, copies", f"{len(self):,} x {self.settings.copies}")]

    def _cut_documents(self) -> Iterator[CutDocument]:
        """Documents from the beginning of the stream, without end."""
        for begin in numbers(step=16):
            yield from self.read(*self.locate(np.arange(begin, begin + 16)))


class Segments(MaskedDataset[SegmentSettings], SegmentDataset):
    """The documents of a corpus."""

    def __init__(self, corpus: Corpus, settings: SegmentSettings, seed: int) -> None:
        super().__init__(corpus, settings, seed, corpus.block_documents)
        self._capacity = settings.sequence_length - 2

    def read(
        self, copies: NDArray[np.int64], documents: NDArray[np.int64], *, longest: int | None = None
    ) -> list[CutDocument]:
        most = self.settings.reorder_chunks
        keys = random.key(self.seed, copies, documents)
        counts = random.integers(keys, Purpose.CHUNK_COUNT, 1, most)[:, 0] + 1
        cuts = random.uniform(keys, Purpose.CHUNK_CUT, most - 1).tolist()
        orders = random.uniform(keys, Purpose.CHUNK_ORDER, 1)[:, 0].tolist()
        stretches = random.uniform(keys, Purpose.STRETCH, 1)[:, 0].tolist()
        drawn = zip(copies.tolist(), documents.tolist(), counts.tolist(), cuts, orders, stretches, strict=True)
        found = []
        for copy, number, count, cut, order, stretch in drawn:
            ids, flags = self.corpus.document(number)
            if longest is not None and len(ids) > longest:
                part = stretch_of(flags, longest, stretch)
                ids, flags = ids[part], flags[part]
            chunks, label = permuted(chunk_ends(flags, self.settings.cut), count, cut, order)
            bounds = segment_bounds(flags, chunks, self._capacity)
            found.append(CutDocument(copy, number, ids, flags, chunks, label, bounds))
        return found

    def sample(self, segments: int) -> tuple[int, int | None]:
        """A sample of the split that is read in at most `segments` segments: (number of documents, `longest`).

        It has the first documents of epoch 0, in their random order. Documents are whole unless one would be more than
        an eighth of the sample; then longer ones are stretches of `longest` tokens, as in `read`. If the whole split
        fits, it is the sample.
        """
        surely = self._capacity - word_reach(self._capacity)  # tokens that always fit in a segment
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

    def rows(self, documents: list[CutDocument], segments: list[int], learns: NDArray[np.bool_]) -> Rows:
        parts = [
            (document, a, b)
            for document, segment in zip(documents, segments, strict=True)
            for a, b in document.parts(segment)
        ]
        lengths = np.array(
            [one.bounds[s + 1] - one.bounds[s] for one, s in zip(documents, segments, strict=True)], np.int64
        )
        columns = self.settings.sequence_length
        column = np.arange(columns, dtype=np.min_scalar_type(columns))
        is_text = column < lengths.astype(column.dtype)[:, None]
        attention = column <= lengths.astype(column.dtype)[:, None]
        attention[:, -1] = True
        ids = np.full(is_text.shape, self.special["pad"], np.int32)
        ids[is_text] = np.concatenate([document.ids[a:b] for document, a, b in parts])
        ids[np.arange(len(ids)), lengths] = self.special["sep"]
        ids[:, -1] = self.special["cls"]
        flags = np.zeros(is_text.shape, np.uint8)
        flags[is_text] = np.concatenate([document.flags[a:b] for document, a, b in parts])
        keys = random.key(self.seed, [one.copy for one in documents], [one.number for one in documents], segments)
        rows = self._masked(ids, flags, is_text, lengths + 2, keys)
        rows["labels"][~learns] = IGNORED
        return {**rows, "attention_mask": attention.astype(np.int32)}

    def at(self, copies: NDArray[np.int64], documents: NDArray[np.int64]) -> Rows:
        """The first segments of documents [B] in copies [B], as rows that learn."""
        return self.rows(self.read(copies, documents), [0] * len(documents), np.ones(len(documents), bool))

    def _lengths(self) -> Iterator[int]:
        """Number of tokens in each document, in the order of epoch 0; reads no text."""
        ends = self.corpus.block_documents
        for begin in range(0, len(self), 1024):
            positions = np.arange(begin, min(begin + 1024, len(self)))
            for document in self.order.locate(positions)[1].tolist():
                block = int(np.searchsorted(ends, document, side="right")) - 1
                start, stop = self.corpus.block_offsets(block)[document - ends[block] :][:2]
                yield int(stop - start)
