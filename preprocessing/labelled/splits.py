"""The labels of training and held-out examples, and the texts that are in both."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.mapped import summary_of, where

_SHOWN = 30
"""Labels that a message lists."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def labels_of(train: Sequence[Example]) -> list[str]:
    """The labels or tags of the training examples, numbers in their order as numbers, else in that of their characters.

    Empty for numbers to predict, and for tasks whose examples have no `classes`. Raises `UserError` for an
    example without a label.
    """
    check_labelled(train)
    names = class_counts(train)
    if all(map(_NUMBER.fullmatch, names)):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def class_counts(examples: Sequence[Example]) -> Counter[str]:
    """The number of examples with each label, or of tokens with each tag."""
    return summary_of(examples).counts


def check_labelled(examples: Sequence[Example]) -> None:
    """Raise `UserError` with the location of the first example without a label, tags or answers."""
    if (location := summary_of(examples).unlabelled) is None:
        return
    if all(one.target is None for one in examples):
        raise UserError(
            f"{location}: no label, nor has any other example of the file; name its field by `task.columns`; of texts "
            "without labels `reread predict` writes predictions"
        )
    raise UserError(f"{location}: no label; label it, or leave such examples out by `task.wrong=skip`")


def check_labels(known: Sequence[str], examples: Sequence[Example], stated: bool = False) -> None:
    """Raise `UserError` for the first example that has no label, or one that is not `known`.

    Known are the labels of `task.labels` where they are `stated`, else those of the training examples.
    """
    check_labelled(examples)
    summary, names = summary_of(examples), set(known)
    counts = summary.counts
    if (name := next((name for name in counts if name not in names), None)) is None:
        return
    location = summary.first[name]
    count = f" ({counts[name]:,} times)" if counts[name] > 1 else ""
    near = f"did you mean `{close[0]}`? Correct" if (close := close_to(name, known)) else "correct"
    if stated:
        why = f"is none of task.labels; {near} it, add it there,"
    else:
        why = (
            f"is in no training example, so it cannot be learnt; {near} it, add training examples, state the "
            f"classes by {stated_labels(known)}, which refuses others,"
        )
    raise UserError(f"{location}: label `{name}`{count} {why} or leave such examples out by `task.wrong=skip`")


def stated_labels(labels: Sequence[str]) -> str:
    """The setting for these labels, as typed on a command line."""
    more = ", ..." if len(labels) > _SHOWN else ""
    return f"'task.labels=[{json.dumps(list(labels[:_SHOWN]), ensure_ascii=False)[1:-1]}{more}]'"


def with_labels(examples: Sequence[Example], known: Sequence[str]) -> tuple[Sequence[Example], list[str]]:
    """The examples whose labels are all `known` (or, if that is empty, labelled), and a line for each other example."""
    names, left_out, summary = set(known), list[str](), summary_of(examples)
    if summary.unlabelled is None and (not names or summary.counts.keys() <= names):
        return examples, left_out

    def wanted(example: Example) -> bool:
        unknown = [name for name in example.classes if name not in names] if names else []
        if example.target is None:
            left_out.append(str(UserError(f"{example.location}: no label")))
        elif unknown:
            left_out.append(str(UserError(f"{example.location}: label `{unknown[0]}` is unknown")))
        return example.target is not None and not unknown

    return where(examples, wanted), left_out


def duplicates(train: Iterable[Example], dev: Sequence[Example]) -> int:
    """The number of examples of `dev` whose text, with its second text or question, is also in `train`."""
    wanted = {example.content for example in dev}  # held-out files are the smaller ones
    known = {content for example in train if (content := example.content) in wanted}
    return sum(example.content in known for example in dev)
