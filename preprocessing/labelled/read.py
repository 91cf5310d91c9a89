"""Reading a file of labelled data: its examples, and what was wrong in it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from preprocessing.errors import UserError, nearest
from preprocessing.labelled.checks import sound
from preprocessing.labelled.examples import Example
from preprocessing.labelled.formats import FORMATS, Format, recognise
from preprocessing.labelled.source import Labels, Source, Task

log = logging.getLogger("reread")


class Found(NamedTuple):
    examples: list[Example]
    skipped: list[str]
    """One line, with file and position, for each example or answer that is left out."""


def read_examples(
    path: Path,
    task: Task,
    format: str | None = None,
    *,
    columns: Mapping[str, str] = {},
    wrong: Literal["refuse", "skip"] = "refuse",
    labels: Labels = "one",
) -> Found:
    """The examples of a file or folder for `task`, in the file's order.

    `format` is a key of `FORMATS`, or None to recognise it. `columns` names a field of the example -> what the file
    calls it (tsv, csv, clue, semeval). `labels` is what a text to classify has: one label, a set of them or a number.
    With `wrong="skip"` examples with mistakes are left out and listed. Raises `UserError` for a mistake with
    `wrong="refuse"`, for a file that cannot be read at all, and for one without a sound example.
    """
    source = Source(Path(path), task, columns, labels)
    chosen = _format(source, format)
    examples: list[Example] = []
    places: dict[str, str] = {}
    for read in chosen.read(source):
        example = sound(read, source.mistake)
        if example is None:
            continue
        if example.id in places:
            source.mistake(example.place, f"id `{example.id}` stands already at {places[example.id]}; give it another")
            continue
        places[example.id] = example.place
        examples.append(example)
    mistakes = source.mistakes
    if mistakes and (wrong == "refuse" or not examples):
        count = f" (the first of {len(mistakes):,} mistakes)" if len(mistakes) > 1 else ""
        way_out = "; correct it, or leave such examples out by `task.wrong=skip`" if examples else ""
        raise UserError(f"{mistakes[0]}{count}{way_out}")
    if not examples:
        raise UserError(f"{path}: no examples in it; it should hold {chosen.looks}")
    if mistakes:
        log.warning(f"{path}: {len(mistakes):,} mistakes are left out, the first: {mistakes[0]}")
    return Found(examples, mistakes)


def _format(source: Source, name: str | None) -> Format:
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
    for field in source.columns:
        if field not in chosen.columns:
            known = nearest(field, chosen.columns) if chosen.columns else "it has none to name"
            raise UserError(f"task.columns: `{field}` is unknown to format {name}; {known}")
    if reason:
        log.info(f"{source.path}: read as {name} ({reason})")
    return chosen
