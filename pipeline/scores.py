"""The scores of fine-tuned runs beside baselines without a neural network and the papers' scores."""

import logging
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.recipe import Published, Recipe, train_section
from preprocessing.errors import UserError
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

MANY_LABELS = 20
"""With more labels the bag of characters is a support vector machine, which is much faster there."""


def print_scores(recipe: Recipe, measured: list[dict[str, float]]) -> None:
    """Print a table of our scores (one mapping for each seed), the baselines' and the papers'."""
    settings = train_section(recipe).data
    assert isinstance(settings, TaskSettings)
    held_out = KINDS[settings.kind].open(settings, 0, "validation")
    assert isinstance(held_out, TaskDataset)
    size, found = "scored on what it learned from", []
    if len(held_out):
        size = f"{len(held_out):,} examples of {settings.held_out.name}"
        if settings.train.exists():
            train = examples_of(settings, "train")
            size = f"{len(train):,} training examples, {size}"
            found = [(name, held_out.scores(predictions)) for name, predictions in baselines(train, held_out)]
        else:
            log.info("%s is not there, so no baselines are computed", settings.train)
    for _, scores in found:
        scores.pop("auc", None)  # needs probabilities
    published = recipe.finetune.published if recipe.finetune else []
    print_wide(score_table(measured, size, found, published))


def print_wide(table: Table) -> None:
    """Print a table without breaking its cells; a terminal breaks longer lines."""
    unlimited = Console(width=10_000)
    needed = unlimited.measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def score_table(
    measured: list[dict[str, float]],
    size: str,
    baselines: list[tuple[str, dict[str, float]]],
    published: list[Published],
) -> Table:
    """Our scores, with more than one seed as mean and standard deviation; the baselines' and the papers' below."""
    result = Table(box=box.SIMPLE)
    names = list(dict.fromkeys([*measured[0], *(name for row in published for name in row.scores)]))
    for column in ("", *names, "what differs"):
        result.add_column(column)
    ours = [mean_and_deviation([scores[name] for scores in measured if name in scores]) for name in names]
    result.add_row("ours" if len(measured) == 1 else f"ours, {len(measured)} seeds", *ours, size)
    for name, scores in baselines:
        result.add_row(f"baseline: {name}", *(f"{scores[one]:.2f}" if one in scores else "-" for one in names), "")
    for row in published:
        theirs = [f"{row.scores[name]:g}" if name in row.scores else "-" for name in names]
        result.add_row(f"paper: {row.model}", *theirs, row.differs)
    return result


def mean_and_deviation(values: list[float]) -> str:
    if not values:
        return "-"
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
