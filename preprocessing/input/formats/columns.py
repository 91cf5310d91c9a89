"""Parquet and Arrow files, with a document per row; a child process reads them (`column_rows`)."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from reread.preprocessing.input.confined import ConfinedError, confined
from reread.preprocessing.input.fields import TextField
from reread.preprocessing.input.formats import column_rows
from reread.preprocessing.input.formats.column_rows import ColumnRows, Texts
from reread.preprocessing.input.piece import Document, PieceReader


def read_parquet(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    return _documents(reader, file, "parquet_rows")


def read_arrow(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    """The rows of an Arrow IPC stream, as Hugging Face `datasets` writes them, or of an IPC file (Feather)."""
    return _documents(reader, file, "arrow_rows")


def _documents(reader: PieceReader, file: BinaryIO, name: str) -> Iterator[Document]:
    field = TextField(reader.settings.text_field, "column", reader.settings.join)
    try:
        opened = f"/proc/{os.getpid()}/fd/{file.fileno()}"  # this very file, even if another one has its name by now
        for part in confined(column_rows.__name__, name, reader.limit, opened, field):
            yield from _part(reader, field, part)
    except ConfinedError as error:
        reader.problem(f"after {reader.last}", str(error))


def _part(reader: PieceReader, field: TextField, part: ColumnRows) -> Iterator[Document]:
    if part.problem is None:
        for number, texts in enumerate(part.texts, (part.first or 0) + 1):
            yield from _row(reader, field, texts, f"row {number}")
        return
    if part.first is not None:
        reader.last = f"row {part.first}"
    reader.problem("whole file" if part.is_whole else f"after {reader.last}", part.problem)


def _row(reader: PieceReader, field: TextField, texts: Texts | int, position: str) -> Iterator[Document]:
    reader.last = position
    if isinstance(texts, int):
        reader.problem(position, f"not utf-8 (byte {texts} of it)")
        return
    reader.spend(sum(len(one.text) for one in texts))
    yield from reader.texts(texts, position, field.has_several)
