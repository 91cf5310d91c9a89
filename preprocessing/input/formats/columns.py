"""Parquet and Arrow files, with a document per row; a child process reads them (`column_rows`)."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from reread.preprocessing.input.confined import ConfinedError, confined
from reread.preprocessing.input.fields import FieldError, TextField
from reread.preprocessing.input.formats import column_rows
from reread.preprocessing.input.formats.column_rows import Damage, Missing, Texts
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
        for found in confined(column_rows.__name__, name, reader.limit, opened, field):
            if isinstance(found, Missing):
                reader.problem("whole file", found.reason)
            elif isinstance(found, Damage):
                if found.row is not None:
                    reader.last = f"row {found.row}"
                reader.problem(f"after {reader.last}", f"{found.what} ({found.reason})")
            else:
                for number, texts in enumerate(found.texts, found.first + 1):
                    yield from _row(reader, field, texts, f"row {number}")
    except ConfinedError as error:
        reader.problem(f"after {reader.last}", str(error))


def _row(reader: PieceReader, field: TextField, texts: Texts | int, position: str) -> Iterator[Document]:
    reader.last = position
    if isinstance(texts, int):
        reader.problem(position, f"not utf-8 (byte {texts} of it)")
        return
    reader.spend(sum(len(text) for text in texts if not isinstance(text, FieldError)))
    yield from reader.texts(texts, position, field.has_several)
