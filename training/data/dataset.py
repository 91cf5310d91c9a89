"""The interface of every kind of data, for the trainer, `reread inspect` and the estimate."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, Corpus
from reread.preprocessing.corpus.facts import corpus_card, corpus_facts
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import differences
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.masking.han import FEWEST_HAN_TOKENS, LOWEST_WORD_SHARE, count_han
from reread.training.data.masking.masking import mask
from reread.training.data.order.order import Order, ReadAhead, cut_pools
from reread.training.data.settings import CorpusSettings, DataSettings, MaskedSettings

AnySettings = TypeVar("AnySettings", bound=DataSettings)
AnyCorpus = TypeVar("AnyCorpus", bound=CorpusSettings)
AnyMasked = TypeVar("AnyMasked", bound=MaskedSettings)


Shares = NDArray[np.float64] | None
"""Of predicted tokens, of each row [B]; None: `masking.probability`."""

CHECKED_ROWS = 64
"""Rows of which a token must be masked."""


class Dataset(ABC, Generic[AnySettings]):
    """A split of a corpus, read with the settings of a `data` section. `len()` is the number of its samples."""

    joins_documents: ClassVar[bool] = False
    """Whether a row may hold several documents, a [SEP] after each."""

    settings: AnySettings
    seed: int
    vocab_size: int
    special: dict[str, int]
    """Name -> id of the tokenizer's special tokens, among pad, unk, cls, sep, mask and eos, and of marks that the model
    of a task looks for (paragraph, sentence)."""
    tokenizer_folder: Path
    corpus_fingerprint: str
    new_rows: Mapping[int, Sequence[int]] = {}
    """The tokens that `tokenizer.extend` added to the vocabulary, each with the old ids that it stands for."""

    @property
    def mixed(self) -> dict[str, "Dataset[Any]"]:
        """The datasets of a mixture by their names in figures; empty if this is no mixture."""
        return {}

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields of the settings that the latest evaluation chose, on these examples, such as thresholds."""
        return {}

    @property
    def compared(self) -> Mapping[str, str]:
        """Fingerprints of the files on which a run is scored, by the settings that name them."""
        return {}

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal rows at every step. A setting that is new in the program changes it."""

    @property
    def drawn_by(self) -> dict[str, Any]:
        """The values that determine the rows of a text: `seed` and `data`, without the fields that may change.

        They are kept in checkpoints.
        """
        return {"seed": self.seed, "data": self.settings.model_dump(mode="json", exclude=set(self.settings.may_change))}

    def changes_since(self, state: Mapping[str, Any], *, masks: bool = True) -> str:
        """The differences between `drawn_by` and that of a checkpoint's `state`, as `field: old -> new`; empty if none.
        Without `masks` those of masking do not count, which changes no row's place in the stream.

        A field that is newer than the checkpoint had its default. Checkpoints of an unreleased version have only a
        fingerprint, which does not say which field differs.
        """
        kept, now = state.get("drawn_by"), self.drawn_by
        if kept is None:
            return "" if state["samples"] == self.fingerprint else "train.data or train.seed"
        defaults = type(self.settings).model_construct().model_dump(mode="json", warnings=False)
        newer = {name: value for name, value in defaults.items() if name in now["data"]}
        before = {**kept, "data": _over(newer, kept["data"])}
        if not masks:
            before, now = ({**one, "data": {**one["data"], "masking": None}} for one in (before, now))
        return "; ".join(differences(before, now, "train"))

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Fingerprints and counts of the data that a run keeps."""

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """`facts`, and further facts for a model card."""

    @abstractmethod
    def verify(self) -> None:
        """Read everything once; raises `UserError` for the first block that was altered on disk."""

    def check(self, settings: AnySettings, seed: int) -> None:
        """Raises `UserError` if `settings` and `seed` cannot have their intended effect on this dataset."""

    def check_part(self, settings: AnySettings, seed: int) -> None:
        """`check` of a part of a mixture, without what the mixture checks on rows of all parts."""
        self.check(settings, seed)

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Titles and rows [1, L] with continues_word, from the beginning of the stream, for `reread inspect`.

        The label of a token that is not predicted, or not masked, is `IGNORED`.
        """
        raise NotImplementedError

    def counted(self, rows: int) -> Iterator[Rows]:
        """The first `rows` rows with a loss, with continues_word, in batches; only of masked text."""
        raise NotImplementedError

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        """Statistics specific to this kind of data: (name, value), counted over `batches` from `counted`."""
        return []


class CorpusDataset(Dataset[AnyCorpus]):
    """Rows drawn from a corpus on demand."""

    corpus: Corpus

    def facts(self) -> dict[str, Any]:
        return corpus_facts(self.corpus.manifest)

    def card(self) -> dict[str, Any]:
        return corpus_card(self.corpus.manifest)

    def verify(self) -> None:
        self.corpus.verify()


class PooledDataset(Dataset[AnyMasked]):
    """Samples in the order of `Order`. Epoch e shows copy e % copies; `len()` is the number of samples in an epoch."""

    order: Order
    split: str

    @property
    def fingerprint(self) -> str:
        return samples_fingerprint(self.corpus_fingerprint, self.split, self.settings, self.seed, self.order.pools)

    @property
    def drawn_by(self) -> dict[str, Any]:
        return drawn_from_pools(super().drawn_by, self.order.pools)

    def __len__(self) -> int:
        return self.order.samples

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, sample) of each position [B] of the endless stream."""
        return self.order.locate(positions)


