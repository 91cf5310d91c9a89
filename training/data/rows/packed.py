"""Full rows of concatenated documents, cut to the length (RoBERTa's FULL-SENTENCES, Liu et al. 2019, section 4.2).

A split is a ring of positions: its documents in corpus order, a [SEP] after each, the first again after the last. Row i
of copy c is [CLS], the sequence_length - 2 positions from i * (sequence_length - 2) + shift(c) on, [SEP]. The shift
differs between copies, so each copy cuts the text elsewhere. The last row of an epoch is filled up from the beginning
of the ring: every row is full, and every token is in one row of an epoch, except for less than a row of tokens in two.
A split too short for a row gives one padded row.

Documents stay in corpus order, as in RoBERTa: neighbours on disk are read together, and text from the same source
shares rows. Rows still come in a random order.

A block of documents that begins with token t and document d begins at position t + d. The ends of its documents are
looked up in its offsets on disk, so nothing is kept in memory per document.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.corpus import Corpus
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.dataset import Shares
from reread.training.data.order import random
from reread.training.data.rows.samples import MaskedRows, frame
from reread.training.data.settings import LONGEST, MaskedSettings, MaskingSettings


class PackedSettings(MaskedSettings):
    """Settings of full rows cut from one stream of documents (RoBERTa's FULL-SENTENCES, Liu et al. 2019, section 4.2),
    as in Longformer's continued pretraining."""

    independent_rows = True

    kind: Literal["packed"]
    sequence_length: int = Field(default=4096, ge=8, le=LONGEST)
    """Tokens in each row, including [CLS] and [SEP]."""
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each epoch is one copy with its own cuts and masks; the copies repeat in turn."""
    masking: MaskingSettings = MaskingSettings()
    separate_documents: bool = False
    """Whether a token attends to its own document alone, whose positions begin anew, as transformers' encoders can
    (bert, roberta, modernbert, electra); else to the whole row, as RoBERTa was trained."""

    def blank(self, rows: int) -> Rows:
        batch = super().blank(rows)
        return batch | {"documents": np.zeros_like(batch["input_ids"])} if self.separate_documents else batch


class _Stretch(NamedTuple):
    """Consecutive positions in one block."""

    ids: NDArray[Any]
    flags: NDArray[np.uint8]
    ends: NDArray[np.int64]
    """Positions with a [SEP], numbered over all rows of the batch; the others are tokens."""


class Packed(MaskedRows[PackedSettings]):
    """Full rows, in each epoch one for every sequence_length - 2 positions of a split."""

    joins_documents = True

    def __init__(self, corpus: Corpus, settings: PackedSettings, seed: int) -> None:
        sizes, self._step = corpus.block_tokens + corpus.block_documents, settings.sequence_length - 2
        super().__init__(
            corpus, settings, seed, -(-sizes // self._step)
        )  # rows are counted by the position at which copy 0 begins them
        self._before_block = sizes.data
        self._positions = self._before_block[-1]
        self.size = min(self._step, self._positions)
        """Positions of a row."""

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64], shares: Shares = None) -> Rows:
        keys = random.key(self.seed, copies, indices)
        return self._rows(self.stretches(copies, indices, range(len(indices))), keys, shares)

    def stretches(
        self, copies: NDArray[np.int64], indices: NDArray[np.int64], rows: Iterable[int]
    ) -> "Iterator[_Stretch]":
        """The stretches of samples [B] in copies [B], which are these `rows` of a batch."""
        begins = (indices * self._step + copies * self._step // self.settings.copies) % self._positions
        for row, begin in zip(rows, begins.tolist(), strict=True):
            yield from self._stretches(begin, self.size, row * self.size)

    def _rows(self, drawn: "Iterable[_Stretch]", keys: NDArray[np.uint64], shares: Shares) -> Rows:
        """Rows made of the stretches `drawn`, masked by their keys [B]."""
        stretches, size = [*drawn], self.size
        lengths = np.full(len(keys), size + 2)
        rows = frame(lengths, self.settings.sequence_length)
        is_text = rows["attention_mask"] == 1
        ids = np.full(is_text.shape, self.special["pad"], np.int32)
        ids[:, 0], ids[:, size + 1] = self.special["cls"], self.special["sep"]
        is_text[:, [0, size + 1]] = False
        rows_ended, ends = np.divmod(np.concatenate([stretch.ends for stretch in stretches]), size)
        ids[rows_ended, ends + 1] = self.special["sep"]
        is_text[rows_ended, ends + 1] = False
        ids[is_text] = np.concatenate([stretch.ids for stretch in stretches])
        flags = np.zeros(ids.shape, np.uint8)
        flags[is_text] = np.concatenate([stretch.flags for stretch in stretches])
        if self.settings.separate_documents:
            ended = np.zeros(ids.shape, np.int32)
            ended[rows_ended, ends + 2] = 1  # a document ends with its [SEP]
            rows["documents"] = np.where(rows["attention_mask"] == 1, ended.cumsum(axis=1, dtype=np.int32), -1)
        return rows | self._masked(ids, flags, is_text, lengths, keys, shares)

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        documents = np.concatenate([self._documents(rows) for rows in batches])
        return [
            ("documents a row", f"{np.mean(documents):.1f}, {max(documents):,} at most"),
            *super().statistics(batches),
        ]

    def _documents(self, rows: Rows) -> NDArray[np.int64]:
        """Number of stretches of text [B] into which special tokens divide each row."""
        original = np.where(rows["labels"] != IGNORED, rows["labels"], rows["input_ids"])
        text = (rows["attention_mask"] == 1) & ~np.isin(original, [self.special["cls"], self.special["sep"]])
        return (text & ~np.pad(text, ((0, 0), (1, 0)))[:, :-1]).sum(axis=1)

    def _stretches(self, begin: int, size: int, done: int) -> Iterator[_Stretch]:
        """`size` positions of the ring from `begin` on, the first of which is position `done` of the batch."""
        while size:
            number = bisect_right(self._before_block, begin) - 1
            offsets = self.corpus.block_offsets(number)
            start = begin - self._before_block[number]
            stop = min(start + size, self._before_block[number + 1] - self._before_block[number])
            first, last = _ended_before(offsets.data, start), _ended_before(offsets.data, stop)
            ids, flags = self.corpus.text(number, start - first, stop - last)
            ends = offsets[first + 1 : last + 1] + np.arange(first + done - start, last + done - start)
            yield _Stretch(ids, flags, ends)
            size, done = size - (stop - start), done + stop - start
            begin = (begin + stop - start) % self._positions


def _ended_before(offsets: memoryview, position: int) -> int:
    """The number of documents in a block whose [SEP] is before `position`; that of document i is at offsets[i + 1] +
    i."""
    return bisect_left(range(len(offsets) - 1), position, key=lambda document: offsets[document + 1] + document)


def borders(documents: NDArray[Any]) -> NDArray[np.int64]:
    """[n + 1]: where each of the n documents of rows [B, L] begins in [B * L], and B * L. `documents` has equal numbers
    for tokens of one document; padding counts as one."""
    begins = np.ones(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return np.append(np.flatnonzero(begins), documents.size)
