"""The settings that the `data` sections of all kinds have in common."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from reread.preprocessing.corpus.address import check_address, is_address, runs_command
from reread.preprocessing.corpus.cache import CacheSettings
from reread.preprocessing.settings import Name, Settings
from reread.training.data.batch import IGNORED, Rows

LONGEST = 1 << 20
"""Maximum number of tokens in a row, a segment or a memory."""


class MaskingSettings(Settings):
    """The choice of predicted tokens: BERT's 15 % x 80/10/10 (Devlin et al. 2019, section 3.1)."""

    strategy: Literal["token", "whole-word", "span"] = "whole-word"
    """The units that are chosen: single tokens, words with all their tokens, or spans of words."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens of a text that are predicted; held-out text always has this share."""
    first_probability: float | None = Field(default=None, gt=0, lt=1)
    """`probability` at the first step, for `rows` and `packed`: it becomes `probability` linearly in the warm-up of the
    learning rate's schedule. null: it is `probability` from the beginning."""
    final_probability: float | None = Field(default=None, gt=0, lt=1)
    """`probability` at the end of the schedule, for `rows` and `packed`: after the warm-up it goes there linearly.
    null: it stays. Chinese ModernBERT has .15, .3 and .15 (Zhao et al. 2025)."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the chosen tokens that become [MASK]."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the chosen tokens that become a random token; the rest keep their id."""
    predict_unknown: bool = False
    """Whether [UNK], or a word that contains it, may be predicted."""
    span_geometric: float = Field(default=0.2, gt=0, lt=1)
    """`span`: parameter of the geometric distribution of span lengths, in words (SpanBERT, section 3.1)."""
    span_maximum: int = Field(default=10, ge=1, le=1000)
    """Words in the longest span; the distribution is truncated there and renormalised."""

    @model_validator(mode="after")
    def _shares(self) -> "MaskingSettings":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share is above 1")
        return self

    @property
    def by_step(self) -> bool:
        """Whether the share of predicted tokens depends on the step."""
        return self.first_probability is not None or self.final_probability is not None

    @property
    def greatest(self) -> float:
        """The greatest share of predicted tokens of all steps."""
        return max(self.probability, self.first_probability or 0.0, self.final_probability or 0.0)

    def shares(self, steps: NDArray[np.int64], warmup: int, ends: int) -> NDArray[np.float64]:
        """The share of predicted tokens at steps [n] of a schedule with `warmup` steps that ends at step `ends`."""
        first, final = (one or self.probability for one in (self.first_probability, self.final_probability))
        points = {0: first, warmup: self.probability, max(ends, warmup + 1): final}
        return np.interp(steps, list(points), list(points.values()))


