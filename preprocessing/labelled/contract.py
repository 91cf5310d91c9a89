"""`jsonl`, our own format: one JSON object a line, with exactly the fields of the task's example."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from preprocessing.labelled.conll import joiner_of
from preprocessing.labelled.examples import (
    Answer,
    AnswerExample,
    ChooseExample,
    ClassifyExample,
    Example,
    TagExample,
)
from preprocessing.labelled.source import Source
from preprocessing.settings import Settings


class _Line(Settings):
    id: str | int | None = None


class _Classify(_Line):
    text: str
    second: str | None = None
    label: Any = None


class _Tag(_Line):
    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    joiner: Literal["", " "] | None = None


class _Span(Settings):
    start: int
    text: str


class _Answer(_Line):
    text: str
    question: str
    answers: tuple[_Span, ...] | None = None


class _Choose(_Line):
    text: str
    question: str
    options: tuple[str, ...]
    label: int | None = None
    group: str | None = None


LINES: dict[str, type[_Line]] = {"classify": _Classify, "tag": _Tag, "answer": _Answer, "choose": _Choose}
"""The fields of a line for each task."""


def read_contract(source: Source) -> Iterator[Example]:
    """The examples of a file in our own format; without `id`, a line's number is its id."""
    without_joiner: list[TagExample] = []
    for number, values in source.json_lines():
        place = source.place(number)
        line = source.parse(LINES[source.task], values, place)
        if line is None:
            continue
        identity = str(number if line.id is None else line.id)
        example = source.checked(place, lambda: _example(source, line, identity, place))  # noqa: B023
        if isinstance(line, _Tag) and line.joiner is None:
            without_joiner.append(example)
        elif example is not None:
            yield example
    joiner = joiner_of(source, (example.tokens for example in without_joiner))
    yield from (replace(example, joiner=joiner) for example in without_joiner)


def _example(source: Source, line: _Line, identity: str, place: str) -> Example:
    if isinstance(line, _Classify):
        return ClassifyExample(identity, place, line.text, line.second, source.label(line.label))
    if isinstance(line, _Tag):
        return TagExample(identity, place, line.tokens, line.tags, line.joiner or "")
    if isinstance(line, _Answer):
        spans = None if line.answers is None else tuple(Answer(span.start, span.text) for span in line.answers)
        return AnswerExample(identity, place, line.text, line.question, spans)
    assert isinstance(line, _Choose)
    return ChooseExample(identity, place, line.text, line.question, line.options, line.label, line.group)
