"""Corpus -> rows of a batch: sample i of copy c is a pure function of (corpus, settings, seed, c, i)."""

from hashlib import md5
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, Corpus
from preprocessing.errors import UserError
from preprocessing.settings import Settings
from training.config import DataSettings
from training.data import random
from training.data.chunks import Chunks, Text, read_flags, read_ids
from training.data.masking import mask
from training.data.order import locate
from training.data.pairs import draw_pairs, draw_sentences

Rows = dict[str, NDArray[Any]]


class Samples:
    """Samples drawn from a corpus when they are asked for.

    A pass has one sample a chunk of the corpus (`training.data.chunks`). Pass p shows copy p % copies, in an order of
    its own.
    """

    def __init__(self, corpus: Corpus, settings: DataSettings, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        specials = 3 if settings.next_sentence else 2
        self._chunks = Chunks(corpus, settings.sequence_length - specials)
        tokenizer = corpus.manifest.tokenizer
        self.special = special_ids(tokenizer)
        self.vocab_size: int = tokenizer["vocab_size"]
        self._replacements = np.setdiff1d(np.arange(self.vocab_size), list(self.special.values()))
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        # Once a block of this size was freed, glibc keeps smaller ones for reuse: else each call's arrays page-fault.
        np.empty(1 << 24, np.uint8)

    def __len__(self) -> int:
        """Samples of one pass."""
        return len(self._chunks)

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal samples at every position."""
        return samples_fingerprint(self.corpus_fingerprint, self.corpus.split, self.settings, self.seed)

    def rows(self, positions: NDArray[np.int64]) -> Rows:
        """The samples at positions [B] of the endless stream, each int32 [B, L]:

        input_ids, token_type_ids, attention_mask, labels (-100 where nothing is predicted), and with `next_sentence`
        next_sentence_label [B], 0 where B follows A and 1 where it is random.
        """
        rows = self.rows_with_words(positions)
        del rows["continues_word"]
        return rows

    def rows_with_words(self, positions: NDArray[np.int64]) -> Rows:
        """The same with continues_word, bool [B, L]: whether a token continues the word of the token before it."""
        passes, indices = locate(positions, len(self), self.seed)
        return self.at(passes % self.settings.copies, indices)

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        """The same by copy [B] and number in source order [B]."""
        places = self._chunks.locate(indices)
        keys = random.key(self.seed, copies, places.document, places.chunk)
        short = self.settings.short_sequence_probability
        if self.settings.next_sentence:
            first, second, label = draw_pairs(self._chunks, places, keys, short)
            return {**self._assemble([first, second], keys), "next_sentence_label": label}
        text, _, _ = draw_sentences(self._chunks, places, keys, short)
        return self._assemble([text], keys)

    def verify(self) -> None:
        """Read the corpus once; raises `UserError` for the first block that differs from what was written."""
        self.corpus.verify()

    def _assemble(self, texts: list[Text], keys: NDArray[np.uint64]) -> Rows:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], padded and masked."""
        sizes = [text.stop - text.start + 1 for text in texts]
        separators = np.cumsum(np.stack(sizes, axis=1), axis=1)
        lengths = separators[:, -1] + 1
        rows = frame(separators[:, 0] + 1, lengths, self.settings.sequence_length)
        is_text = rows["attention_mask"] == 1
        is_text[:, 0] = False
        np.put_along_axis(is_text, separators, False, axis=1)
        ids = np.full(is_text.shape, self.special["pad"], np.int32)
        ids[:, 0] = self.special["cls"]
        np.put_along_axis(ids, separators, self.special["sep"], axis=1)
        ids[is_text] = read_ids(self.corpus.manifest.dtype, *texts)
        flags = np.zeros(ids.shape, np.uint8)
        flags[is_text] = read_flags(*texts)
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
        return {"input_ids": ids, **rows, "labels": labels, "continues_word": continues}


def frame(first: NDArray[Any], lengths: NDArray[Any], columns: int) -> Rows:
    """token_type_ids and attention_mask of rows [B] of `lengths` tokens, of which `first` belong to segment 0."""
    small = np.min_scalar_type(columns)
    column = np.arange(columns, dtype=small)
    attention = column < lengths.astype(small)[:, None]
    types = attention & (column >= first.astype(small)[:, None])
    return {"token_type_ids": types.astype(np.int32), "attention_mask": attention.astype(np.int32)}


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


def samples_fingerprint(corpus_fingerprint: str, split: str, settings: Settings, seed: int) -> str:
    values = [corpus_fingerprint, split, str(seed), settings.model_dump_json(exclude={"corpus"})]
    return md5("\n".join(values).encode()).hexdigest()
