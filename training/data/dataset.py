"""What a kind of data is to those who read it: the trainer, `reread inspect` and the estimate."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, Corpus
from preprocessing.errors import UserError
from training.data.han import FEWEST_HAN_TOKENS, LOWEST_WORD_SHARE, count_han
from training.data.masking import mask
from training.data.rows import IGNORED, Rows
from training.data.settings import DataSettings, MaskedSettings

AnySettings = TypeVar("AnySettings", bound=DataSettings)
AnyMasked = TypeVar("AnyMasked", bound=MaskedSettings)


class Dataset(ABC, Generic[AnySettings]):
    """A split of a corpus, read as a `data` section says. `len()` is the number of its samples."""

    joins_documents: ClassVar[bool] = False
    """Whether a row may hold several documents, a [SEP] after each."""

    settings: AnySettings
    seed: int
    vocab_size: int
    special: dict[str, int]
    """Ids of special tokens by name: pad, unk, cls, sep, mask, eos, as far as the tokenizer has them."""
    tokenizer_folder: Path
    corpus_fingerprint: str

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal rows at every step."""

    @abstractmethod
    def verify(self) -> None:
        """Read everything once; raises `UserError` for the first block that differs from what was written."""

    def check(self, settings: AnySettings, seed: int) -> None:
        """Raises `UserError` if training with `settings` and `seed` on this would not do what they ask for."""

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Titles and rows [1, L] with continues_word, from the beginning of the stream, for `reread inspect`."""
        corpus, kind = self.settings.corpus, self.settings.kind
        raise UserError(f"{corpus}: data.kind is {kind}, text in which nothing is masked: nothing to show")

    def counted(self, rows: int) -> Iterator[Rows]:
        """The first `rows` rows that learn, with continues_word, in batches, for the statistics of `reread inspect`."""
        raise NotImplementedError

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        """What is worth knowing of this kind of data alone: names and values, counted over `batches` of `counted`."""
        return []


class MaskedDataset(Dataset[AnyMasked]):
    """Rows drawn from a corpus when they are asked for. Pass p over it shows copy p % copies."""

    def __init__(self, corpus: Corpus, settings: AnyMasked, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        tokenizer = corpus.manifest.tokenizer
        self.special = special_ids(tokenizer)
        self.vocab_size = tokenizer["vocab_size"]
        self._replacements = np.setdiff1d(np.arange(self.vocab_size), list(self.special.values()))
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        # Once a block of this size was freed, glibc keeps smaller ones for reuse: else each call's arrays page-fault.
        np.empty(1 << 24, np.uint8)

    @property
    def fingerprint(self) -> str:
        return samples_fingerprint(self.corpus_fingerprint, self.corpus.split, self.settings, self.seed)

    def verify(self) -> None:
        self.corpus.verify()

    def check(self, settings: AnyMasked, seed: int) -> None:
        """Raises `UserError` if whole words or spans are masked and Chinese words are not known, and if no token is
        masked."""
        strategy, folder = self.settings.masking.strategy, self.corpus.folder
        if strategy != "token":
            han, in_words = count_han(self.corpus)
            if han >= FEWEST_HAN_TOKENS and in_words < LOWEST_WORD_SHARE * han:
                raise UserError(
                    f"{folder}: data.masking.strategy is {strategy}, but only {in_words:,} of {han:,} Chinese tokens "
                    "are in words of several tokens, so single characters would be masked; run `reread preprocess` "
                    "again, or set data.masking.strategy=token"
                )
        if len(self):
            indices = np.linspace(0, len(self) - 1, min(len(self), 64)).astype(np.int64)
            if (self.at(np.zeros_like(indices), indices)["labels"] == IGNORED).all():
                raise UserError(f"{folder}: data.masking: no token of {len(indices)} rows is masked")

    @abstractmethod
    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        """The rows of samples `indices` [B], in source order, in `copies` [B]; of long samples the first rows."""

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


def special_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK] from a manifest's `tokenizer`.

    Raises `UserError` if it lacks one: a vocabulary of whole words is for language models.
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


def samples_fingerprint(corpus_fingerprint: str, split: str, settings: DataSettings, seed: int) -> str:
    """Where the corpus lies is no part of it."""
    values = [str(_DRAWING), corpus_fingerprint, split, str(seed), settings.model_dump_json(exclude={"corpus"})]
    return md5("\n".join(values).encode()).hexdigest()
