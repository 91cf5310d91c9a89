"""`jsonl`, our own format: one JSON object a line, with the fields of the task's example.

Other fields are ignored and named in the log, but a field that looks like a misspelt one of ours is an error.
"""

import logging
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from reread.preprocessing.input.fields import listed
from reread.preprocessing.labelled.columns import NAMES, Columns
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine, examples_from
from reread.preprocessing.labelled.tasks import TASKS

log = logging.getLogger("reread")
_SIMILAR = 0.7
"""`txet` and `texts` are `text` misspelt, `type` is not."""


TEXTS = ("text", "second", "question", "query", "passage", "target")
"""Text fields that may be joined from several values or made by a template."""


def read_jsonl(source: LabelledFile) -> Iterator[Example]:
    """The examples of a file in our own format. A line without `id` has its number as id.

    A line with nothing but a text is read as a line of plain text is.
    """
    return examples_from(source, TASKS[source.task], _lines(source))


def _lines(source: LabelledFile) -> Iterator[tuple[int, TaskLine]]:
    model, left_out = TASKS[source.task], dict[str, None]()
    columns = Columns(source.columns, source.join)
    ours = {name: field for field, names in model.names.items() for name in names}
    for number, found in source.json_lines():
        try:
            values = {name if ours.get(name) in found else ours.get(name, name): value for name, value in found.items()}
            values |= _named(columns, source.columns, found)
        except ValueError as error:
            source.mistake(source.location(number), str(error))
            continue
        for name in columns.roots(found) - model.model_fields.keys():
            del values[name]
        others = _others(model, tuple(values))
        left_out |= dict.fromkeys(others)
        line = source.parse(
            model, {key: value for key, value in values.items() if key not in others}, source.location(number)
        )
        if line is not None:
            yield number, line
    if left_out:
        known = ", ".join(model.model_fields)
        log.warning("%s: fields that are none of %s are left out: %s", source.path, known, listed(left_out))


def _named(columns: Columns, fields: Iterable[str], values: dict[str, Any]) -> dict[str, Any]:
    """The values of the fields that `task.columns` names. Raises ValueError if a line lacks one."""
    return {field: (columns.text if field in TEXTS else columns.value)(values, field) for field in fields}


@lru_cache(maxsize=256)  # the lines of a file mostly have the same fields
def _others(model: type[TaskLine], names: tuple[str, ...]) -> list[str]:
    """The fields among a line's `names` to ignore: all that are neither ours nor like a misspelt one of ours."""
    fields = model.model_fields
    copies = [name for name, other in model.copied.items() if name in names and other in names]
    if copies:
        return [*copies, *_others(model, tuple(name for name in names if name not in copies))]
    required = [name for name in fields if fields[name].is_required()]
    if any(name not in names for name in required):
        return []
    wanted = [*required, *(name for name in fields if name not in names and name != "id")]
    ours = {*wanted, *(NAMES["second"] if "second" in wanted else ())}
    return [name for name in names if name not in fields and not get_close_matches(name, ours, 1, _SIMILAR)]
