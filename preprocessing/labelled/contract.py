"""`jsonl`, our own format: one JSON object a line, with the fields of the task's example.

Other fields are left out, and named in the log. One that may be a field misspelt is an error.
"""

import logging
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

from preprocessing.input.fields import listed
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
from preprocessing.labelled.tables import NAMES
from preprocessing.settings import Settings

log = logging.getLogger("reread")
_SIMILAR = 0.7
"""`txet` and `texts` are `text` misspelt, `type` is not."""


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
    lines = _lines(source)
    joiner = ""
    if source.task == "tag":
        lines = iter(parsed := list(lines))
        joiner = joiner_of(
            source, (line.tokens for _, line in parsed if isinstance(line, _Tag) and line.joiner is None)
        )
    for number, line in lines:
        identity, place = str(number if line.id is None else line.id), source.place(number)
        if isinstance(line, _Classify):
            try:
                label = source.label(line.label)
            except ValueError as error:
                source.mistake(place, str(error))
                continue
            yield ClassifyExample(identity, place, line.text, line.second, label)
        elif isinstance(line, _Tag):
            yield TagExample(identity, place, line.tokens, line.tags, joiner if line.joiner is None else line.joiner)
        elif isinstance(line, _Answer):
            spans = None if line.answers is None else tuple(Answer(span.start, span.text) for span in line.answers)
            yield AnswerExample(identity, place, line.text, line.question, spans)
        elif isinstance(line, _Choose):
            yield ChooseExample(identity, place, line.text, line.question, line.options, line.label, line.group)


def _lines(source: Source) -> Iterator[tuple[int, _Line]]:
    model, left_out = LINES[source.task], dict[str, None]()
    for number, values in source.json_lines():
        others = _others(model, tuple(values))
        left_out |= dict.fromkeys(others)
        line = source.parse(
            model, {key: value for key, value in values.items() if key not in others}, source.place(number)
        )
        if line is not None:
            yield number, line
    if left_out:
        known = ", ".join(model.model_fields)
        log.warning("%s: fields that are none of %s are left out: %s", source.path, known, listed(left_out))


@lru_cache(maxsize=256)  # the lines of a file mostly have the same fields
def _others(model: type[_Line], names: tuple[str, ...]) -> list[str]:
    """The fields among a line's `names` that are not ours, but for those that may be one of ours misspelt."""
    fields = model.model_fields
    required = [name for name in fields if fields[name].is_required()]
    if any(name not in names for name in required):
        return []
    wanted = [*required, *(name for name in fields if name not in names and name != "id")]
    ours = {*wanted, *(NAMES["second"] if "second" in wanted else ())}
    return [name for name in names if name not in fields and not get_close_matches(name, ours, 1, _SIMILAR)]
