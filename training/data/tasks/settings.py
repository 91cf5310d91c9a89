"""The `task` sections of fine-tuning recipes, which are the `data` sections of their runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import NOTHING, Given
from reread.preprocessing.settings import FieldPath
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.settings import LONGEST, DataSettings


def _as_names(labels: Any) -> Any:
    """Labels as a file's are read: the classes 0 and 1, true and false are names, too."""
    if not isinstance(labels, list):
        return labels
    return [
        (str(one).lower() if isinstance(one, bool) else str(one)) if isinstance(one, int) else one for one in labels
    ]


def _distinct(labels: list[str]) -> list[str]:
    if twice := [name for name, count in Counter(labels).items() if count > 1]:
        raise ValueError(f"names `{twice[0]}` twice")
    return labels


class TaskSettings(DataSettings):
    """Labelled files, and how their documents are read. Each task has its own class.

    `reread finetune` fills in what the model it starts from determines: `tokenizer`, `frame` and `labels`.
    """

    is_task = True

    file_fields = frozenset({"train", "dev", "test", "tokenizer"})
    """Fields that name files. All others are kept with an exported model (`travelling`)."""

    may_change = file_fields

    beside_tokens: ClassVar[frozenset[str]] = file_fields | frozenset(
        ["format", "columns", "join", "wrong", "learns", "predict", "head_dropout", "retrospective", "labels"]
    )
    """Fields that leave the tokens of an example as they are."""

    text_only_values = (False, True)

    held_out_by = "task.dev"

    other_text = "task.dev=FILE"

    train: Path
    """File or folder of training examples."""
    dev: Path | None = None
    """Examples that choose the checkpoint; null: none are held out."""
    test: Path | None = None
    """Examples that the chosen checkpoint is scored on, too; they choose nothing."""
    format: str | None = None
    """Format of the files; null: recognised by their names and first bytes."""
    columns: Mapping[str, FieldPath] = {}
    """Field of an example -> its name, path or template in a row (`tsv`, `csv`) or a line (`clue`, `jsonl`), as in
    `input.text_field`; `[1]` is the second column of a table without header."""
    join: str = "\n"
    """Separator of the texts that a path such as `turns[].text` finds in a line."""
    wrong: Literal["refuse", "skip"] = "refuse"
    """What happens to an example that is wrong: its text is empty, it has no label, or a label that `labels` or the
    training examples lack. Nothing is learned from an example that is skipped, or from a misplaced answer, which is
    still scored."""
    sequence_length: int = Field(default=512, ge=8, le=LONGEST)
    """Tokens of a window, including special tokens, question and option."""
    step: int | None = Field(default=None, ge=1, le=LONGEST)
    """Tokens by which a window moves; null: by its whole room, or half of it where tokens are predicted."""
    longest: int | None = Field(default=None, ge=1, le=1 << 40)
    """Tokens of a document that are read at most; null: all."""
    other_length: int | None = Field(default=None, ge=1, le=LONGEST)
    """Tokens of the question, of an option, or of the second text, that are read at most in each window; null: as many
    as they have, but at least half of a window is left for a text that needs it."""
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
    labels: Annotated[list[str], BeforeValidator(_as_names), AfterValidator(_distinct)] = []
    """The classes or tags in the order of their numbers; others are refused. Empty: those of the training examples."""

    @property
    def location(self) -> Path:
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
    def own_tokens(self) -> tuple[str, ...]:
        """Tokens of its own that the task puts into rows; the tokenizer gets those that it lacks."""
        return ()

    @property
    def travelling(self) -> dict[str, Any]:
        """The fields that an exported model keeps to predict as its run does: all but `file_fields`."""
        return self.model_dump(mode="json", exclude=set(self.file_fields))

    @property
    def label_form(self) -> Literal["one", "set", "number"]:
        """The form of a label: one label, a set of labels, or a number."""
        return "one"

    @property
    def has_classes(self) -> bool:
        """Whether an example is labelled by `labels`."""
        return False

    @property
    def given(self) -> Given:
        """Values for raw texts, such as those to predict for."""
        return NOTHING

    def found_in(self, train: Sequence[Any]) -> dict[str, Any]:
        """Fields that follow from the training examples if the recipe does not give them."""
        return {}

    @property
    def unchosen(self) -> "TaskSettings | None":
        """These settings without what is chosen on dev after training (`TaskDataset.chosen`); None if nothing is."""
        return None

    @property
    def remarks(self) -> list[str]:
        """Lines for the log on fields that were filled in."""
        return []

    @property
    def scored_as(self) -> str:
        """The key of `SCORES` (`reread.training.scoring.task_scores`)."""
        return self.kind

    @property
    def pooled_by(self) -> Literal["cls", "mean"] | None:
        """`pooling`, of tasks that have it."""
        return None

    @property
    def text_only(self) -> bool:
        return self.frame == "bare"

    @property
    def overlaps(self) -> bool:
        """Whether tokens are predicted, each in the window where it has most context."""
        return False

    def blank(self, rows: int) -> Rows:
        shape = (rows, self.sequence_length)
        blank = {"input_ids": np.zeros(shape, np.int32), "attention_mask": np.ones(shape, np.int32)}
        return {**blank, "labels": np.full(shape, IGNORED)}


def task_of(data: DataSettings) -> TaskSettings | None:
    """The `data` section as that of a task; None if the data is text of corpora."""
    return data if isinstance(data, TaskSettings) else None


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


class PooledSettings(TaskSettings):
    """A task whose head reads one vector of a row."""

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {"pooling"}

    pooling: Literal["cls", "mean"] | None = None
    """Input of the head: the pooler's output for [CLS], or the mean of the last layer's states of all tokens; null: as
    the model does (`classifier_pooling` in its configuration, [CLS] after pretraining). RAN has `model.pooling`, and
    Longformer its global token."""

    @property
    def pooled_by(self) -> Literal["cls", "mean"] | None:
        return self.pooling
