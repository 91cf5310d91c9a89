"""Reading a file of labelled data: its examples, and what was wrong in it."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reread.preprocessing.errors import UserError, first_line, nearest
from reread.preprocessing.labelled.checks import sound
from reread.preprocessing.labelled.examples import NOTHING, Example, Given
from reread.preprocessing.labelled.formats.table import FORMATS, check_form, recognise
from reread.preprocessing.labelled.source import Labels, Source
from reread.preprocessing.labelled.tasks import TASKS

log = logging.getLogger("reread")


_EXAMPLE = 400
"""Bytes of memory that an example takes beside its texts."""


class Found(NamedTuple):
    examples: list[Example]
    skipped: list[str]
    """One line, with file and position, for each example that is left out."""
    misplaced: list[str] = []
    """The same for each question with answers that do not stand where the file says; these are scored, not learned."""


def read_examples(
    path: Path,
    task: str,
    format: str | None = None,
    *,
    columns: Mapping[str, str] = {},
    wrong: Literal["refuse", "skip"] = "refuse",
    misplaced: float = 0.0,
    labels: Labels = "one",
    join: str = "\n",
    label_separator: str | None = None,
    given: Given = NOTHING,
) -> Found:
    """The examples of a file or folder for `task`, in the file's order.

    `format` is a key of `FORMATS`, or None to recognise it. `columns` names a field of the example -> where the file
    has it (tsv, csv, clue, jsonl; semeval), `join` stands between the texts that such a path finds. `labels` is what a
    text to classify has: one label, a set of them (`label_separator` stands between them in one text) or a number.
    `given` is what the task says of texts that come alone. With `wrong="skip"` examples with mistakes are left out and
    listed. Raises `UserError` for a mistake with `wrong="refuse"`, for a file that cannot be read at all or looks like
    another format, for one without a sound example, and with `wrong="refuse"` where more than the share `misplaced` of
    the questions have an answer that does not stand where the file says.
    """
    if label_separator and labels != "set":
        raise UserError("task.label_separator: is for sets of labels; set task.answer=set, too")
    source = Source(Path(path), task, columns, labels, join, label_separator, given)
    name = _format(source, format)
    try:
        check_form(source, name)
        examples = _sound(source, FORMATS[name].read(source))
    except UserError as error:
        raise UserError(f"{error}{_way_out(source, name)}") from None
    mistakes = source.mistakes
    if mistakes and (wrong == "refuse" or not examples):
        count = f" (the first of {len(mistakes):,} mistakes)" if len(mistakes) > 1 else ""
        leave_out = "; correct it, or leave such examples out by `task.wrong=skip`"
        raise UserError(f"{mistakes[0]}{count}{leave_out if examples else _way_out(source, name)}")
    if not examples:
        looks = FORMATS[name].looks
        raise UserError(f"{source.name}: no examples in it; it should hold {looks}{_way_out(source, name)}")
    if mistakes:
        log.warning(f"{path}: {len(mistakes):,} mistakes are left out, the first: {mistakes[0]}")
    found = Found(examples, mistakes, list(source.misplaced.values()))
    if found.misplaced:
        _check_misplaced(path, found, 1.0 if wrong == "skip" else misplaced)
    return found


class _Values(Source):
    """Values that a program gives, as if they were the lines of a file."""

    values: Sequence[Any] = ()

    @property
    def name(self) -> str:
        return "text"

    def place(self, position: str | int) -> str:
        return f"text {position - 1}" if isinstance(position, int) else f"text: {position}"

    @cached_property
    def data(self) -> bytes:
        lines = [{"text": one} if isinstance(one, str) else one for one in self.values]
        return "".join(f"{json.dumps(one)}\n" for one in lines).encode()


def examples_in(
    values: Sequence[str | Mapping[str, Any]], task: str, *, labels: Labels = "one", given: Given = NOTHING
) -> list[Example]:
    """An example for each of `values`: a text, or the fields of a line of our own format `jsonl`.

    Other arguments are as in `read_examples`. Raises `UserError` for the first value that is wrong, which is named by
    its index.
    """
    source = _Values(Path("text"), task, labels=labels, given=given)
    for number, one in enumerate(values):
        if not isinstance(one, str | Mapping):
            raise UserError(f"text {number}: {one!r} is a {type(one).__name__}, neither a text nor a dict")
    try:
        source.values = [one if isinstance(one, str) else dict(one) for one in values]
        examples = _sound(source, FORMATS["jsonl"].read(source))
    except TypeError as error:
        raise UserError(f"a dict of a text holds what JSON does not have ({first_line(error)})") from None
    if source.mistakes:
        raise UserError(source.mistakes[0])
    return examples


def _sound(source: Source, read: Iterable[Example]) -> list[Example]:
    examples: list[Example] = []
    places: dict[str, str] = {}
    for one in read:
        example = sound(source, one)
        if example is None:
            continue
        source.spend(_EXAMPLE)
        if example.id in places:
            source.mistake(example.place, f"id `{example.id}` stands already at {places[example.id]}; give it another")
            continue
        places[example.id] = example.place
        examples.append(example)
    return examples


def _check_misplaced(path: Path, found: Found, allowed: float) -> None:
    """Log how many questions have an answer that does not stand where the file says. Raises `UserError` if they are
    more than the share `allowed`."""
    count, total, first = len(found.misplaced), len(found.examples), found.misplaced[0]
    questions = f"{count:,} of {total:,} questions ({count / total:.2%}) have an answer that is not where the file says"
    if count > allowed * total:
        limit = f", where task.misplaced allows {allowed:.2%}" if allowed else ""
        raise UserError(
            f"{path}: {questions}{limit}; correct them, or leave such answers out of training by `task.wrong=skip`; "
            f"the first: {first}"
        )
    lost = sum(not one.can_be_learned for one in found.examples)
    log.warning(
        f"{path}: {questions}: such answers are scored and not learned, nor are {lost:,} questions without another "
        f"one; the first: {first}"
    )


def _way_out(source: Source, name: str) -> str:
    """What to set where a file that was read as `name` is not that."""
    way = "plain text is read by document-per-line or document-per-file, other formats are in docs/commands.md"
    try:
        other, reason = recognise(source)
        if other != name and source.task in FORMATS[other].tasks:
            way = f"it may be {other} ({reason})"
    except (UserError, OSError):
        if "data" not in vars(source):  # damaged, or not to be read at all
            return ""
    return f"; it is read as `task.format={name}`: {way}"


def _format(source: Source, name: str | None) -> str:
    """The key of `FORMATS` by which to read."""
    if name is not None and name not in FORMATS:
        raise UserError(f"task.format: `{name}` is unknown; {nearest(name, FORMATS)}")
    reason = ""
    if name is None:
        name, reason = recognise(source)
    chosen = FORMATS[name]
    if source.task not in chosen.tasks:
        fitting = [name for name, format in FORMATS.items() if source.task in format.tasks]
        why = f" ({reason})" if reason else ""
        raise UserError(
            f"{source.path}: format {name}{why} is for {', '.join(chosen.tasks)}, not for {source.task}, which reads "
            f"{', '.join(fitting)}; name another `task.format`"
        )
    if source.task == "classify" and source.labels not in chosen.labels:
        raise UserError(
            f"task.answer: format {name} gives each text one label, not `{source.labels}`; use jsonl, tsv or csv"
        )
    line = TASKS[source.task]
    names = tuple(line.model_fields) if name == "jsonl" else tuple(line.cells) if chosen.columns else ()
    for field in source.columns:
        if field not in names:
            known = nearest(field, names) if names else "it has none to name"
            raise UserError(f"task.columns: `{field}` is unknown to format {name}; {known}")
    if reason:
        log.info(f"{source.path}: read as {name} ({reason})")
    return name
