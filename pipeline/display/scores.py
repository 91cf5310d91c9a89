"""The scores of fine-tuned runs beside baselines without a neural network and the papers' scores."""

import json
import logging
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from reread.pipeline.display.grid import read_grid
from reread.pipeline.display.terminal import print_wide
from reread.pipeline.recipe.schema import Finetuning, Published, Recipe, task_section
from reread.preprocessing.errors import first_line
from reread.preprocessing.files import write_atomically
from reread.training.data.kinds import open_task
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.examples import examples_of
from reread.training.run.files import RunFile, read_mapping
from reread.training.scoring.task_scores import best_of, formatted

log = logging.getLogger("reread")

Predictions = Mapping[int, Any]
"""Example -> prediction, as `TaskDataset.decode` makes them."""

Scores = dict[str, float]
"""Name -> score."""


def write_scores(run: Path, scores: dict[str, Scores]) -> None:
    """Keep the scores of a run, by split."""
    write_atomically(RunFile.SCORES.of(run), json.dumps(scores, indent=1).encode())


def read_scores(runs: Path, name: str) -> tuple[list[Path], dict[str, list[Scores]]]:
    """The runs of a fine-tuning in the folder `runs` that have scores, one for each fold and seed, of a grid those of
    its best point, and split -> their scores."""
    folds = _numbered(runs, name, "fold")
    known = {run: scores for fold in folds or [name] for run, scores in _of_seeds(runs, fold)}
    splits = dict.fromkeys(split for scores in known.values() for split in scores)
    return list(known), {split: [scores[split] for scores in known.values() if split in scores] for split in splits}


def _of_seeds(runs: Path, name: str) -> list[tuple[Path, dict[str, Scores]]]:
    name = read_grid(runs, name).chosen or name
    seeds = [runs / one for one in _numbered(runs, name, "seed")]
    known = [(folder, scores) for folder in seeds if (scores := _scores_of(folder))]
    return known or [(folder, scores) for folder in [runs / name] if (scores := _scores_of(folder))]


def _numbered(runs: Path, name: str, part: str) -> list[str]:
    """NAME-fold1, NAME-fold2, ... of which there are runs."""
    begin = re.compile(rf"{re.escape(name)}-{part}(\d+)(?![^-])")
    found = {(int(match[1]), match[0]) for path in runs.glob(f"{name}-{part}*") if (match := begin.match(path.name))}
    return [one for _, one in sorted(found)]


def repeats_of(runs: Sequence[Path]) -> str:
    """What distinguishes the runs of a fine-tuning, as `repeats` says it."""
    found = [
        {match[1] for run in runs if (match := re.search(rf"-{part}(\d+)(-|$)", run.name))} for part in ("fold", "seed")
    ]
    folds, seeds = map(len, found)
    return repeats(folds, seeds)


def repeats(folds: int, seeds: int) -> str:
    """`3 seeds`, `10 folds` or `10 folds of 3 seeds`."""
    several = [f"{count} {name}" for name, count in (("folds", folds), ("seeds", seeds)) if count > 1]
    return " of ".join(several) or "one seed"


def _scores_of(run: Path) -> dict[str, Scores]:
    """Split -> scores of a run; empty if there are none that can be read."""
    splits = read_mapping(RunFile.SCORES.of(run))
    return {split: scores for split, scores in splits.items() if isinstance(scores, dict) and _are_numbers(scores)}


def _are_numbers(scores: dict[str, object]) -> bool:
    return all(isinstance(value, int | float) for value in scores.values())


def baseline_scores(recipe: Recipe) -> dict[str, Scores]:
    """Name -> scores on dev of the baselines of a recipe's task; none without the training examples, or without dev."""
    settings = task_section(recipe)
    held_out = open_task(settings, 0, "validation")
    if not len(held_out):
        return {}
    if not settings.train.exists():
        log.info("%s is not there, so no baselines are computed", settings.train)
        return {}
    train = examples_of(settings, "train")
    found = {name: held_out.scores(predictions) for name, predictions in baselines(train, held_out)}
    for scores in found.values():
        scores.pop("auc", None)  # needs probabilities
    return found


def keep_baselines(run: Path, held_out: Path, found: dict[str, Scores]) -> None:
    """Keep the baselines' scores on a held-out file in a run that learned from the same examples."""
    kept = json.dumps({**read_baselines(run), str(held_out): found}, ensure_ascii=False, indent=1)
    try:
        write_atomically(RunFile.BASELINES.of(run), kept.encode())
    except OSError as error:
        log.warning("%s: the baselines' scores are not kept there (%s)", RunFile.BASELINES.of(run), error.strerror)


def read_baselines(run: Path) -> dict[str, dict[str, Scores]]:
    """Held-out file -> name -> scores; nothing where that cannot be read."""
    found = read_mapping(RunFile.BASELINES.of(run))
    with suppress(AttributeError):  # damaged
        return {
            file: {name: scores for name, scores in one.items() if _are_numbers(scores)} for file, one in found.items()
        }
    return {}


