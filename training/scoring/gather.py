"""Pairs gold and predictions by the id of the example, and averages over examples.

Every score takes two mappings, id -> gold and id -> prediction, so it depends neither on the order of the examples nor
on the batches they were predicted in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from reread.preprocessing.errors import UserError

Gold = TypeVar("Gold")
Predicted = TypeVar("Predicted")


def paired(gold: Mapping[str, Gold], predicted: Mapping[str, Predicted]) -> list[tuple[Gold, Predicted | None]]:
    """The gold and the prediction of each example. A missing prediction is None, which counts as wrong.

    Raises `UserError` for a prediction without gold, and if there is no gold at all.
    """
    if not gold:
        raise UserError("there is nothing to score: no example has a label")
    if strangers := sorted(predicted.keys() - gold.keys()):
        raise UserError(
            f"{len(strangers):,} predictions are of examples without a label, first `{strangers[0]}`; "
            "score the predictions of the same file"
        )
    return [(label, predicted.get(name)) for name, label in gold.items()]


def points(values: Sequence[float]) -> float:
    """The mean of `values` times 100. The sum is exactly rounded, so their order does not matter."""
    return 100 * math.fsum(values) / len(values)


def percent(part: float, whole: float) -> float:
    """100 part / whole; 0 if `whole` is 0."""
    return 100 * part / whole if whole else 0.0


def f1(right: int, predicted: int, gold: int) -> float:
    """F1 in points, 2 right / (predicted + gold), from three numbers of decisions; 0 if both are 0."""
    return percent(2 * right, predicted + gold)


def known(values: Iterable[str], labels: Sequence[str]) -> None:
    """Raises `UserError` for a value that is not among `labels`."""
    if unknown := sorted(set(values) - set(labels)):
        raise UserError(f"label `{unknown[0]}` is not one of the {len(labels):,} labels of the training data")
