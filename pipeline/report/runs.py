"""Reads the parts of a run folder that its report shows."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.load import recipe_of, written_recipe
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.report.figures import FIGURES
from reread.pipeline.report.points import Points, read_points
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_task
from reread.training.data.settings import CorpusSettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.settings import task_of
from reread.training.run.files import RunFile, read_mapping
from reread.training.run.history import Attempt, read_history
from reread.training.run.metrics import each_metrics, read_evaluations

HELD_OUT = "validation_"
"""Prefix of the names of figures of held-out text."""


@dataclass(frozen=True)
class Run:
    """A run, as far as it has got."""

    folder: Path
    number: int
    """Number of the run in the report, by which it gets its colour."""
    recipe: Recipe
    curves: dict[str, Points]
    """The logged values of each figure over the step, by name (metrics.jsonl)."""
    attempts: list[Attempt]
    evaluations: list[dict[str, Any]]
    borders: tuple[int, ...] = ()
    """Steps at which a phase of the recipe ended and another began."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def train(self) -> TrainSettings:
        return train_section(self.recipe)

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe's values, without `preprocess` if the run did not read the corpus that this section makes."""
        made, data = self.recipe.preprocess, self.train.data
        read = [one.corpus for one in data.parts]
        return self.recipe.model_dump(mode="json", exclude=set() if made and made.output in read else {"preprocess"})

    @property
    def is_task(self) -> bool:
        return self.train.data.is_task

    @property
    def steps(self) -> int:
        """The last step that was logged."""
        return int(self.curves["step"].high.max()) if self.curves else 0

    @property
    def tokens(self) -> float | None:
        return self.last("total_tokens")

    @property
    def seconds(self) -> float:
        """Time in attempts whose end is known."""
        return sum(attempt.ended - attempt.began for attempt in self.attempts if attempt.ended is not None)

    @property
    def state(self) -> str:
        """How its last attempt ended."""
        if self.attempts:
            return self.attempts[-1].how
        return "done" if self.steps >= self.train.steps else "not done"

    @property
    def figures(self) -> list[str]:
        """Names of losses, accuracies and scores, without the prefix of held-out text. Of each corpus of a mixture only
        the loss is included."""
        corpora = tuple(f"{one.title}_" for one in getattr(self.train.data, "corpora", ()))
        losses = {f"{corpus}loss" for corpus in corpora}
        found = dict.fromkeys(name.removeprefix(HELD_OUT) for name in self.curves)
        return [name for name in found if name in losses or not (name in FIGURES or name.startswith(corpora))]

    @property
    def headline(self) -> str:
        """The figure that runs are compared by: the loss of masked tokens alone if there is one, else the loss."""
        return "masked_lm_loss" if "masked_lm_loss" in self.figures else "loss"

    def points(self, name: str) -> Points | None:
        """Values of a figure over the step; None if there are none."""
        found = self.curves.get(name)
        as_scores = found is not None and self.is_task and name == "accuracy"  # of held-out examples are
        return found.scaled(100) if found and as_scores else found

    def last(self, name: str) -> float | None:
        points = self.points(name)
        return float(points.last[-1, 1]) if points else None

    @cached_property
    def manifests(self) -> list[tuple[Path, Manifest] | str]:
        """Folder and manifest of each corpus, or a sentence that says why it is not shown."""
        if self.is_task:
            return ["The run learned from labelled examples."]
        return [_manifest(part) for part in self.train.data.parts]

    @cached_property
    def learned(self) -> TaskDataset[Any, Any] | None:
        """The labelled examples that it learns from; None for a run that pretrains.

        Raises `UserError` if they cannot be read here."""
        task = task_of(self.train.data)
        return None if task is None else open_task(task, self.train.seed, "train")

    @property
    def corpus_facts(self) -> dict[str, str]:
        """What the run itself keeps of its data, without fingerprints."""
        kept = read_mapping(RunFile.CORPUS.of(self.folder))
        facts = {name: f"{kept[name]:,}" for name in ("documents", "tokens") if isinstance(kept.get(name), int)}
        sources = kept.get("sources")
        return {**facts, "sources": ", ".join(map(str, sources))} if isinstance(sources, list) and sources else facts

    @property
    def environment(self) -> dict[str, Any]:
        return read_mapping(RunFile.ENVIRONMENT.of(self.folder))


def _manifest(data: CorpusSettings) -> tuple[Path, Manifest] | str:
    if not isinstance(data.corpus, Path):
        return f"The corpus lies at {data.corpus} and is not fetched for a report."
    try:
        return data.corpus, Manifest.read(data.corpus)
    except (UserError, OSError) as error:
        return f"The corpus cannot be read here: {error}."


def read_run(folder: Path, number: int) -> Run:
    """Raises `UserError` for a folder that is no run's, damaged metrics, and a run that has logged nothing yet."""
    curves = read_points(each_metrics(folder))
    if not curves:
        raise UserError(f"{RunFile.METRICS.of(folder)}: no step logged yet; is `{folder}` a run folder?")
    recipe = recipe_of(folder)
    *borders, _ = (phase.steps for phase in phases_of(written_recipe(RunFile.RECIPE.of(folder))))
    return Run(folder, number, recipe, curves, read_history(folder), read_evaluations(folder), tuple(borders))
