"""The `task` sections of fine-tuning recipes, which are the `data` sections of their runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import numpy as np
from pydantic import Field

from preprocessing.errors import UserError
from training.data.rows import IGNORED, Rows
from training.data.settings import LONGEST, DataSettings
from training.scoring.task_scores import Kind


class TaskSettings(DataSettings):
    """Labelled files, and how their documents are read. Each task has its own class.

    `reread finetune` fills in what the model it starts from determines: `tokenizer`, `frame` and `labels`.
    """

    elastic = frozenset({"train", "dev", "test", "tokenizer"})

    framings = (False, True)

    held_out_by = "task.dev"

    other_text = "task.dev=FILE"

    train: Path
    """File or folder of training examples."""
    dev: Path | None = None
    """Examples that choose the checkpoint; null: none are held out."""
    test: Path | None = None
    """Examples that the chosen checkpoint is scored on, too; they choose nothing."""
    format: str | None = None
    """Format of the files (preprocessing/labelled/formats.py); null: by their names."""
    columns: Mapping[str, str] = {}
    """`tsv` and `csv`: our field -> the column that holds it."""
    wrong: Literal["refuse", "skip"] = "refuse"
    """What happens to an example that is wrong, such as an answer that is not at its place."""
    sequence_length: int = Field(default=512, ge=8, le=LONGEST)
    """Tokens of a window, including special tokens, question and option."""
    step: int | None = Field(default=None, ge=1, le=LONGEST)
    """Tokens by which a window moves; null: by its whole room, or half of it where tokens are predicted."""
    longest: int | None = Field(default=None, ge=1, le=1 << 40)
    """Tokens of a document that are read at most; null: all."""
    other_length: int = Field(default=64, ge=1, le=LONGEST)
    """Tokens of question and option, or of the second text, that are read at most in each window."""
    learns: Literal["all", "last"] = "all"
    """Windows of a document that have a loss."""
    predict: Literal["mean", "last"] = "mean"
    """Windows of a document whose probabilities are averaged for its prediction."""
    head_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the head; null: the model's own."""
    retrospective: bool = False
    """Read each document twice, first only for its memory (ERNIE-Doc, section 3.2)."""
    tokenizer: Path | None = None
    """Folder with the tokenizer of the model that is fine-tuned."""
    frame: Literal["", "segments", "bare"] = ""
    """`ModelSpec.frame` of that model."""
    labels: list[str] = []
    """The classes or tags in the order of their numbers."""

    @property
    def place(self) -> Path:
        return self.train

    @property
    def held_out(self) -> Path:
        return self.dev or self.train

    @property
    def splits(self) -> "dict[str, TaskSettings]":
        """Each of dev and test that is given -> these settings with its examples as `dev`."""
        given = {"dev": self.dev, "test": self.test}
        return {name: self.model_copy(update={"dev": path}) for name, path in given.items() if path is not None}

    @property
    def label_form(self) -> Literal["one", "set", "number"]:
        """What an example's label is in the file."""
        return "one"

    @property
    def scored_as(self) -> Kind:
        """The row of scores (`training.scoring.task_scores`)."""
        return cast(Kind, self.kind)

    @property
    def bare(self) -> bool:
        return self.frame == "bare"

    @property
    def overlaps(self) -> bool:
        """Whether tokens are predicted, each in the window where it has most context."""
        return False

    def blank(self, rows: int) -> Rows:
        shape = (rows, self.sequence_length)
        blank = {"input_ids": np.zeros(shape, np.int32), "attention_mask": np.ones(shape, np.int32)}
        return {**blank, "labels": np.full(shape, IGNORED)}


def check_groups(global_batch: int, micro_batch: int, ranks: int) -> None:
    """Raises `UserError` if the examples of a step are fewer groups of `micro_batch` than data-parallel ranks."""
    groups = -(-global_batch // micro_batch)
    if groups < ranks:
        raise UserError(
            f"train.micro_batch: {micro_batch} of {global_batch} examples a step leave {ranks - groups} of {ranks} "
            f"data-parallel processes without work; {_way_out(global_batch, ranks)}"
        )


def _way_out(global_batch: int, ranks: int) -> str:
    if global_batch < ranks:
        return f"start at most {global_batch}, or raise train.global_batch"
    return f"set it to at most {global_batch // ranks}"


class ClassifySettings(TaskSettings):
    """One text or a pair, and its label, its set of labels or its number."""

    kind: Literal["classify"]
    answer: Literal["one", "set", "number"] = "one"
    """What a text has: one label, a set of labels, or a number."""
    positive: str | None = None
    """The one of two labels that `positive-f1` is of; null: the second."""

    @property
    def label_form(self) -> Literal["one", "set", "number"]:
        return self.answer

    @property
    def scored_as(self) -> Kind:
        return cast(Kind, f"classify-{self.answer}")


class TagSettings(TaskSettings):
    """A tag for each word or character."""

    kind: Literal["tag"]
    scheme: Literal["BIO", "BIOES"] = "BIO"
    """How tags mark the beginning of an entity."""

    @property
    def overlaps(self) -> bool:
        return True


class AnswerSettings(TaskSettings):
    """A span of the text that answers a question."""

    kind: Literal["answer"]
    occurrences: Literal["first", "all"] = "first"
    """`first`: the first answer is learned; `all`: any of the answers' places, in any window of the document, is right
    (Longformer's OR loss with a softmax over all windows: Beltagy et al. 2020, appendix D.1)."""
    without: Literal["cls", "skip"] = "cls"
    """A softmax, of a window or of a document, without the answer: its answer is [CLS], or it has no loss."""
    no_answer: float | None = None
    """A question has no answer if [CLS] exceeds the best span's score by this; null: all questions have answers."""
    style: Literal["cmrc", "squad", "triviaqa"] = "squad"
    """Whose EM and F1 are computed; `cmrc` is that of CMRC2018, DRCD and DuReader."""
    answer_length: int = Field(default=100, ge=1, le=LONGEST)
    """Tokens of the longest answer."""

    @property
    def one_softmax(self) -> bool:
        """Whether the windows of a document share a softmax: with memory, they are read one after the other."""
        return self.occurrences == "all" and self.frame != "segments"

    @property
    def overlaps(self) -> bool:
        return True


class ChooseSettings(TaskSettings):
    """One of several options."""

    kind: Literal["choose"]
