"""CSV and TSV: a header, then one record per row, whose text is in the columns that `input.text_field` names.

A quoted field may contain line ends, so rows can only be found by reading from the beginning: a file is one piece.
"""

import csv
import sys
from collections.abc import Iterator
from typing import BinaryIO

from reread.preprocessing.input.fields import TextField, missing
from reread.preprocessing.input.piece import Document, PieceReader
from reread.preprocessing.input.streams import lines


def read_csv(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    """Fields, which may be quoted (RFC 4180), between commas, or semicolons or tabs if the header has no comma."""
    head = stream.peek().partition(b"\n")[0]  # type: ignore[attr-defined]
    delimiter = next((mark for mark in (",", ";", "\t") if mark.encode() in head), ",")
    source = _Lines(reader, stream)
    return _documents(reader, source, csv.reader(source, delimiter=delimiter, strict=True))


def read_tsv(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    """Fields between tabs, never quoted (text/tab-separated-values); for quoted fields there is `format: csv`."""
    source = _Lines(reader, stream)
    return _documents(reader, source, csv.reader(source, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None))


class _RowTooLongError(csv.Error):
    """A row is longer than a document may be."""


class _Lines:
    """The decoded lines of a table; counts lines and bytes, to report a row by its position."""

    def __init__(self, reader: PieceReader, stream: BinaryIO) -> None:
        self._reader, self._lines = reader, lines(stream, reader.limit)
        self.number, self.first = 0, 1
        """The numbers of the last line that was read and of the first line of the row."""
        self._size, self.is_damaged = 0, False

    def begin_row(self) -> None:
        self.first, self._size, self.is_damaged = self.number + 1, 0, False

    @property
    def position(self) -> str:
        return f"line {self.first}"

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line, size = next(self._lines)
        self.number += 1
        self._size += size
        if self._size > self._reader.limit:
            raise _RowTooLongError  # after an error the csv module begins a new row
        text = self._reader.decode(line, f"line {self.number}")
        self.is_damaged |= text is None
        return "\n" if text is None else text


def _documents(reader: PieceReader, source: _Lines, rows: Iterator[list[str]]) -> Iterator[Document]:
    # The module's own limit of 131,072 characters is global; here `_Lines` bounds a row.
    csv.field_size_limit(sys.maxsize)
    field = TextField(reader.settings.text_field, "column", reader.settings.join)
    names: list[str] | None = None
    has_header = not all(isinstance(path[0], int) for path in field.paths)
    width = 0
    while True:
        # Read a row; after a mistake the csv module goes on with the next one.
        source.begin_row()
        try:
            row = next(rows)
        except StopIteration:
            return
        except _RowTooLongError:
            reader.too_long(source.position)
            continue
        except csv.Error as error:
            lost = f"lines {source.first} to {source.number} are lost" if source.number > source.first else "not CSV"
            reader.problem(source.position, f'{lost} ({error}); a field with " in it is quoted, each " doubled')
            continue
        # It is damaged or blank, the header, or a record.
        if source.is_damaged or not any(row):
            continue
        elif has_header and names is None:
            names, width = row, len(row)
            for name in field.roots(names):
                if names.count(name) != 1:
                    twice = f"two columns are called `{name}`; rename one of them"
                    none = f"{missing('column', name, names)}; `[1]` is the second column of a table without header"
                    reader.problem("whole file", twice if name in names else none)
                    return
        else:
            width = width or len(row)
            yield from _document(reader, field, row, names, width, source.position)


def _document(
    reader: PieceReader, field: TextField, row: list[str], names: list[str] | None, width: int, position: str
) -> Iterator[Document]:
    if len(row) != width:
        where = "the header has" if names else "the first row has"
        reader.problem(position, f"has {len(row)} columns, but {where} {width}")
        return
    yield from reader.texts(field.texts(dict(zip(names, row, strict=True)) if names else row), position)
