"""Parquet and Arrow files, one document per row; imported when there is one, since pyarrow takes long to import."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from preprocessing.input.fields import FieldError, TextField, missing
from preprocessing.input.piece import Document, PieceReader

_BATCH_BYTES = 1 << 24
_ROWS = 1024


def read_parquet(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    try:
        yield from _parquet_rows(reader, file)
    except pyarrow.ArrowException as error:
        reader.damaged(error)


def read_arrow(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    """The rows of an Arrow IPC stream, as Hugging Face `datasets` writes them, or of an IPC file (Feather)."""
    try:
        yield from _arrow_rows(reader, file)
    except (pyarrow.ArrowException, MemoryError, OverflowError) as error:  # a damaged size may be any number
        reader.damaged(error)


def _parquet_rows(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    table = pyarrow.parquet.ParquetFile(file)
    field = TextField(reader.settings.text_field, "column")
    names = field.roots(table.schema_arrow.names)
    if _reports_missing(reader, names, table.schema_arrow.names):
        return
    flat = {table.schema.column(index).path for index in range(len(table.schema))}  # not a list or struct
    # A value that a million rows have is held in memory once.
    once = [name for name in names if name in flat]
    table = pyarrow.parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=once)
    row = 0
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        following = row + group.num_rows
        rows = _BATCH_BYTES * max(1, group.num_rows) // max(1, group.total_byte_size)
        try:
            for batch in table.iter_batches(
                min(max(1, rows), _ROWS), row_groups=[number], columns=names, use_threads=False
            ):
                yield from _batch(reader, field, names, batch, row)
                row += len(batch)
        except (OSError, pyarrow.ArrowException) as error:  # the other row groups may be intact
            reader.damaged(error, f"damaged row group {number}")
        row = following


def _arrow_rows(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    is_stream = file.read(6) != b"ARROW1"
    file.seek(0)
    opened = pyarrow.ipc.open_stream(file) if is_stream else pyarrow.ipc.open_file(file)
    field = TextField(reader.settings.text_field, "column")
    names = field.roots(opened.schema.names)
    if _reports_missing(reader, names, opened.schema.names):
        return
    batches = opened if is_stream else (opened.get_batch(number) for number in range(opened.num_record_batches))
    row = 0
    for batch in batches:
        try:
            for name in names:
                batch.column(name).validate(full=True)  # a wrong offset would be followed to anywhere in memory
            yield from _batch(reader, field, names, batch, row)
        except pyarrow.ArrowInvalid as error:  # the other batches may be intact
            reader.last = f"row {row}"
            reader.damaged(error, f"damaged batch of {len(batch):,} rows")
        row += len(batch)


def _reports_missing(reader: PieceReader, names: list[str], known: list[str]) -> bool:
    absent = next((name for name in names if name not in known), None)
    if absent is not None:
        reader.problem("whole file", missing("column", absent, known))
    return absent is not None


def _batch(reader: PieceReader, field: TextField, names: list[str], batch: Any, row: int) -> Iterator[Document]:
    """The documents of a batch whose first row is number `row` from 0."""
    columns = {name: batch.column(name) for name in names}
    for index in range(len(batch)):
        position = f"row {row + index + 1}"
        reader.last = position
        try:
            record = {name: column[index].as_py() for name, column in columns.items()}
        except UnicodeDecodeError as error:  # pyarrow does not check strings when it reads them
            reader.problem(position, f"not utf-8 (byte {error.start} of it)")
            continue
        texts = list(field.texts(record))
        reader.spend(sum(len(text) for text in texts if not isinstance(text, FieldError)))
        yield from reader.texts(texts, position, field.has_several)
