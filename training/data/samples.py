"""Corpus -> rows of a batch: sample i of copy c is a pure function of (corpus, settings, seed, c, i)."""

from abc import ABC, abstractmethod
from hashlib import md5
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, Corpus
from preprocessing.errors import UserError
from preprocessing.settings import Settings
from training.config import DataSettings, PackedSettings
from training.data import random
from training.data.chunks import Chunks, Text, read_flags, read_ids
from training.data.masking import mask
from training.data.order import locate
from training.data.pairs import Pairs, draw_sentences

Rows = dict[str, NDArray[Any]]
AnyRows = TypeVar("AnyRows", bound=DataSettings | PackedSettings)


class MaskedRows(ABC, Generic[AnyRows]):
    """Rows drawn from a corpus when they are asked for. Pass p shows copy p % copies, in an order of its own."""

    def __init__(self, corpus: Corpus, settings: AnyRows, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        tokenizer = corpus.manifest.tokenizer
        self.special = special_ids(tokenizer)
        self.vocab_size: int = tokenizer["vocab_size"]
        self._replacements = np.setdiff1d(np.arange(self.vocab_size), list(self.special.values()))
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        # Once a block of this size was freed, glibc keeps smaller ones for reuse: else each call's arrays page-fault.
        np.empty(1 << 24, np.uint8)

    @abstractmethod
    def __len__(self) -> int:
        """Rows of one pass."""

    @abstractmethod
    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        """What `rows_with_words` gives, by copy [B] and number in source order [B]."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal rows at every position."""
        return samples_fingerprint(self.corpus_fingerprint, self.corpus.split, self.settings, self.seed)

    def rows(self, positions: NDArray[np.int64]) -> Rows:
        """The rows at positions [B] of the endless stream, each int32 [B, L]:

        input_ids, attention_mask, labels (-100 where nothing is predicted), and of sentence pairs token_type_ids and
        next_sentence_label [B], 0 where B follows A and 1 where it is random.
        """
        rows = self.rows_with_words(positions)
        del rows["continues_word"]
        return rows

    def rows_with_words(self, positions: NDArray[np.int64]) -> Rows:
        """The same with continues_word, bool [B, L]: whether a token continues the word of the token before it."""
        passes, indices = locate(positions, len(self), self.seed)
        return self.at(passes % self.settings.copies, indices)

    def verify(self) -> None:
        """Read the corpus once; raises `UserError` for the first block that differs from what was written."""
        self.corpus.verify()

    def _masked(
        self,
        ids: NDArray[np.int32],
        flags: NDArray[np.uint8],
        is_text: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        keys: NDArray[np.uint64],
    ) -> Rows:
        """input_ids, labels and continues_word of rows [B, L] of `lengths` [B] tokens, of which `is_text` may be
        predicted; masks `ids` in place."""
        continues = (flags & CONTINUES_WORD).view(bool)
        labels = mask(
            ids,
            continues,
            is_text,
            lengths=lengths,
            keys=keys,
            settings=self.settings.masking,
            replacements=self._replacements,
            mask_id=self.special["mask"],
        )
        return {"input_ids": ids, "labels": labels, "continues_word": continues}


class Samples(MaskedRows[DataSettings]):
    """A pass has one row a chunk of the corpus (`training.data.chunks`)."""

    def __init__(self, corpus: Corpus, settings: DataSettings, seed: int) -> None:
        super().__init__(corpus, settings, seed)
        specials = 3 if settings.next_sentence else 2 if settings.special_tokens else 0
        self._chunks = Chunks(corpus, settings.sequence_length - specials)
        short = settings.short_sequence_probability
        self._pairs = Pairs(self._chunks, seed, short) if settings.next_sentence else None

    def __len__(self) -> int:
        return len(self._chunks)

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        places = self._chunks.locate(indices)
        keys = random.key(self.seed, copies, places.document, places.chunk)
        if self._pairs is not None:
            first, second, label = self._pairs.draw(copies, indices, places)
            return {**self._assemble([first, second], keys), "next_sentence_label": label}
        text, _ = draw_sentences(self._chunks, places, keys, self.settings.short_sequence_probability)
        return self._assemble([text], keys)

    def _assemble(self, texts: list[Text], keys: NDArray[np.uint64]) -> Rows:
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
        ids[is_text] = read_ids(self.corpus.manifest.dtype, *texts)
        flags = np.zeros(ids.shape, np.uint8)
        flags[is_text] = read_flags(*texts)
        return rows | self._masked(ids, flags, is_text, lengths, keys)


def frame(lengths: NDArray[Any], columns: int, first: NDArray[Any] | None = None) -> Rows:
    """attention_mask of rows [B] of `lengths` tokens; with `first`, how many of them belong to segment 0, also
    token_type_ids."""
    small = np.min_scalar_type(columns)
    column = np.arange(columns, dtype=small)
    attention = column < lengths.astype(small)[:, None]
    rows = {"attention_mask": attention.astype(np.int32)}
    if first is not None:
        rows["token_type_ids"] = (attention & (column >= first.astype(small)[:, None])).astype(np.int32)
    return rows


def special_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK] from a manifest's `tokenizer`.

    Raises `UserError` if it has them not: whole words are for language models.
    """
    names = ("pad", "unk", "cls", "sep", "mask")
    if missing := [name for name in names if name not in tokenizer]:
        raise UserError(
            f"data.corpus: made with a tokenizer of type {tokenizer['type']}, which has no token for "
            f"{', '.join(missing)}; train a language model on it (data.kind: stream), or preprocess with another one"
        )
    return {name: tokenizer[name] for name in names}


_DRAWING = 2
"""Raised whenever the same settings draw other rows, so that no run goes on with other rows unnoticed."""


def samples_fingerprint(corpus_fingerprint: str, split: str, settings: Settings, seed: int) -> str:
    """Where the corpus lies is no part of it."""
    values = [str(_DRAWING), corpus_fingerprint, split, str(seed), settings.model_dump_json(exclude={"corpus"})]
    return md5("\n".join(values).encode()).hexdigest()