class MaskedDataset(CorpusDataset[AnyMasked], PooledDataset[AnyMasked]):
    """Rows drawn from a corpus on demand, whose masked tokens are predicted."""

    def __init__(self, corpus: Corpus, settings: AnyMasked, seed: int, before_block: NDArray[np.int64]) -> None:
        """`before_block` [blocks + 1] is the number of samples before each block of the corpus."""
        self.corpus, self.settings, self.seed, self.split = corpus, settings, seed, corpus.split
        extents, pools = cut_pools(np.diff(corpus.block_tokens), settings.pool_tokens)
        self.order = Order(before_block[extents], pools, settings.copies, seed)

        def stretch(one: int) -> tuple[int, int]:
            """The blocks of an extent."""
            return int(extents[one]), int(extents[one + 1])

        self._read_ahead = ReadAhead(
            self.order,
            lambda one: corpus.read_ahead(*stretch(one)),
            lambda pool: corpus.use(map(stretch, pool)),
        )
        tokenizer = corpus.manifest.tokenizer
        self.special = special_ids(tokenizer)
        self.vocab_size, self.new_rows = tokenizer["vocab_size"], new_rows(tokenizer)
        self._replacements = np.delete(np.arange(self.vocab_size), list(self.special.values()))
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        # After a block of this size is freed, glibc keeps smaller ones for reuse; otherwise every call page-faults.
        np.empty(1 << 24, np.uint8)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, sample) of each position [B] of the endless stream; the next pool is read ahead."""
        self.follow(int(positions.max()))
        return super().locate(positions)

    def follow(self, position: int) -> None:
        """Read the next pool ahead, in step with what is read at `position`."""
        self._read_ahead.follow(position)

    def check(self, settings: AnyMasked, seed: int) -> None:
        """Raises `UserError` if no token is masked, or if whole words are but Chinese words are not marked."""
        self.check_part(settings, seed)
        if len(self):
            first = self.order.locate(np.arange(min(len(self), CHECKED_ROWS)))  # the first step reads them anyway
            check_masked(self.at(*first), self.corpus.location)

    def check_part(self, settings: AnyMasked, seed: int) -> None:
        strategy, location = self.settings.masking.strategy, self.corpus.location
        if strategy != "token":
            han, in_words = count_han(self.corpus)
            if han >= FEWEST_HAN_TOKENS and in_words < LOWEST_WORD_SHARE * han:
                raise UserError(
                    f"{location}: data.masking.strategy is {strategy}, but only {in_words:,} of {han:,} Chinese tokens "
                    "are in words of several tokens, so single characters would be masked; run `reread preprocess` "
                    "again, or set data.masking.strategy=token"
                )

    @abstractmethod
    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        """The rows of samples `indices` [B], in corpus order, in `copies` [B]; the first row of a long sample."""

    def _masked(
        self,
        ids: NDArray[np.int32],
        flags: NDArray[np.uint8],
        is_text: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        keys: NDArray[np.uint64],
        shares: Shares = None,
    ) -> Rows:
        """input_ids, labels and continues_word of rows [B, L] with `lengths` [B] tokens; masks `ids` in place.
        `is_text` [B, L] marks the tokens that may be predicted, of which `shares` [B] are (`mask`)."""
        continues = (flags & CONTINUES_WORD).view(bool)
        labels = mask(
            ids,
            continues,
            is_text,
            lengths=lengths,
            keys=keys,
            settings=self.settings.masking,
            shares=shares,
            replacements=self._replacements,
            mask_id=self.special["mask"],
            unknown_id=self.special["unk"],
        )
        return {"input_ids": ids, "labels": labels, "continues_word": continues}


def check_masked(rows: Rows, location: object) -> None:
    """Raises `UserError` if no token of `rows` is masked."""
    if (rows["labels"] == IGNORED).all():
        raise UserError(f"{location}: data.masking: no token of {len(rows['labels'])} rows is masked")


def special_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK] from a manifest's `tokenizer`.

    Raises `UserError` if one is missing: a vocabulary of whole words is for language models.
    """
    names = ("pad", "unk", "cls", "sep", "mask")
    if missing := [name for name in names if name not in tokenizer]:
        raise UserError(
            f"data.corpus: made with a tokenizer of type {tokenizer['type']}, which has no token for "
            f"{', '.join(missing)}; train a language model on it (data.kind: stream), or preprocess with another one"
        )
    return {name: tokenizer[name] for name in names}


