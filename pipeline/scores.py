"""The scores of fine-tuned runs beside baselines without a neural network and the papers' scores."""

import json
import logging
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.recipe import Published, Recipe, train_section
from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from training.data.kinds import KINDS
from training.data.tasks.dataset import TaskDataset, examples_of
from training.data.tasks.settings import TaskSettings
from training.scoring.baselines import (
    BagOfGrams,
    KnownEntities,
    likeliest_clause,
    longest_option,
    majority,
    most_shared_option,
)
from training.scoring.spans import Decoded, Span

log = logging.getLogger("reread")

Predictions = Mapping[int, Any]
"""Example -> prediction, as `TaskDataset.decode` makes them."""

Scores = dict[str, float]
"""Name -> score."""

SCORES = "scores.json"
"""In the folder of a fine-tuning: split (dev, test) -> scores."""

MANY_LABELS = 20
"""With more labels the bag of characters is a support vector machine, which is much faster there."""


def write_scores(run: Path, scores: dict[str, Scores]) -> None:
    """Keep the scores of a run, by split."""
    write_atomically(run / SCORES, json.dumps(scores, indent=1).encode())


def read_scores(runs: Path, name: str) -> tuple[list[Path], dict[str, list[Scores]]]:
    """The runs of a fine-tuning in the folder `runs` that have scores, one for each seed, and split -> their scores."""
    seeds = [
        path for path in runs.glob(f"{name}-seed*") if re.fullmatch(r"\d+", path.name.removeprefix(f"{name}-seed"))
    ]
    known = {folder: scores for folder in sorted(seeds) if (scores := _scores_of(folder))}
    if not known and (scores := _scores_of(runs / name)):
        known = {runs / name: scores}
    splits = dict.fromkeys(split for scores in known.values() for split in scores)
    return list(known), {split: [scores[split] for scores in known.values() if split in scores] for split in splits}


