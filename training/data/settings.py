"""The settings that the `data` sections of all kinds have in common."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from preprocessing.corpus.address import check_address, is_address
from preprocessing.corpus.cache import CacheSettings
from preprocessing.settings import Settings
from training.data.rows import IGNORED, Rows

LONGEST = 1 << 20
"""Maximum number of tokens in a row, a segment or a memory."""


class MaskingSettings(Settings):
    """The choice of predicted tokens: BERT's 15 % x 80/10/10 (Devlin et al. 2019, section 3.1)."""

    strategy: Literal["token", "whole-word", "span"] = "whole-word"
    """What is chosen: single tokens, words with all their tokens, or spans of words."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens of a text that are predicted."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the chosen tokens that become [MASK]."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the chosen tokens that become a random token; the rest keep their id."""
    span_geometric: float = Field(default=0.2, gt=0, lt=1)
    """`span`: parameter of the geometric distribution of span lengths, in words (SpanBERT, section 3.1)."""
    span_maximum: int = Field(default=10, ge=1, le=1000)
    """Words in the longest span; the distribution is truncated there and renormalised."""

    @model_validator(mode="after")
    def _shares(self) -> "MaskingSettings":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share is above 1")
        return self


class DataSettings(Settings):
    """A `data` section: where the text is and how rows are made from it. Each kind of data has its own class."""

    elastic: ClassVar[frozenset[str]] = frozenset()
    """Fields that a relaunch may change: files may move (their fingerprint is compared), and settings of evaluation do
    not affect training."""

    framings: ClassVar[tuple[bool, ...]] = (False,)
    """What `bare` can be."""

    kind: str
    sequence_length: int
    """Tokens of a row, segment or window, with special tokens."""

    @property
    @abstractmethod
    def place(self) -> Path | str:
        """The file, folder or address that holds the data, for messages."""

    @property
    def folder(self) -> Path:
        """The file or folder itself."""
        return Path(self.place)

    @property
    def held_out(self) -> Path | str:
        """Where held-out text or examples are, for messages."""
        return self.place

    @property
    def bare(self) -> bool:
        """Whether rows are text alone, without [CLS] and [SEP]."""
        return False

    def lanes(self, global_batch: int) -> int:
        """Rows read in parallel so that about `global_batch` of them have a loss in a step."""
        return global_batch

    @abstractmethod
    def blank(self, rows: int) -> Rows:
        """Full rows in the format of the dataset, with the expected share of predictions; all ids are 0."""


def _place(value: Any) -> Any:
    return value if is_address(value) or not isinstance(value, str) else Path(value)


class CorpusSettings(DataSettings):
    """Settings of data that is read from a corpus."""

    elastic: ClassVar[frozenset[str]] = frozenset({"corpus", "cache"})

    corpus: Annotated[Path | str, BeforeValidator(_place)]
    """A folder, or the address of one: https://HOST/FOLDER, s3://BUCKET/FOLDER, `pipe:ssh HOST cat FOLDER/{}` or any
    that fsspec or webdataset can open. `{}` stands for the name of a file, which otherwise follows after a slash."""
    cache: CacheSettings | None = Field(default=None, validate_default=True)
    """For a corpus at an address."""

    @field_validator("corpus")
    @classmethod
    def _without_password(cls, value: Path | str) -> Path | str:
        if isinstance(value, str):
            check_address(value)
        return value

    @field_validator("cache")
    @classmethod
    def _given_for_an_address(cls, value: CacheSettings | None, info: ValidationInfo) -> CacheSettings | None:
        if value is None and isinstance(info.data.get("corpus"), str):
            raise ValueError("give `folder`, on this machine's own disk, and `size`, since data.corpus is an address")
        return value

    @property
    def place(self) -> Path | str:
        return self.corpus

    @property
    def folder(self) -> Path:
        """The folder with the manifest, which is fetched first if it lies at an address; shards may lie elsewhere."""
        if isinstance(self.corpus, Path):
            return self.corpus
        from preprocessing.corpus.remote import fetch_folder

        assert self.cache is not None
        return fetch_folder(self.corpus, self.cache)


class MaskedSettings(CorpusSettings):
    """Settings of data whose masked tokens are predicted."""

    pool_tokens: int | None = Field(default=1 << 30, ge=1)
    """Samples are shuffled within pools of this many tokens: random stretches of 2^20 tokens, dealt anew for each copy.
    A machine reads its corpus pool by pool, and should have the memory for two. A corpus that fits in one pool is
    shuffled as a whole, and with null every corpus is."""

    if TYPE_CHECKING:  # each kind has them in its own order, which fingerprints depend on
        copies: int
        masking: MaskingSettings

    def blank(self, rows: int) -> Rows:
        shape = (rows, self.sequence_length)
        labels = np.full(shape, IGNORED, np.int32)
        labels[:, 1 : 1 + round(self.sequence_length * self.masking.probability)] = 0  # after [CLS]
        return {"input_ids": np.zeros(shape, np.int32), "labels": labels, "attention_mask": np.ones(shape, np.int32)}
