"""`tsv`, `csv` and `clue`: texts and labels under names, in a header or in JSON objects."""

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.columns import Columns, find_columns
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine, examples_from
from reread.preprocessing.labelled.tasks import TASKS
from reread.preprocessing.labelled.tasks.classify import ClassifyExample


def read_tsv(source: LabelledFile) -> Iterator[Example]:
    """The rows of a table with a header and tabs; quotation marks have no special meaning."""
    return examples_from(source, TASKS[source.task], _lines(source, source.rows("\t")))


def read_csv(source: LabelledFile) -> Iterator[Example]:
    """The rows of a table with a header and commas; fields may be quoted, and then hold commas and line ends."""
    return examples_from(source, TASKS[source.task], _lines(source, _csv_rows(source)))


def _lines(source: LabelledFile, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, TaskLine]]:
    model = TASKS[source.task]
    columns, header, width = Columns(source.columns, source.join), list[str](), 0
    if not columns.numbered:
        columns, header = _header(source, rows)
    for number, row in rows:
        location, width = source.location(number), len(header) or width or len(row)
        if len(row) != width:
            source.mistake(
                location, f"{len(row)} columns, where {'the header' if header else 'the first row'} has {width}"
            )
            continue
        record = dict(zip(header, row, strict=True)) if header else row
        try:
            cells: dict[str, Any] = {field: columns.text(record, field) for field in model.cells}
        except ValueError as error:
            source.mistake(location, str(error))
            continue
        if source.labels == "set" and cells["label"] is not None:
            cells["label"] = source.separated(cells["label"], source.label_separator or ",")
        line = source.parse(model, {name: value for name, value in cells.items() if value is not None}, location)
        if line is not None:
            yield number, line


def _header(source: LabelledFile, rows: Iterator[tuple[int, list[str]]]) -> tuple[Columns, list[str]]:
    model = TASKS[source.task]
    first, header = next(rows, (1, [""]))
    header = [name.strip() for name in header]
    if source.mistakes:
        raise UserError(source.mistakes[0])
    if len(set(header)) < len(header):
        raise UserError(f"{source.location(first)}: two columns have the same name ({', '.join(header)}); rename one")
    try:
        return find_columns(header, source.columns, source.join, model.cells, model.needed), header
    except ValueError as error:
        way_out = (
            f"the first line has to be a header, or `task.columns.{model.needed[0]}=[1]` names the second column of a "
            "table"
        )
        raise UserError(f"{source.location(first)}: {error}; {way_out} without one") from None


def _csv_rows(source: LabelledFile) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit of 131,072 characters is for the whole process, too
    reader = csv.reader((line.decode("utf-8", "surrogateescape") + "\n" for _, line in source.lines()), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "NUL" in str(error):  # Python 3.10 refuses the line, later versions the field that holds it
                reason = "a field of the line holds the control character U+0000 (NUL); take it out"
            else:
                reason = f'not CSV ({error}); put " around the field and "" for each " in it'
            source.mistake(source.location(number), reason)
            continue
        data = "\n".join(row).encode("utf-8", "surrogateescape")
        if row and source.decode(data, source.location(number)) is not None:
            yield number, row


def read_clue(source: LabelledFile) -> Iterator[ClassifyExample]:
    """JSON lines with a sentence or two and a label, as CLUE and FewCLUE publish them; other fields are left out."""
    known: dict[Sequence[str], Columns] = {}
    for number, values in source.json_lines():
        location, names = source.location(number), tuple(values)
        try:
            if names not in known:
                known[names] = find_columns(names, source.columns, source.join)
            columns = known[names]
            text, second = columns.text(values, "text"), columns.text(values, "second")
            identifier, label = columns.value(values, "id"), source.label(columns.value(values, "label"))
        except ValueError as error:
            source.mistake(location, str(error))
            continue
        yield ClassifyExample(str(number if identifier is None else identifier), location, text or "", second, label)
