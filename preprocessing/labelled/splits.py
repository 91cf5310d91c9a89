"""The labels of training and held-out examples, and the texts that are in both."""

import json
import re
from collections import Counter
from collections.abc import Sequence

from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.labelled.examples import Example

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
    return Counter(name for example in examples for name in example.classes)


def check_labelled(examples: Sequence[Example]) -> None:
    """Raise `UserError` with the location of the first example without a label, tags or answers."""
    for example in examples:
        if example.target is None:
            raise UserError(f"{example.location}: no label; label it, or leave such examples out by `task.wrong=skip`")


def check_labels(known: Sequence[str], examples: Sequence[Example], stated: bool = False) -> None:
    """Raise `UserError` for the first example that has no label, or one that is not `known`.

    Known are the labels of `task.labels` where they are `stated`, else those of the training examples.
    """
    check_labelled(examples)
    counts = class_counts(examples)
    if not (unknown := counts.keys() - set(known)):
        return
    location, name = next((one.location, name) for one in examples for name in one.classes if name in unknown)
    count = f" ({counts[name]:,} times)" if counts[name] > 1 else ""
    near = f"did you mean `{close[0]}`? " if (close := close_to(name, known)) else ""
    if stated:
        why = f"is none of task.labels; {near}Correct it, add it there,"
    else:
        why = (
            f"is in no training example, so it cannot be learnt; {near}Correct it, add training examples, state the "
            f"classes by {stated_labels(known)}, which refuses others,"
        )
    raise UserError(f"{location}: label `{name}`{count} {why} or leave such examples out by `task.wrong=skip`")


def stated_labels(labels: Sequence[str]) -> str:
    """The setting for these labels, as typed on a command line."""
    more = ", ..." if len(labels) > _SHOWN else ""
    return f"'task.labels=[{json.dumps(list(labels[:_SHOWN]), ensure_ascii=False)[1:-1]}{more}]'"


def with_labels(examples: Sequence[Example], known: Sequence[str]) -> tuple[list[Example], list[str]]:
    """The examples whose labels are all `known` (or, if that is empty, labelled), and a line for each other example."""
    names, kept, left_out = set(known), list[Example](), list[str]()
    for example in examples:
        unknown = [name for name in example.classes if name not in names] if names else []
        if example.target is None:
            left_out.append(str(UserError(f"{example.location}: no label")))
        elif unknown:
            left_out.append(str(UserError(f"{example.location}: label `{unknown[0]}` is unknown")))
        else:
            kept.append(example)
    return kept, left_out


def duplicates(train: Sequence[Example], dev: Sequence[Example]) -> int:
    """The number of examples of `dev` whose text, with its second text or question, is also in `train`."""
    known = {example.content for example in train}
    return sum(example.content in known for example in dev)
