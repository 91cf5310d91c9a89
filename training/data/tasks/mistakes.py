"""The mistakes of a fine-tuned model: scores by class, the classes that it confuses, and its worst errors."""

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any

from reread.training.data.tasks.dataset import Names, TaskDataset

WORST = 20
"""Errors that are kept."""
MOST_CLASSES = 200
"""Classes whose scores are kept, the most frequent ones."""
CONFUSED = 20
"""Classes of a table of confusion, the most frequent ones."""


def analysis(data: TaskDataset[Any, Any], predictions: Mapping[int, Any]) -> dict[str, Any]:
    """The mistakes in predictions, as JSON values:

    - `examples`, `wrong`: the number of examples, and of wrong predictions;
    - `classes`: for each class its name, and how often it is gold, is predicted, and is both;
    - `confusion`: rows of gold classes with counts of the predicted ones; None unless an example has one class;
    - `worst`: id, text, gold and prediction of the worst errors.
    """
    found = ((index, data.mistake(index, predictions[index])) for index in range(len(data)))
    wrong = [(-one.weight, index) for index, one in found if one]
    worst = [(index, data.mistake(index, predictions[index])) for _, index in nsmallest(WORST, wrong)]
    return {
        "examples": len(data),
        "wrong": len(wrong),
        "classes": _classes(data.named(index, predictions[index]) for index in range(len(data))),
        "confusion": _confusion(data, predictions) if data.has_confusion else None,
        "worst": [
            {"id": data.examples[index].id, "text": one.text, "gold": one.gold, "predicted": one.predicted}
            for index, one in worst
            if one
        ],
    }


def _classes(named: Iterable[tuple[Names, Names]]) -> list[list[Any]]:
    gold, made, right = Counter[str](), Counter[str](), Counter[str]()
    for names, guesses in named:
        gold.update(one[0] for one in names)
        made.update(one[0] for one in guesses)
        right.update(one[0] for one in set(names) & set(guesses))
    every = sorted(gold | made, key=lambda name: (-gold[name], name))
    return [[name, gold[name], made[name], right[name]] for name in every[:MOST_CLASSES]]


def _confusion(data: TaskDataset[Any, Any], predictions: Mapping[int, Any]) -> dict[str, Any]:
    pairs = Counter((one.label, data.scored(index, predictions[index])) for index, one in enumerate(data.examples))
    often = Counter(one.label for one in data.examples)
    labels = sorted(data.settings.labels, key=lambda name: -often[name])[:CONFUSED]
    return {"labels": labels, "rows": [[pairs[gold, guess] for guess in labels] for gold in labels]}
