"""The classes of a task's files and how often each occurs: for the log, `reread inspect` and the report."""

import logging
from collections import Counter
from collections.abc import Mapping

from reread.preprocessing.errors import close_to
from reread.preprocessing.labelled.splits import check_labels, class_counts, stated_labels
from reread.training.data.tasks.class_weights import class_weights
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings

log = logging.getLogger("reread")

FEW = 5
"""A class with fewer training examples gets a warning, since its label may be mistyped."""
LISTED = 20
"""Number of classes that a line of the log lists."""


def classes_of(settings: TaskSettings) -> dict[str, Counter[str]]:
    """Split (train, dev, test) -> how many examples have each label, or how many tokens each tag.

    Every label of `settings.labels` has a count, perhaps 0. Empty for a task without classes. Raises `UserError` for a
    label that is not among them.
    """
    if not settings.has_classes:
        return {}
    examples = {"train": examples_of(settings, "train")}
    examples |= {split: examples_of(one, "validation") for split, one in settings.splits.items()}
    for found in examples.values():
        check_labels(settings.labels, found)
    absent = dict.fromkeys(settings.labels, 0)
    return {split: Counter({**absent, **class_counts(found)}) for split, found in examples.items()}


def report_classes(settings: TaskSettings) -> None:
    """Log the classes of each file with their counts, and warn of classes with few training examples."""
    counts = classes_of(settings)
    for split, found in counts.items():
        log.info("task.%s: %s: %s", split, _title(settings, found), _listed(found))
    if weights := class_weights(settings, counts.get("train", {}), len(examples_of(settings, "train"))):
        told = [f"{label} {weight:.4g}" for label, weight in zip(settings.labels, weights, strict=True)]
        log.info("task.class_weights: %s%s", ", ".join(told[:LISTED]), ", ..." * (len(told) > LISTED))
    report_rare(settings, counts)


def report_rare(settings: TaskSettings, counts: Mapping[str, Counter[str]]) -> None:
    """Warn if the training file has few examples of a class, whose label may be mistyped, or one class alone."""
    train = counts.get("train", Counter())
    there = [name for name, count in train.items() if count]
    if len(there) == 1 and settings.label_form == "one":
        log.warning(
            "task.train: all %s have the label `%s`, from which nothing can be learned; is that the column of labels "
            "(task.columns.label), or is the file sorted by label and cut?",
            unit_of(settings),
            there[0],
        )
    rare = [name for name, count in reversed(train.most_common()) if count < FEW]
    if rare:
        others = [name for name in train if name not in rare]
        log.warning(
            "task.train: %d of %d classes have fewer than %d %s: %s; correct a label that is mistyped, or state the "
            "classes by %s, which refuses others",
            len(rare),
            len(train),
            FEW,
            unit_of(settings),
            ", ".join(_rare(name, train, others) for name in rare[:LISTED]) + (", ..." if len(rare) > LISTED else ""),
            stated_labels(others or list(train)),
        )


def unit_of(settings: TaskSettings) -> str:
    """Unit of the counts: tokens or examples."""
    return "tokens" if settings.kind == "tag" else "examples"


def _title(settings: TaskSettings, counts: Mapping[str, int]) -> str:
    return f"{len(counts):,} {'tags' if settings.kind == 'tag' else 'classes'}"


def _listed(counts: Counter[str]) -> str:
    """The most frequent classes with their counts, and how many others there are."""
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(LISTED))
    more = len(counts) - LISTED
    return f"{shown} and {more:,} others" if more > 0 else shown


def _rare(name: str, counts: Counter[str], others: list[str]) -> str:
    """A rare class with its count and the class that it may be a misspelling of."""
    near = close_to(name, others)
    return f"`{name}` {counts[name]}{f' (like `{near[0]}`, {counts[near[0]]:,})' if near else ''}"
