"""Training and held-out examples side by side: their labels, and what stands in both."""

import re
from collections.abc import Hashable, Iterator, Sequence

from preprocessing.errors import UserError
from preprocessing.labelled.examples import AnswerExample, ChooseExample, ClassifyExample, Example, TagExample

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def labels_of(train: Sequence[Example]) -> list[str]:
    """The labels or tags of the training examples, numbers in their order as numbers, else in that of their characters.

    Empty for numbers to predict, and for tasks without labels of their own (answer, choose). Raises `UserError` for an
    example without a label.
    """
    check_labelled(train)
    names = {name for example in train for name in _labels(example)}
    if all(map(_NUMBER.fullmatch, names)):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def check_labelled(examples: Sequence[Example]) -> None:
    """Raise `UserError` with the place of the first example without a label, tags or answers."""
    for example in examples:
        if _target(example) is None:
            raise UserError(f"{example.place}: no label; label it, or delete it where labels are needed")


def check_labels(train: Sequence[Example], dev: Sequence[Example]) -> None:
    """Raise `UserError` for the first example of `dev` that has no label, or one that no example of `train` has."""
    check_labelled(dev)
    known = set(labels_of(train))
    for example in dev:
        for name in _labels(example):
            if name not in known:
                raise UserError(
                    f"{example.place}: label `{name}` is in no training example, so it cannot be learnt; correct it, "
                    "or add training examples"
                )


def duplicates(train: Sequence[Example], dev: Sequence[Example]) -> int:
    """How many examples of `dev` have a text (with its second text or question) that stands in `train`, too."""
    known = {_content(example) for example in train}
    return sum(_content(example) in known for example in dev)


def _target(example: Example) -> object:
    if isinstance(example, ClassifyExample | ChooseExample):
        return example.label
    if isinstance(example, TagExample):
        return example.tags
    assert isinstance(example, AnswerExample)
    return example.answers


def _labels(example: Example) -> Iterator[str]:
    target = _target(example) if isinstance(example, ClassifyExample | TagExample) else None
    if isinstance(target, str):
        yield target
    elif isinstance(target, tuple):
        yield from target


def _content(example: Example) -> Hashable:
    if isinstance(example, ClassifyExample):
        return example.text, example.second
    if isinstance(example, TagExample):
        return example.tokens
    assert isinstance(example, AnswerExample | ChooseExample)
    return example.text, example.question