class DataSettings(Settings):
    """A `data` section: where the text is and how rows are made from it. Each kind of data has its own class."""

    may_change: ClassVar[frozenset[str]] = frozenset()
    """Fields that a relaunch may change: files may move (their fingerprint is compared), and settings of evaluation do
    not affect training."""

    text_only_values: ClassVar[tuple[bool, ...]] = (False,)
    """Allowed values of `text_only`; True means rows without special tokens."""

    held_out_by: ClassVar[str] = "preprocess.validation_share"
    """The setting by which text or examples are held out."""

    other_text: ClassVar[str] = "data.corpus=FOLDER"
    """The override by which a run is evaluated on other text or examples."""

    is_task: ClassVar[bool] = False
    """Whether the data is labelled examples of a task, and not the text of corpora."""

    is_masked: ClassVar[bool] = False
    """Whether tokens of the text are masked."""

    file_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of a task that name files or folders."""

    kind: str
    sequence_length: int
    """Tokens of a row, segment or window, with special tokens."""

    independent_rows: ClassVar[bool] = False
    """Whether a step may have any number of rows, since no row goes on with that of the step before."""

    @property
    def parts(self) -> list["CorpusSettings"]:
        """The settings of each corpus that is read; none for a task."""
        return []

    @property
    def commands(self) -> list[str]:
        """The addresses of corpora that are opened by running a command on this machine."""
        return []

    @property
    @abstractmethod
    def location(self) -> Path | str:
        """The file, folder or address that holds the data, for messages."""

    @property
    def folder(self) -> Path:
        """`location` as a path."""
        return Path(self.location)

    @property
    def held_out(self) -> Path | str:
        """The location of held-out text or examples, for messages."""
        return self.location

    @property
    def text_only(self) -> bool:
        """Whether rows are text alone, without [CLS] and [SEP]."""
        return False

    @property
    def needs_own_head(self) -> bool:
        """Whether it needs a head of ours, which no class of transformers has."""
        return False

    def lanes(self, global_batch: int) -> int:
        """Rows read in parallel so that about `global_batch` of them have a loss in a step."""
        return global_batch

    @abstractmethod
    def blank(self, rows: int) -> Rows:
        """Full rows in the format of the dataset, with the expected share of predictions; all ids are 0."""


def _location(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    check_address(value)  # also refuses a mistyped address
    return value if is_address(value) else Path(value)


Location = Annotated[Path | str, BeforeValidator(_location)]
"""A folder, or the address of one."""


class MixedCorpus(Settings):
    """A corpus of a mixture, and its share of it. All corpora of a mixture have a `weight`, or all have `epochs`."""

    path: Location
    """As `data.corpus`."""
    name: Name = Field(default="", max_length=100)
    """Names its held-out figures: `validation_NAME_loss`; default: the last part of `path`."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the rows, relative to the weights of the others; for documents in lanes, its share of the tokens;
    for streams, its share of the lanes."""
    epochs: float | None = Field(default=None, gt=0)
    """Epochs of it in one epoch of another corpus with `epochs: 1`."""

    @property
    def title(self) -> str:
        location = self.path.partition("?")[0] if isinstance(self.path, str) else str(self.path)
        return self.name or location.rstrip("/").rpartition("/")[2]


class CorpusSettings(DataSettings):
    """Settings of data that is read from a corpus."""

    may_be_materialized: ClassVar[bool] = False
    """Whether a folder may hold finished rows (`reread preprocess --materialize`) instead of a corpus."""

    may_change: ClassVar[frozenset[str]] = frozenset({"corpus", "corpora", "cache"})

    corpus: Location | None = None
    """A folder, or the address of one: https://HOST/FOLDER, s3://BUCKET/FOLDER, `pipe:ssh HOST cat FOLDER/{}`, which
    runs that command here, or any that fsspec or webdataset can open. `{}` stands for the name of a file, which
    otherwise follows after a slash.
    Passwords, tokens and signatures are refused here: `?sig=${SIG}` takes the value of an environment variable, which
    is written to no file."""
    corpora: tuple[MixedCorpus, ...] = Field(default=(), validate_default=True)
    """Several corpora that are mixed, instead of `corpus`: `[{path, weight}]` or `[{path, epochs}]`."""
    cache: CacheSettings | None = Field(default=None, validate_default=True)
    """For corpora at addresses."""

    @field_validator("corpora")
    @classmethod
    def _mixed(cls, value: tuple[MixedCorpus, ...], info: ValidationInfo) -> tuple[MixedCorpus, ...]:
        if "corpus" in info.data and (info.data["corpus"] is None) != bool(value):
            given = "both are given; set the other to null or []" if value else "neither is given"
            raise ValueError(f"give either `corpus` or `corpora`: {given}")
        if len({one.weight is None for one in value} | {one.epochs is not None for one in value}) > 1:
            raise ValueError("give each corpus a `weight`, or each `epochs`")
        titles = [one.title for one in value]
        if twice := next((title for title in titles if not title or titles.count(title) > 1), None):
            raise ValueError(f"two corpora are named {twice}; give one a `name`")
        return value

    @field_validator("cache")
    @classmethod
    def _given_for_an_address(cls, value: CacheSettings | None, info: ValidationInfo) -> CacheSettings | None:
        locations = [info.data.get("corpus"), *(one.path for one in info.data.get("corpora", []))]
        if value is None and any(isinstance(location, str) for location in locations):
            raise ValueError("give `folder`, on this machine's own disk, and `size`, since data.corpus is an address")
        return value

    @property
    def parts(self) -> list["CorpusSettings"]:
        """The same settings for each corpus of a mixture alone; of a single corpus, these settings."""
        if not self.corpora:
            return [self]
        return [self.model_copy(update={"corpus": one.path, "corpora": ()}) for one in self.corpora]

    @property
    def commands(self) -> list[str]:
        locations = [one.corpus for one in self.parts]
        return [location for location in locations if isinstance(location, str) and runs_command(location)]

    @property
    def location(self) -> Path | str:
        return ", ".join(str(one.path) for one in self.corpora) if self.corpus is None else self.corpus

    @property
    def folder(self) -> Path:
        """The folder with the manifest, which is fetched first if it is at an address; shards may be elsewhere.

        Of a mixture, it is the folder of the first corpus, whose tokenizer all others share.
        """
        corpus = self.parts[0].corpus
        if isinstance(corpus, Path):
            return corpus
        from reread.preprocessing.corpus.remote import fetch_folder

        assert corpus is not None and self.cache is not None
        return fetch_folder(corpus, self.cache)


class MaskedSettings(CorpusSettings):
    """Settings of data whose masked tokens are predicted."""

    is_masked = True

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
        labels[:, 1 : 1 + round(self.sequence_length * self.masking.greatest)] = 0  # after [CLS]
        return {"input_ids": np.zeros(shape, np.int32), "labels": labels, "attention_mask": np.ones(shape, np.int32)}
