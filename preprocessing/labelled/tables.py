"""`tsv`, `csv` and `clue`: texts and labels under names, in a header or in JSON objects."""

import csv
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from preprocessing.errors import UserError, nearest
from preprocessing.input.fields import json_type
from preprocessing.labelled.examples import ClassifyExample
from preprocessing.labelled.source import Source

NAMES = {
    "id": ("id", "guid"),
    "text": ("text", "text_a", "sentence", "sentence1", "review", "premise", "question1", "query", "content"),
    "second": ("second", "text_b", "sentence2", "hypothesis", "hypo", "question2"),
    "label": ("label", "labels", "gold_label", "class"),
}
"""The names that published data sets have for each field of an example."""


def find_columns(known: Collection[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The field of an example -> its name among `known`: as `columns` says, else a usual one.

    Raises ValueError if there is no text, or a name of `columns` is missing, or two usual names fit.
    """
    found = dict(columns)
    for field, name in columns.items():
        if name not in known:
            raise ValueError(f"no column `{name}` for `{field}`; {nearest(name, known, 'it has')}")
    for field, names in NAMES.items():
        usual = [name for name in names if name in known and name not in columns.values() and field not in columns]
        if len(usual) > 1:
            raise ValueError(f"both `{usual[0]}` and `{usual[1]}` may be the {field}; choose by `task.columns.{field}`")
        if usual:
            found[field] = usual[0]
    if "text" not in found:
        raise ValueError(f"no column for the text among {', '.join(known)}; name it by `task.columns.text`")
    return found


def read_tsv(source: Source) -> Iterator[ClassifyExample]:
    """The rows of a table with a header and tabs; a quotation mark is a character as any other."""
    return _rows(source, _tsv_rows(source))


def read_csv(source: Source) -> Iterator[ClassifyExample]:
    """The rows of a table with a header and commas; fields may be quoted, and then hold commas and line ends."""
    return _rows(source, _csv_rows(source))


def _rows(source: Source, rows: Iterator[tuple[int, list[str]]]) -> Iterator[ClassifyExample]:
    first, header = next(rows, (1, [""]))
    if source.mistakes:
        raise UserError(source.mistakes[0])
    if len(set(header)) < len(header):
        raise UserError(f"{source.place(first)}: two columns have the same name ({', '.join(header)}); rename one")
    try:
        columns = find_columns(header, source.columns)
    except ValueError as error:
        raise UserError(f"{source.place(first)}: {error}; the first line has to be a header") from None
    text, second, label, identity = (
        header.index(columns[field]) if field in columns else None for field in ("text", "second", "label", "id")
    )
    assert text is not None
    for number, row in rows:
        place = source.place(number)
        if len(row) != len(header):
            source.mistake(place, f"{len(row)} columns, where the header has {len(header)}")
            continue
        try:
            value = None if label is None else _label(source, row[label])
        except ValueError as error:
            source.mistake(place, str(error))
            continue
        identifier = str(number) if identity is None else row[identity]
        yield ClassifyExample(identifier, place, row[text], None if second is None else row[second], value)


def _label(source: Source, cell: str) -> str | tuple[str, ...] | float | None:
    """A cell as a label; a set of labels is separated by commas."""
    if source.labels == "set":
        return source.label([name.strip() for name in cell.split(",") if name.strip()])
    return source.label(cell)


def _tsv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    for number, line in source.lines():
        text = source.decode(line, source.place(number)) if line else None
        if text is not None:
            yield number, text.split("\t")


def _csv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit of 131,072 characters is for the whole process, too
    reader = csv.reader((line.decode("utf-8", "surrogateescape") + "\n" for _, line in source.lines()), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            source.mistake(source.place(number), f'not CSV ({error}); put " around the field and "" for each " in it')
            continue
        if row and source.decode("\n".join(row).encode("utf-8", "surrogateescape"), source.place(number)) is not None:
            yield number, row


def read_clue(source: Source) -> Iterator[ClassifyExample]:
    """JSON lines with a sentence or two and a label, as CLUE and FewCLUE publish them; other fields are left out."""
    known: dict[Sequence[str], dict[str, str]] = {}
    for number, values in source.json_lines():
        place, names = source.place(number), tuple(values)
        if names not in known:
            try:
                known[names] = find_columns(names, source.columns)
            except ValueError as error:
                source.mistake(place, str(error))
                continue
        columns = known[names]
        text, second = values[columns["text"]], values.get(columns.get("second", ""))
        if not isinstance(text, str) or not isinstance(second, str | None):
            field, value = ("second", second) if isinstance(text, str) else ("text", text)
            source.mistake(place, f"`{columns[field]}` holds {json_type(value)}, not text")
            continue
        try:
            label = source.label(values.get(columns.get("label", "")))
        except ValueError as error:
            source.mistake(place, str(error))
            continue
        yield ClassifyExample(str(values.get(columns.get("id", ""), number)), place, text, second, label)