def new_rows(tokenizer: dict[str, Any]) -> dict[int, list[int]]:
    """`Dataset.new_rows` from a manifest's `tokenizer`."""
    new = tokenizer.get("new", [])
    return dict(enumerate(new, tokenizer["vocab_size"] - len(new)))


def _over(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """`values` with missing fields filled from `defaults`, also in nested sections."""
    both = [name for name, value in values.items() if isinstance(value, dict) and isinstance(defaults.get(name), dict)]
    return {**defaults, **values, **{name: _over(defaults[name], values[name]) for name in both}}


_DRAWING = 3
"""Increment when the same settings draw other rows, so that a run cannot resume on other rows unnoticed."""


def drawn_from_pools(drawn_by: dict[str, Any], pools: int) -> dict[str, Any]:
    """`Dataset.drawn_by` of rows drawn from `pools` pools; with one pool, their size has no effect."""
    data = drawn_by["data"] if pools > 1 else {**drawn_by["data"], "pool_tokens": None}
    return {**drawn_by, "data": data, "drawing": _DRAWING}


def samples_fingerprint(corpus_fingerprint: str, split: str, settings: DataSettings, seed: int, pools: int) -> str:
    """A hash of everything that determines the rows; it ignores the location of the corpus, and rates of masking by
    step where there are none, which first versions did not have."""
    masking = getattr(settings, "masking", None)
    unset = {name for name in ("first_probability", "final_probability") if getattr(masking, name, None) is None}
    left_out: Any = dict.fromkeys(["corpus", "corpora", "cache", *(["pool_tokens"] if pools == 1 else [])], True)
    dumped = settings.model_dump_json(exclude={**left_out, "masking": unset})
    values = [str(_DRAWING), corpus_fingerprint, split, str(seed), dumped]
    return md5("\n".join(values).encode()).hexdigest()
