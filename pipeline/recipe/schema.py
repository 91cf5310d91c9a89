"""The sections of a recipe and their typed settings."""

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from reread.pipeline.recipe.slurm import SlurmSettings
from reread.preprocessing.config import OneOrMore, PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import Line, Name, Settings
from reread.training.config import TrainSettings
from reread.training.data.tasks.settings import TaskSettings, task_of
from reread.training.models.conversion import Conversion


def _of_a_folder(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("is the name of a folder in runs/, not a path to another")
    return name


class Ablation(Settings):
    """One row of a table of ablations: the recipe with some overrides, and its published figures."""

    name: Line
    """The row of the table, and the end of the name of its run folder."""
    overrides: list[str] = []
    """Overrides of `train`, as on the command line."""
    published: dict[str, float] = {}
    """The paper's figures by name."""


class Start(Settings):
    """How `train.init` is made if it does not exist: by converting released weights, or those of another recipe."""

    recipe: str | None = None
    """Recipe to train first: a built-in name, or a path relative to this recipe's file, as for `base`."""
    weights: Path | None = None
    """What `reread convert` reads, instead of a recipe: a folder or file of weights, or OWNER/NAME or
    OWNER/NAME@REVISION, a model of the Hugging Face Hub."""
    overrides: list[str] = []
    """Overrides of that recipe, as on the command line. It is trained on the corpus of this recipe."""
    convert: Conversion = Conversion()

    @model_validator(mode="after")
    def _one_of_both(self) -> "Start":
        if (self.recipe is None) == (self.weights is None):
            raise ValueError("give either recipe or weights")
        return self


class Published(Settings):
    """A paper's scores, printed beside ours."""

    model: Line
    """Name of the model in the paper."""
    scores: dict[str, float]
    """Score -> value, in the units of ours."""
    differs: Line = ""
    """What differs from the paper: split, size, number of seeds."""


class WordStart(Settings):
    """A model of whole words from random weights, made for the training examples."""

    size: int = Field(default=100_000, ge=10, le=1 << 22)
    """Words of the vocabulary at most: those of the training examples, and then the first ones of `vectors`."""
    vectors: Path | None = None
    """A text file of word vectors by GloVe, fastText or word2vec, which the words of the vocabulary begin with."""


_NOT_IN_A_GRID = ("name", "finetune.grid", "finetune.seeds", "finetune.folds", "finetune.fold", "train.seed", "seed")


def _flat(grid: Any, section: str = "") -> Any:
    """Lists by dotted names, of sections as the command line makes them (`finetune.grid.optimizer.eps=[1, 2]`)."""
    if not isinstance(grid, dict):
        return grid
    flat: dict[str, Any] = {}
    for key, value in grid.items():
        name = f"{section}{key}"
        if name in _NOT_IN_A_GRID:
            raise ValueError(f"`{name}` is no setting that points of a grid differ in; leave it out")
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        elif isinstance(value, list):
            flat[name] = value
        else:
            raise ValueError(f"`{name}` has one value; give a list of those to try, such as [2.0e-5, 3.0e-5]")
    return flat


class Finetuning(Settings):
    """How long `reread finetune` trains, in epochs; it computes the steps of `train` from the examples."""

    epochs: float = Field(default=3.0, gt=0, le=1_000_000)
    """Number of epochs, passes over the training examples."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    evaluations: float = Field(default=1.0, gt=0, le=1_000_000)
    """Evaluations in each epoch; after each of them the best checkpoint so far is kept."""
    seeds: int = Field(default=1, ge=1, le=10_000)
    """Number of runs, with seeds train.seed, train.seed + 1, ...; mean and standard deviation are printed."""
    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], BeforeValidator(_flat)] = {}
    """Settings of `train`, `task` or `finetune`, each with the values to try: `{optimizer.learning_rate: [2.0e-5,
    3.0e-5], global_batch: [16, 32]}`. Each combination is trained with the first seed, the one with the best `best_by`
    on dev is trained with the other seeds, too, and it alone is scored on the test examples."""
    folds: int | None = Field(default=None, ge=2, le=1000)
    """Number of parts of the training examples for cross-validation, each of which is the test of one run; null: none.
    The part after it chooses the checkpoint, unless `task.dev` is given, and the others are learned from. Labels are
    spread evenly over the parts, and equal examples are in the same one."""
    fold: int | None = Field(default=None, ge=1, le=1000)
    """The one of `folds` that is trained, counted from 1; null: all, as runs NAME-fold1, NAME-fold2, ..."""
    fold_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Another number divides the examples into other folds; the seeds of training leave them as they are."""
    group: str | None = Field(default=None, min_length=1)
    """The field of the training file whose values are each in one of the `folds`, such as an author or a site; null:
    `group` or `question_id`, where the file has one."""
    words: WordStart | None = None
    """What a model begins as where `init` names none, a model of whole words from random weights; null: `init` is
    needed."""
    published: list[Published] = []
    """Scores of papers on this task."""
    published_sizes: list[int] = []
    """Number of examples of each held-out file that the `published` scores were measured on. The scores are shown if a
    scored file has as many examples, or up to a tenth fewer, since faulty ones may be left out; empty: always."""

    @property
    def runs(self) -> int:
        """The number of runs: of each fold, those of all points with the first seed, and of one with the others."""
        return (math.prod(map(len, self.grid.values())) + self.seeds - 1) * (
            self.folds or 1 if self.fold is None else 1
        )

    @model_validator(mode="after")
    def _one_of_the_folds(self) -> "Finetuning":
        if self.fold is not None and (self.folds is None or self.fold > self.folds):
            raise ValueError(f"fold is {self.fold}, and folds {self.folds or 'is not given'}; give one of the folds")
        if self.group is not None and self.folds is None:
            raise ValueError("group keeps examples in one of the folds; give folds, too")
        return self


class Following(Settings):
    """A fine-tuning after pretraining, of the model that this recipe makes."""

    recipe: str
    """Name of a recipe of `reread finetune`, or a path relative to this recipe's file, as for `base`."""
    train: Path | None = None
    """File or folder of training examples below the folder `tasks`; it may be compressed (train.tsv.xz). If this or
    `dev` does not exist, the task is left out and one line says so."""
    dev: Path | None = None
    """The same for the examples by which the checkpoint is chosen."""
    test: Path | None = None
    """The same for labelled examples that the chosen checkpoint is also scored on; left out if it does not exist."""
    owner: Line = ""
    """The data's name, authors and homepage, printed if the data do not exist."""
    row: Line = ""
    """What tells this fine-tuning from others of the same `train`, such as `as released`: in the paper's table their
    scores are rows of one column."""
    overrides: list[str] = []
    """Overrides of that recipe, as on the command line: task.train=FILE, task.dev=FILE."""
    random: bool = False
    """Whether `reread run` also trains the task from random weights and prints both scores, to show what pretraining
    gains."""


def _check_language(code: str) -> str:
    if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual", code):
        raise ValueError("is the code of a language, such as zh or en, or multilingual")
    return code


class ModelCard(Settings):
    """What the exported model's card says beside what the run knows, as the Hugging Face Hub reads it. What is empty is
    left out."""

    license: Line = ""
    """Licence of the weights, as the Hub names it: apache-2.0, cc-by-4.0, ..."""
    language: Annotated[list[Annotated[str, AfterValidator(_check_language)]], OneOrMore] = []
    """Codes of the languages of its text: zh, en, ..."""
    datasets: Annotated[list[Line], OneOrMore] = []
    """The data that it was trained on, as the Hub names them: OWNER/NAME."""
    base_model: Line = ""
    """The model that it began with, as the Hub names it; empty: that of `init=OWNER/NAME`, if it began with one."""


class Recipe(Settings):
    """A recipe of `reread run`; if the section `preprocess` or `train` is absent, that step is skipped."""

    name: Annotated[Name, AfterValidator(_of_a_folder)] = Field(min_length=1, max_length=150)
    """Name of the run, whose folder is runs/<name>."""
    description: str = ""
    """One line for `reread recipes` and the report."""
    preprocess: PreprocessSettings | None = None
    start: Start | None = None
    train: TrainSettings | None = None
    phases: list[dict[str, Any]] = []
    """Parts of pretraining that follow one another as one run, each with its own `steps` and the settings of `train`
    that differ in it: `[{steps: 900}, {steps: 100, data: {sequence_length: 512}}]`. A phase goes on from the one before
    as `from=RUN` does; `train.steps` is their sum, over which the schedule runs where no phase restarts it. On the
    command line `phases.2.steps=100`."""
    finetune: Finetuning | None = None
    then: list[Following] = []
    """Tasks that `reread run` fine-tunes the model for after pretraining, each in runs/<name>-<that recipe's name>."""
    mean: bool = False
    """Whether the table of `then` beside the papers' ends with the mean over its tasks."""
    tasks: Path = Path("tasks")
    """The folder of the labelled data that `then` names by `train` and `dev`."""
    published: list[Published] = []
    """The paper's figures for the pretrained model; `reread run` computes ours on all held-out text."""
    slurm: SlurmSettings | None = None
    """Settings of `reread run --slurm`; they replace those of slurm/site.yaml."""
    ablations: list[Ablation] = []
    """The rows of `reread ablate`."""
    rows_of: str | None = None
    """`reread ablate` of a fine-tuning: instead of its own rows, one for each row of this pretraining recipe, whose
    model it starts from."""
    examples: Annotated[list[str], OneOrMore] = []
    """Sentences with [MASK] that the exported model fills in at the end of `reread run`, and on its model card."""
    card: ModelCard = ModelCard()

    @model_validator(mode="after")
    def _phases_pretrain(self) -> "Recipe":
        if self.phases and (self.train is None or self.train.data.is_task):
            raise ValueError("phases are parts of pretraining, and this recipe has none; leave them out")
        return self


def train_section(recipe: Recipe) -> TrainSettings:
    if recipe.train is None:
        raise UserError(f"recipe {recipe.name}: has no `train` section")
    return recipe.train


def task_section(recipe: Recipe) -> TaskSettings:
    """The task of a fine-tuning, which is its `train.data`."""
    data = train_section(recipe).data
    if (task := task_of(data)) is None:
        raise UserError(f"recipe {recipe.name}: train.data.kind is {data.kind}, which is no task to fine-tune on")
    return task


def preprocess_section(recipe: Recipe) -> PreprocessSettings:
    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    return recipe.preprocess
