"""The records of a labelled file as they stand in it, by which `reread split` writes files of the same form."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import to_json
from reread.preprocessing.input.streams import split_name
from reread.preprocessing.labelled.columns import NAMES
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.conll import is_conll
from reread.preprocessing.labelled.formats.ontonotes import BEGIN
from reread.preprocessing.labelled.formats.table import FORMATS

_DOCUMENT = b"-DOCSTART-"
_LISTS = ("data", "Data")
"""The field that holds the records of a JSON file that is one object."""
_USUAL = {name for names in NAMES.values() for name in names}


class Record(NamedTuple):
    data: bytes
    """As it stands in the file, with its line end."""
    fields: dict[str, Any]
    """Values by their names; in a table without a header by `[0]`, `[1]` and so on."""
    location: str


class Records(NamedTuple):
    """The records of a file, and what stands around them in a file of the same form."""

    form: str
    """A description for the log."""
    each: Callable[[], Iterator[Record]]
    before: bytes = b""
    between: bytes = b""
    after: bytes = b""
    suffix: str | None = None
    """Of the files to write; None: that of the file."""


def records_of(source: LabelledFile) -> Records:
    """Of a table the fields that `source.columns` names decide whether it has a header.

    Raises `UserError` if the file is damaged or in no form that has records; so does iterating over them.
    """
    return next(records for fits, records in _FORMS if fits(source))(source)


def _has_suffix(source: LabelledFile, suffix: str) -> bool:
    return split_name(str(source.path))[0].endswith(suffix)


# Formats that have no records of bytes: what is read from them


def _read_as(format: str) -> Callable[[LabelledFile], Records]:
    def records(source: LabelledFile) -> Records:
        each = partial(_examples, source.path, format)
        return Records(f"{format}, written as JSON lines", each, suffix=".jsonl")

    return records


def _examples(path: Path, format: str) -> Iterator[Record]:
    source = LabelledFile(path, "classify")
    for one in _sound(source, FORMATS[format].read(source)):
        values = {"id": one.id, **one.texts, **({} if one.target is None else {"label": one.target})}
        yield Record(to_json(values) + b"\n", values, one.location)


def _sound(source: LabelledFile, found: Iterator[Any]) -> Iterator[Any]:
    """Raises `UserError` for the first mistake of the file."""
    for one in found:
        if source.mistakes:
            break
        yield one
    if source.mistakes:
        raise UserError(source.mistakes[0])


def _text(source: LabelledFile, data: bytes, location: str) -> str:
    if (text := source.decode(data, location)) is None:
        raise UserError(source.mistakes[0])
    return text


# Lines and JSON


def _text_lines(source: LabelledFile) -> Records:
    return Records("a line a record", lambda: _lines(source))


def _lines(source: LabelledFile) -> Iterator[Record]:
    for number, line in source.lines():
        if line.strip():
            location = source.location(number)
            yield Record(line + b"\n", {"text": _text(source, line, location)}, location)


def _json(source: LabelledFile) -> Records:
    head = source.head
    first = next(line for _, line in source.lines() if line.strip())
    try:
        if isinstance(json.loads(first), dict) and len(first) < len(head.rstrip()):
            return Records("a JSON object a line", lambda: _json_lines(source))
    except (ValueError, RecursionError):
        pass
    found = source.json()
    name = next((name for name in _LISTS if isinstance(found, dict) and isinstance(found.get(name), list)), None)
    values = found if name is None else found[name]
    if not isinstance(values, list):
        raise UserError(f"{source.name}: one JSON object without a list `data`, so it has no records to divide")
    others = {} if name is None else {key: value for key, value in found.items() if key != name}
    start = to_json(others)[:-1] + (b", " if others else b"")
    before, after = (b"[", b"]\n") if name is None else (start + f'"{name}": ['.encode(), b"]}\n")
    each = [
        Record(to_json(value), _fields(value), source.location(f"record {number}"))
        for number, value in enumerate(values, 1)
    ]
    return Records("a member of a JSON list a record", lambda: iter(each), before, b",\n", after)


def _fields(value: Any) -> dict[str, Any]:
    """Those of an object; of a list, as C3 has them, its members without the id, which is the last."""
    if isinstance(value, list):
        return {"value": value[:-1] if value and isinstance(value[-1], str) else value}
    return value if isinstance(value, dict) else {"value": value}


def _json_lines(source: LabelledFile) -> Iterator[Record]:
    lines = source.lines()
    for number, values in _sound(source, source.json_lines()):
        line = next(line for place, line in lines if place == number)
        yield Record(line + b"\n", values, source.location(number))


# Tables


def _table(
    source: LabelledFile, form: str, rows: Callable[[LabelledFile], Iterator[tuple[int, bytes, list[str]]]]
) -> Records:
    """With the first row as a header if it has a usual name, or if no column is asked for by its number."""
    _, first, cells = next(rows(source), (1, b"", []))
    has_header = bool(_USUAL & set(cells)) or not any(name.startswith("[") for name in source.columns.values())

    def each() -> Iterator[Record]:
        names = cells if has_header else [f"[{number}]" for number in range(len(cells))]
        found = rows(source)
        if has_header:
            next(found)
        for number, data, row in found:
            if len(row) != len(names):
                raise UserError(f"{source.location(number)}: {len(row)} columns, where the first row has {len(names)}")
            yield Record(data, dict(zip(names, row, strict=True)), source.location(number))

    header = "with a header" if has_header else "without a header"
    return Records(f"a row of {form} {header} a record", each, first if has_header else b"")


def _tsv_rows(source: LabelledFile) -> Iterator[tuple[int, bytes, list[str]]]:
    for number, line in source.lines():
        if line.strip():
            yield number, line + b"\n", _text(source, line, source.location(number)).split("\t")


def _csv_rows(source: LabelledFile) -> Iterator[tuple[int, bytes, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit of 131,072 characters is for the whole process, too
    taken: list[bytes] = []

    def lines() -> Iterator[str]:
        for number, line in source.lines():
            taken.append(line + b"\n")
            yield _text(source, taken[-1], source.location(number))

    reader = csv.reader(lines(), strict=True)
    number = 1
    try:
        for row in reader:
            if row:
                yield number, b"".join(taken), row
            taken.clear()
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f'{source.location(number)}: not CSV ({error}); put " around the field') from None


# CoNLL


def _conll(source: LabelledFile) -> Records:
    if any(line.startswith(_DOCUMENT) for _, line in source.lines()):
        return Records("a CoNLL document a record", lambda: _blocks(source, _document_begins, _words))
    return Records("a CoNLL sentence a record", lambda: _blocks(source, _sentence_begins, _words))


def _ontonotes(source: LabelledFile) -> Records:
    return Records("a part of a CoNLL-2012 document a record", lambda: _blocks(source, _part_begins, _document))


def _blocks(
    source: LabelledFile, begins: Callable[[bytes, bytes], bool], fields: Callable[[Sequence[bytes]], dict[str, Any]]
) -> Iterator[Record]:
    """Runs of lines, each of which begins where `begins`, of the line before and the line, says so."""
    block: list[bytes] = []
    first, before = 1, b""
    for number, line in source.lines():
        if block and begins(before, line):
            yield from _block(source, block, first, fields)
            block, first = [], number
        block.append(line)
        before = line
    yield from _block(source, block, first, fields)


def _block(
    source: LabelledFile, lines: list[bytes], first: int, fields: Callable[[Sequence[bytes]], dict[str, Any]]
) -> Iterator[Record]:
    if any(line.strip() for line in lines):
        location, data = source.location(first), b"\n".join([*lines, b""])
        _text(source, data, location)
        # A file that ends without a blank line must not run into the record that stands after it.
        data = data if not lines[-1].strip() or lines[-1].startswith(b"#") else data + b"\n"
        yield Record(data, fields(lines), location)


def _sentence_begins(before: bytes, line: bytes) -> bool:
    return not before.strip() and bool(line.strip())


def _document_begins(before: bytes, line: bytes) -> bool:
    return line.startswith(_DOCUMENT)


def _part_begins(before: bytes, line: bytes) -> bool:
    return line.startswith(BEGIN)


def _words(lines: Sequence[bytes]) -> dict[str, Any]:
    return {"tokens": [line.split()[0].decode(errors="replace") for line in lines if line.strip()]}


def _document(lines: Sequence[bytes]) -> dict[str, Any]:
    """`#begin document (NAME); part 000`: all parts of a document have its name."""
    return {"document": lines[0].partition(b";")[0].decode(errors="replace")}


_FORMS: tuple[tuple[Callable[[LabelledFile], bool], Callable[[LabelledFile], Records]], ...] = (
    (lambda source: source.path.is_dir() or _has_suffix(source, ".tar"), _read_as("folders")),
    (lambda source: _has_suffix(source, ".xml"), _read_as("semeval")),
    (lambda source: _has_suffix(source, ".csv"), partial(_table, form="CSV", rows=_csv_rows)),
    (lambda source: source.head.startswith(BEGIN), _ontonotes),
    (lambda source: is_conll(source.head), _conll),
    (lambda source: source.head.lstrip()[:1] in (b"{", b"["), _json),
    (lambda source: b"\t" in source.head.partition(b"\n")[0], partial(_table, form="TSV", rows=_tsv_rows)),
    (lambda source: True, _text_lines),
)
"""Whether a file has a form, and its records."""
