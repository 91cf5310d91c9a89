"""Draws the rows of a batch from a corpus: sample i of copy c is a pure function of (corpus, settings, seed, c, i)."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from reread.preprocessing.corpus import Corpus
from reread.training.data.batch import Rows
from reread.training.data.dataset import AnyMasked, Dataset, MaskedDataset, Shares
from reread.training.data.order import random
from reread.training.data.order.chunks import CorpusChunks, TextRanges, read_flags, read_ids
from reread.training.data.rows.pairs import Pairs, Part, draw_sentences, pair_statistics
from reread.training.data.settings import LONGEST, MaskedSettings, MaskingSettings

_AT_ONCE = 512
"""Rows in a batch from `counted`."""


class RowSettings(MaskedSettings):
    """Settings of independent rows, as BERT reads them."""

    may_be_materialized = True
    independent_rows = True
    text_only_values = (False, True)

    kind: Literal["rows"] = "rows"
    sequence_length: int = Field(default=128, ge=8, le=LONGEST)
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each epoch is one copy with its own masks and pairs; the copies repeat in turn."""
    next_sentence: bool = True
    """BERT's sentence pairs, in equal lengths (`pairs.py`); if false, a row is one stretch of text."""
    special_tokens: bool = True
    """[CLS] and [SEP] around the text; if false, a row is text alone, as RAN reads it (only without pairs)."""
    short_sequence_probability: float = Field(default=0.1, ge=0, le=1)
    """Share of rows cut to a random shorter length (BERT)."""
    masking: MaskingSettings = MaskingSettings()

    @field_validator("special_tokens")
    @classmethod
    def _pairs_need_separators(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("next_sentence"):
            raise ValueError("false needs next_sentence: false, since a sentence pair is separated by [SEP]")
        return value

    @property
    def text_only(self) -> bool:
        return not self.special_tokens

    def blank(self, rows: int) -> Rows:
        batch = super().blank(rows)
        if self.next_sentence:
            batch |= {"token_type_ids": batch["input_ids"], "next_sentence_label": np.zeros(rows, np.int32)}
        return batch


class RowDataset(Dataset[AnyMasked]):
    """Independent rows. Each epoch has its own order; `len()` is the number of rows in one."""

    @abstractmethod
    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, number in corpus order) of the rows at positions [B] of the endless stream."""

    @abstractmethod
    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64], shares: Shares = None) -> Rows:
        """The rows of `rows_with_words` by copy [B] and number in corpus order [B], with `shares` [B] of predicted
        tokens."""

    def rows(self, positions: NDArray[np.int64], shares: Shares = None) -> Rows:
        """The rows at positions [B] of the endless stream, with `shares` [B] of predicted tokens, each int32 [B, L]:

        input_ids, attention_mask, labels (-100 where nothing is predicted), and for sentence pairs token_type_ids and
        next_sentence_label [B], 0 where B follows A and 1 where it is random.
        """
        rows = self.rows_with_words(positions, shares)
        del rows["continues_word"]
        return rows

    def rows_with_words(self, positions: NDArray[np.int64], shares: Shares = None) -> Rows:
        """`rows` with continues_word, bool [B, L]: whether a token continues the word of the token before it."""
        return self.at(*self.locate(positions), shares)

    def preview(self) -> Iterator[tuple[str, Rows]]:
        for number in count():
            yield f"row {number}", self.rows_with_words(np.arange(number, number + 1))

    def counted(self, rows: int) -> Iterator[Rows]:
        for begin in range(0, rows, _AT_ONCE):
            yield self.rows_with_words(np.arange(begin, min(begin + _AT_ONCE, rows)))

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        pairs = pair_statistics(batches) if "next_sentence_label" in batches[0] else []
        return [*pairs, ("samples an epoch, copies", f"{len(self):,} x {self.settings.copies}")]


class MaskedRows(MaskedDataset[AnyMasked], RowDataset[AnyMasked]):  # type: ignore[misc]
    """Independent rows drawn from a corpus."""


class Samples(MaskedRows[RowSettings]):
    """Independent rows. An epoch has one for every chunk of the corpus (`order/chunks.py`)."""

    def __init__(self, corpus: Corpus, settings: RowSettings, seed: int) -> None:
        specials = 3 if settings.next_sentence else 2 if settings.special_tokens else 0
        self._chunks = CorpusChunks(corpus, settings.sequence_length - specials)
        super().__init__(corpus, settings, seed, self._chunks.before_block)
        self._pairs = self._drawn_pairs()
        if self._pairs is not None:
            self._pairs.log_narrow()

    def part(self, indices: NDArray[np.int64]) -> Part:
        """The corpus of samples [B], or the corpora of each."""
        return Part(self.seed, 0, 0, self.corpus.documents)

    def _drawn_pairs(self) -> Pairs | None:
        short = self.settings.short_sequence_probability
        return Pairs(self._chunks, self.order, short, self.part) if self.settings.next_sentence else None

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64], shares: Shares = None) -> Rows:
        locations = self._chunks.locate(indices)
        part = self.part(indices)
        keys = random.key(part.seed, copies, locations.document - part.document, locations.chunk)
        if self._pairs is not None:
            first, second, label = self._pairs.draw(copies, indices, locations)
            return {**self._assemble([first, second], keys, shares), "next_sentence_label": label}
        text, _ = draw_sentences(self._chunks, locations, keys, self.settings.short_sequence_probability)
        return self._assemble([text], keys, shares)

    def _assemble(self, texts: list[TextRanges], keys: NDArray[np.uint64], shares: Shares) -> Rows:
        """[CLS] A [SEP], [CLS] A [SEP] B [SEP] or A alone, padded and masked; an empty B has no [SEP]."""
        framed = self.settings.special_tokens
        sizes = np.stack([text.stop - text.start for text in texts], axis=1)
        ends = np.cumsum(sizes + framed * (sizes > 0), axis=1)
        lengths = ends[:, -1] + framed
        rows = frame(lengths, self.settings.sequence_length, ends[:, 0] + 1 if len(texts) > 1 else None)
        is_text = rows["attention_mask"] == 1
        ids = np.full(is_text.shape, self.special["pad"], np.int32)
        if framed:
            is_text[:, 0] = False
            np.put_along_axis(is_text, ends, False, axis=1)
            ids[:, 0] = self.special["cls"]
            np.put_along_axis(ids, ends, self.special["sep"], axis=1)
        ids[is_text] = read_ids(self.corpus, *texts)
        flags = np.zeros(ids.shape, np.uint8)
        flags[is_text] = read_flags(self.corpus, *texts)
        return rows | self._masked(ids, flags, is_text, lengths, keys, shares)


def frame(lengths: NDArray[Any], columns: int, first: NDArray[Any] | None = None) -> Rows:
    """attention_mask of rows with `lengths` [B] tokens; token_type_ids if `first` [B] gives the tokens of segment 0."""
    small = np.min_scalar_type(columns)
    column = np.arange(columns, dtype=small)
    attention = column < lengths.astype(small)[:, None]
    rows = {"attention_mask": attention.astype(np.int32)}
    if first is not None:
        rows["token_type_ids"] = (attention & (column >= first.astype(small)[:, None])).astype(np.int32)
    return rows