def print_scores(recipe: Recipe, measured: dict[str, list[Scores]], found: dict[str, Scores]) -> None:
    """Print a table of our scores (split -> those of each seed), of the baselines on dev that were `found`, and of the
    papers."""
    settings = task_section(recipe)
    scored = {split: one for split, one in settings.splits.items() if split in measured}
    counts = {split: len(examples_of(one, "validation")) for split, one in scored.items()}
    sizes = {split: f"{counts[split]:,} examples of {one.held_out.name}" for split, one in scored.items()}
    if settings.dev is None:
        sizes["dev"] = "scored on what it learned from"
    elif settings.train.exists():
        sizes["dev"] = f"{len(examples_of(settings, 'train')):,} training examples, {sizes['dev']}"
    published, reason = published_for(recipe.finetune, counts)
    if reason:
        log.info("%s", reason)
    finetuning = recipe.finetune
    folds = finetuning.folds or 1 if finetuning and finetuning.fold is None else 1
    if folds > 1:
        sizes["test"] = f"each fold in its turn, about {counts['test']:,} examples"
        if settings.dev and settings.dev.parent == settings.train.parent:
            sizes["dev"] = "the fold after each, which chooses the checkpoint"
    repeated = repeats(folds, finetuning.seeds if finetuning else 1)
    print_wide(score_table(measured, sizes, list(found.items()), published, repeated))


def published_for(finetuning: Finetuning | None, counts: Mapping[str, int]) -> tuple[list[Published], str]:
    """The papers' scores, if one of the scored files may be the one they are of, else the reason why they are not
    shown; `counts` is split -> its number of examples."""
    if finetuning is None or not finetuning.published:
        return [], ""
    sizes = finetuning.published_sizes
    if not sizes or any(0.9 * size <= count <= size for size in sizes for count in counts.values()):
        return finetuning.published, ""
    ours = ", ".join(f"{split} {count:,}" for split, count in counts.items()) or "of no known size"
    theirs = " or ".join(f"{size:,}" for size in sizes)
    return [], f"the papers' scores are not shown: they are of held-out files of {theirs} examples, and ours is {ours}"


def score_table(
    measured: dict[str, list[Scores]],
    sizes: dict[str, str],
    baselines: list[tuple[str, Scores]],
    published: list[Published],
    repeated: str = "one seed",
) -> Table:
    """Our scores by split, of the several runs that `repeated` counts as mean and standard deviation, and the `sizes`
    of the splits; the baselines' and the papers' below."""
    result = Table(box=box.SIMPLE)
    rows = [one for seeds in measured.values() for one in seeds] + [row.scores for row in published]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for column in ("", *names, "what differs"):
        result.add_column(column)
    for split, seeds in measured.items():
        ours = means(seeds)
        label = "ours" if split == "dev" else f"ours ({split})"
        label = label if len(seeds) == 1 else f"{label}, {repeated}"
        result.add_row(label, *(ours.get(name, "-") for name in names), sizes[split])
        if len(seeds) > 1 and "fold" not in repeated:
            highest = best(seeds)
            result.add_row(f"{label}, each one's best", *(highest.get(name, "-") for name in names), "")
    for name, scores in baselines:
        theirs = [formatted(one, scores[one]) if one in scores else "-" for one in names]
        result.add_row(f"baseline: {name}", *theirs, "")
    for row in published:
        theirs = [f"{row.scores[name]:g}" if name in row.scores else "-" for name in names]
        result.add_row(f"paper: {row.model}", *theirs, row.differs)
    return result


def means(seeds: list[Scores]) -> dict[str, str]:
    """Each score's mean over the seeds that have it, with its standard deviation."""
    names = dict.fromkeys(name for scores in seeds for name in scores)
    return {name: _mean_and_deviation(name, [one[name] for one in seeds if name in one]) for name in names}


def best(seeds: list[Scores]) -> dict[str, str]:
    """Each score's best over the seeds that have it, of several seeds."""
    names = dict.fromkeys(name for scores in seeds for name in scores) if len(seeds) > 1 else {}
    return {name: formatted(name, best_of(name, [one[name] for one in seeds if name in one])) for name in names}


def _mean_and_deviation(name: str, values: list[float]) -> str:
    deviation = f" ± {formatted(name, statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{formatted(name, statistics.fmean(values))}{deviation}"


def baselines(train: Sequence[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    """(name, predictions) of the trivial baselines of a task.

    One line is logged for a baseline that cannot be computed.
    """
    try:
        yield from held_out.baselines(train)
    except Exception as error:  # a library's, too: what is printed beside the scores must not end a trained run
        log.info("a baseline is left out: %s", first_line(error))
