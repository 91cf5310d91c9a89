"""Claims judged by fine-tuning: models that differ in one thing are pretrained, fine-tuned and scored on test texts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reread.pipeline.commands.preprocess import preprocess
from reread.pipeline.recipe.load import load_recipe, override, recipe_of, recipe_values
from reread.pipeline.recipe.schema import Ablation, train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.train import make_start, train
from reread.preprocessing.files import write_atomically
from reread.training.data.tasks.settings import TaskSettings
from reread.training.evaluation import evaluate_run
from reread.training.run.files import RUNS
from reread.training.scoring.task_scores import chosen_score

RECIPES = Path(__file__).parent / "recipes"
DATA = Path("data")
BLOCKS = 10
"""Parts of the test texts, each with a score of its own: by their spread the noise of the test texts is known."""
SEEDS = range(8)
"""As many as a verdict needs; the settings were tried with others."""
DECISIVE = 2
"""Standard errors that a difference must exceed."""
Lines = Sequence[Mapping[str, Any]]


class Judged(NamedTuple):
    """The figure of one row by fine-tuning on one task."""

    recipe: str
    """Recipe of the fine-tuning."""
    evaluation: tuple[str, ...] = ()
    """Overrides with which the test texts are read."""
    rows: tuple[str, ...] | None = None
    """The rows that are judged by it; None: all."""
    folds: int = 0
    """Of cross-validation: then a seed is a fold, and all are run whatever seeds are given."""

    def seeds(self, given: Sequence[int]) -> Sequence[int]:
        return range(self.folds) if self.folds else given


@dataclass(frozen=True)
class TunedClaim:
    text: str
    paper: str
    task: str
    better: str
    worse: str
    """Rows of which the claim says that one scores higher than the other."""


class Difference(NamedTuple):
    mean: float
    error: float
    """Its standard error, from the seeds and from the blocks of the test texts."""
    seeds: int

    @property
    def verdict(self) -> str:
        if self.seeds < len(SEEDS) or abs(self.mean) <= DECISIVE * self.error:
            return "undecided"
        return "holds" if self.mean > 0 else "does not hold"

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.error:.1f} ({self.seeds} seeds)"


@dataclass(frozen=True)
class Tuned:
    name: str
    """Recipe of the pretraining, whose ablations are the rows."""
    about: str
    needs: tuple[str, ...]
    """Options of the command that name its data."""
    write: Callable[[Path, Mapping[str, list[Path]], list[int]], None]
    """(folder, data by option, seeds): write text.jsonl, and the examples of each task by `write_task`."""
    tasks: Mapping[str, Judged]
    claims: tuple[TunedClaim, ...]
    pretrained_once: bool = False
    """Whether a row's fine-tunings with all seeds begin with the same weights."""

    @property
    def recipe(self) -> str:
        return str(RECIPES / f"{self.name}.yaml")

    @property
    def rows(self) -> list[Ablation]:
        return load_recipe(self.recipe, []).ablations

    def cells(self) -> Iterator[tuple[Ablation, str, Judged]]:
        """Each row with each task that it is judged by, and the task's name."""
        for row in self.rows:
            for task, judged in self.tasks.items():
                if judged.rows is None or row.name in judged.rows:
                    yield row, task, judged

    def pretraining(self, row: Ablation, seed: int) -> list[str]:
        seed = 0 if self.pretrained_once else seed
        return [*row.overrides, f"train.seed={seed}", f"name={self.name}-{_slug(row.name)}-{seed}"]

    def tuning(self, row: Ablation, task: str) -> list[str]:
        """The overrides of the fine-tuning recipe's row of the same name."""
        values = recipe_values(str(RECIPES / f"{task}.yaml"), [])
        return next((one.get("overrides", []) for one in values.get("ablations", []) if one["name"] == row.name), [])

    def key(self, row: Ablation, judged: Judged) -> str:
        """A hash of the settings that a figure depends on, without the seed, the data and the code."""
        given = [recipe_values(self.recipe, row.overrides, "train")]
        given.append(recipe_values(str(RECIPES / f"{judged.recipe}.yaml"), self.tuning(row, judged.recipe), "train"))
        for values in given:
            values.pop("ablations", None)
            if start := values.get("start"):  # its recipe is a path
                start["recipe"] = recipe_values(start["recipe"], [])
        return md5(json.dumps([given, judged.evaluation], sort_keys=True).encode()).hexdigest()[:8]

    def run(self, row: Ablation, seed: int, judged: Judged) -> list[float]:
        """Pretrain and fine-tune a row, as far as that is not done; the score of each block of the test texts."""
        pretraining = load_recipe(self.recipe, self.pretraining(row, seed), "train")
        folder = RUNS / pretraining.name
        if not (folder / "export" / "config.json").exists():
            preprocess(pretraining)
            make_start(load_recipe(self.recipe, [], "train"))
            train(pretraining, [])
            export(folder, None)
        texts = DATA / judged.recipe
        recipe, name = str(RECIPES / f"{judged.recipe}.yaml"), f"{judged.recipe}-{_slug(row.name)}-{seed}"
        tuned = finetune_recipe(
            recipe,
            [
                *self.tuning(row, judged.recipe),
                f"init={folder / 'export'}",
                f"task.train={texts / f'train-{seed}.jsonl'}",
                f"train.seed={seed}",
                f"name={name}",
            ],
        )
        train(tuned, [])
        return [score_of(RUNS / name, block, judged.evaluation) for block in _blocks(texts, seed)]


def score_of(run: Path, examples: Path, evaluation: Sequence[str] = ()) -> float:
    """The headline score of a fine-tuned model on examples, read with the overrides `evaluation`."""
    overrides = [override("task.dev", examples), *evaluation]
    settings = train_section(recipe_of(run, overrides))
    assert isinstance(settings.data, TaskSettings)
    return evaluate_run(run, settings, overrides=overrides)[chosen_score(settings.data.scored_as)[0]]


def _blocks(texts: Path, seed: int) -> list[Path]:
    return [texts / f"test-{seed}-{number}.jsonl" for number in range(BLOCKS)]


def write_lines(path: Path, lines: Lines) -> None:
    """Write JSON lines, unless the file holds them: a corpus is of files that did not change since."""
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)


def write_task(folder: Path, seed: int, train: Lines, test: Lines) -> None:
    """Write a seed's examples; those of the test in blocks of neighbours, which are more alike than distant ones."""
    write_lines(folder / f"train-{seed}.jsonl", train)
    for number, path in enumerate(_blocks(folder, seed)):
        write_lines(path, test[number * len(test) // BLOCKS : (number + 1) * len(test) // BLOCKS])


def difference(claim: TunedClaim, figures: Mapping[tuple[str, str], Mapping[int, list[float]]]) -> Difference | None:
    """How much better the one row is than the other; None with fewer than two seeds.

    `figures`: (row, task) -> seed -> scores of the blocks.
    """
    better, worse = (figures.get((row, claim.task), {}) for row in (claim.better, claim.worse))
    seeds = sorted(better.keys() & worse.keys())
    if len(seeds) < 2:
        return None
    found = np.array([better[seed] for seed in seeds]) - np.array([worse[seed] for seed in seeds])
    error = sum(found.mean(axis).var(ddof=1) / found.shape[1 - axis] for axis in (0, 1)) ** 0.5
    return Difference(float(found.mean()), float(error), len(seeds))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
