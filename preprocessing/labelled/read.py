"""Reads a file of labelled data: its examples and its mistakes."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reread.preprocessing.errors import UserError, first_line, nearest
from reread.preprocessing.labelled.checks import sound
from reread.preprocessing.labelled.examples import NOTHING, Example, Given
from reread.preprocessing.labelled.file import LabelledFile, Labels
from reread.preprocessing.labelled.formats.table import FORMATS, check_form, recognise
from reread.preprocessing.labelled.tasks import TASKS

log = logging.getLogger("reread")


_EXAMPLE = 400
"""Bytes of memory that an example takes beside its texts."""


class Found(NamedTuple):
    examples: Sequence[Example]
    skipped: list[str]
    """One line, with file and position, for each example that is left out."""
    misplaced: list[str] = []
    """The same for each example with misplaced answers or phrases, which are scored but not learned."""


def read_examples(
    path: Path,
    task: str,
    format: str | None = None,
    *,
    columns: Mapping[str, str] = {},
    wrong: Literal["refuse", "skip"] = "refuse",
    misplaced: float = 0.0,
    irrelevant: float = 1.0,
    labels: Labels = "one",
    join: str = "\n",
    label_separator: str | None = None,
    given: Given = NOTHING,
    keep: Callable[[Iterable[Example]], Sequence[Example]] = list,
) -> Found:
    """The examples of a file or folder for `task`, in the file's order, as `keep` keeps them.

    - `format`: a key of `FORMATS`, or None to recognise it.
    - `columns`: field of the example -> its name or path in the file (tsv, csv, clue, jsonl; semeval); `join` separates
      the texts that such a path finds.
    - `labels`: a text to classify has one label, a set of labels (separated by `label_separator` in one text) or a
      number.
    - `given`: values for raw texts.

    With `wrong="skip"` examples with mistakes are left out and listed. Raises `UserError` for a file that cannot be
    read or looks like another format, for one without a valid example, and with `wrong="refuse"` for a mistake, or if
    more than the share `misplaced` of the examples have a misplaced answer or phrase, or more than the share
    `irrelevant` of the queries no relevant passage.
    """
    if label_separator and labels != "set":
        raise UserError("task.label_separator: separates labels of a set; set task.answer=set, too, or leave it out")
    source = LabelledFile(Path(path), task, columns, labels, join, label_separator, given)
    name = _format(source, format)
    try:
        check_form(source, name)
        examples = keep(_sound(source, FORMATS[name].read(source)))
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
    if task == "rank":
        _check_irrelevant(path, examples, 1.0 if wrong == "skip" else irrelevant)
    return found


class _Values(LabelledFile):
    """Values that a program gives, as if they were the lines of a file."""

    values: Sequence[Any] = ()

    name = "text"

    def location(self, position: str | int) -> str:
        return f"text {position - 1}" if isinstance(position, int) else f"text: {position}"

    is_plain = False

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
        examples = list(_sound(source, FORMATS["jsonl"].read(source)))
    except TypeError as error:
        raise UserError(f"a dict of a text holds what JSON does not have ({first_line(error)})") from None
    if source.mistakes:
        raise UserError(source.mistakes[0])
    return examples


def _sound(source: LabelledFile, read: Iterable[Example]) -> Iterator[Example]:
    locations: dict[str, str] = {}
    for one in read:
        example = sound(source, one)
        if example is None:
            continue
        source.spend(_EXAMPLE)
        if example.id in locations:
            source.mistake(
                example.location, f"id `{example.id}` stands already at {locations[example.id]}; give it another"
            )
            continue
        locations[example.id] = example.location
        yield example


def _check_misplaced(path: Path, found: Found, allowed: float) -> None:
    """Log how many examples have a misplaced part. Raises `UserError` if they are more than the share `allowed`."""
    count, total, first = len(found.misplaced), len(found.examples), found.misplaced[0]
    name, wrong, parts = found.examples[0].misplaced
    questions = f"{count:,} of {total:,} {name} ({count / total:.2%}) have {wrong}"
    if count > allowed * total:
        limit = f", where task.misplaced allows {allowed:.2%}" if allowed else ""
        raise UserError(
            f"{path}: {questions}{limit}; correct them, or leave such {parts} out of training by `task.wrong=skip`; "
            f"the first: {first}"
        )
    lost = sum(not one.can_be_learned for one in found.examples)
    log.warning(
        f"{path}: {questions}: such {parts} are scored and not learned, nor are {lost:,} {name} without another "
        f"one; the first: {first}"
    )


def _check_irrelevant(path: Path, examples: Sequence[Example], allowed: float) -> None:
    """Log how many queries have no relevant passage. Raises `UserError` if they are more than the share `allowed`."""
    without = [one.location for one in examples if not one.can_be_learned]
    if not without:
        return
    count, total = len(without), len(examples)
    queries = f"{count:,} of {total:,} queries ({count / total:.2%}) have no passage with a grade above 0"
    if count > allowed * total:
        raise UserError(
            f"{path}: {queries}, where task.irrelevant allows {allowed:.2%}; grade a passage of each, or leave such "
            f"queries out of training by `task.wrong=skip`; the first: {without[0]}"
        )
    log.info(f"{path}: {queries}: nothing is learned from them, and their scores are 0; the first: {without[0]}")


def _way_out(source: LabelledFile, name: str) -> str:
    """The hint for a file that was read as `name`, but may have another format."""
    plain = [
        one for one in ("document-per-line", "document-per-file") if source.task in FORMATS[one].tasks and one != name
    ]
    way = f"plain text is read by {' or '.join(plain)}, other" if plain else "other"
    way += " formats are in docs/commands.md"
    try:
        other, reason = recognise(source)
        if other != name and source.task in FORMATS[other].tasks:
            way = f"it may be {other} ({reason})"
    except (UserError, OSError):
        if not {"data", "head"} & vars(source).keys():  # it is damaged or cannot be read
            return ""
    return f"; it is read as `task.format={name}`: {way}"


def _format(source: LabelledFile, name: str | None) -> str:
    """The key of `FORMATS` by which the file is read; raises `UserError` if that format does not fit the task."""
    # The format that is named, or recognised
    if name is not None and name not in FORMATS:
        raise UserError(f"task.format: `{name}` is unknown; {nearest(name, FORMATS)}")
    reason = ""
    if name is None:
        name, reason = recognise(source)
    chosen = FORMATS[name]
    # It must be for this task, this form of labels and these columns.
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
            known = nearest(field, names) if names else "this format names no columns"
            raise UserError(f"task.columns: `{field}` is unknown to format {name}; {known}")
    if reason:
        log.info(f"{source.path}: read as {name} ({reason})")
    return name