def _scores_of(run: Path) -> dict[str, Scores]:
    """Split -> scores of a run; empty if there are none that can be read."""
    try:
        found = json.loads((run / SCORES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    splits = found if isinstance(found, dict) else {}
    return {split: scores for split, scores in splits.items() if isinstance(scores, dict) and _numbers(scores)}


def _numbers(scores: dict[str, object]) -> bool:
    return all(isinstance(value, int | float) for value in scores.values())


def print_scores(recipe: Recipe, measured: dict[str, list[Scores]]) -> None:
    """Print a table of our scores (split -> those of each seed), the baselines' of dev and the papers'."""
    settings = train_section(recipe).data
    assert isinstance(settings, TaskSettings)
    held_out = KINDS[settings.kind].open(settings, 0, "validation")
    assert isinstance(held_out, TaskDataset)
    sizes = {
        split: f"{len(examples_of(one, 'validation')):,} examples of {one.held_out.name}"
        for split, one in settings.splits.items()
        if split in measured
    }
    found = []
    if not len(held_out):
        sizes["dev"] = "scored on what it learned from"
    elif settings.train.exists():
        train = examples_of(settings, "train")
        sizes["dev"] = f"{len(train):,} training examples, {sizes['dev']}"
        found = [(name, held_out.scores(predictions)) for name, predictions in baselines(train, held_out)]
    else:
        log.info("%s is not there, so no baselines are computed", settings.train)
    for _, scores in found:
        scores.pop("auc", None)  # needs probabilities
    published = recipe.finetune.published if recipe.finetune else []
    print_wide(score_table(measured, sizes, found, published))


def print_wide(table: Table) -> None:
    """Print a table without breaking its cells; a terminal breaks longer lines."""
    unlimited = Console(width=10_000)
    needed = unlimited.measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def score_table(
    measured: dict[str, list[Scores]],
    sizes: dict[str, str],
    baselines: list[tuple[str, Scores]],
    published: list[Published],
) -> Table:
    """Our scores by split, with more than one seed as mean and standard deviation, and the `sizes` of the splits; the
    baselines' and the papers' below."""
    result = Table(box=box.SIMPLE)
    rows = [one for seeds in measured.values() for one in seeds] + [row.scores for row in published]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for column in ("", *names, "what differs"):
        result.add_column(column)
    for split, seeds in measured.items():
        ours = means(seeds)
        label = "ours" if split == "dev" else f"ours ({split})"
        label = label if len(seeds) == 1 else f"{label}, {len(seeds)} seeds"
        result.add_row(label, *(ours.get(name, "-") for name in names), sizes[split])
    for name, scores in baselines:
        result.add_row(f"baseline: {name}", *(f"{scores[one]:.2f}" if one in scores else "-" for one in names), "")
    for row in published:
        theirs = [f"{row.scores[name]:g}" if name in row.scores else "-" for name in names]
        result.add_row(f"paper: {row.model}", *theirs, row.differs)
    return result


def means(seeds: list[Scores]) -> dict[str, str]:
    """Each score's mean over the seeds that have it, with its standard deviation."""
    names = dict.fromkeys(name for scores in seeds for name in scores)
    return {name: mean_and_deviation([scores[name] for scores in seeds if name in scores]) for name in names}


def mean_and_deviation(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def baselines(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    """(name, predictions) of the trivial baselines of a task; none for numbers.

    One line is logged for a baseline that cannot be computed.
    """
    makers: dict[str, Callable[[list[Any], Any], Iterator[tuple[str, Predictions]]]] = {
        "classify-one": _one_label,
        "classify-set": _set_of_labels,
        "tag": _tags,
        "answer": _answers,
        "choose": _options,
    }
    if maker := makers.get(held_out.settings.scored_as):
        yield from maker(train, held_out)


def _one_label(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    chances = dict(zip(held_out.settings.labels, np.eye(len(held_out.settings.labels)), strict=True))
    labels, places = [str(one.label) for one in train], range(len(held_out))
    yield "majority", {place: chances[majority(labels)] for place in places}
    if any(one.second is not None for one in train):
        return  # a bag does not know which of the two texts a character is in
    unit, name = ("char", "characters") if _mostly_chinese(train) else ("word", "words")
    model = "logistic" if len(chances) <= MANY_LABELS else "svm"
    try:
        bag = BagOfGrams([one.text for one in train], labels, unit=unit, model=model)  # type: ignore[arg-type]
    except UserError as error:
        log.info("%s", error)
        return
    found = bag.predict([one.text for one in held_out.examples])
    yield f"bag of {name}", {place: chances[label] for place, label in enumerate(found)}


def _set_of_labels(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    usual = set(majority("\0".join(sorted(one.label)) for one in train).split("\0"))
    chances = np.array([float(label in usual) for label in held_out.settings.labels])
    yield "majority", dict.fromkeys(range(len(held_out)), chances)


def _tags(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    known = KnownEntities(((one.tokens, one.tags) for one in train), held_out.settings.scheme)
    yield "known entities", {place: tuple(known.tags(one.tokens)) for place, one in enumerate(held_out.examples)}


def _answers(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    clauses = [likeliest_clause(one.text, one.question) for one in held_out.examples]
    yield "likeliest clause", {place: Decoded(Span(*clause, 0.0, 1.0), ()) for place, clause in enumerate(clauses)}


def _options(train: list[Any], held_out: TaskDataset[Any, Any]) -> Iterator[tuple[str, Predictions]]:
    usual = majority(one.label for one in train)
    rules: dict[str, Callable[[Any], int]] = {
        "best fixed option": lambda one: min(usual, len(one.options) - 1),
        "longest option": lambda one: longest_option(one.options),
        "option with most characters in the text": lambda one: most_shared_option(one.text, one.options),
    }
    for name, rule in rules.items():
        yield name, {place: np.eye(len(one.options))[rule(one)] for place, one in enumerate(held_out.examples)}


def _mostly_chinese(examples: list[Any]) -> bool:
    text = "".join(one.text for one in islice(examples, 1000))
    return 2 * len(re.findall(r"[\u4e00-\u9fff]", text)) > len(re.findall(r"\w", text))
