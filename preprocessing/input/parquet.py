"""Parquet files, one document per row; imported when there is one, since pyarrow takes long to import."""

from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow
import pyarrow.parquet

from preprocessing.input.piece import Document, PieceReader, listed

_BATCH_BYTES = 1 << 24


def read_parquet(reader: PieceReader, file: BinaryIO, spend: Callable[[int], None]) -> Iterator[Document]:
    try:
        yield from _rows(reader, file, spend)
    except pyarrow.ArrowException as error:
        reader.damaged(error)


def _rows(reader: PieceReader, file: BinaryIO, spend: Callable[[int], None]) -> Iterator[Document]:
    field = reader.settings.text_field
    table = pyarrow.parquet.ParquetFile(file)
    names = table.schema_arrow.names
    if field not in names:
        reader.problem("whole file", f"no column `{field}`; it has {listed(names)} (`input.text_field` says which)")
        return
    if field in (table.schema.column(index).path for index in range(len(table.schema))):  # not a list or struct
        # A value that a million rows have is held in memory once.
        table = pyarrow.parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=[field])
    row = 0
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        following = row + group.num_rows
        rows = _BATCH_BYTES * max(1, group.num_rows) // max(1, group.total_byte_size)
        try:
            batches = table.iter_batches(
                min(max(1, rows), 1024), row_groups=[number], columns=[field], use_threads=False
            )
            for batch in batches:
                for value in batch.column(0):
                    row += 1
                    for document in _cell(reader, value, f"row {row}"):
                        spend(len(document.text))
                        yield document
        except (OSError, pyarrow.ArrowException) as error:  # the other row groups may be intact
            reader.last = f"row {row}"
            reader.damaged(error, f"damaged row group {number}")
        row = following


def _cell(reader: PieceReader, value: pyarrow.Scalar, position: str) -> Iterator[Document]:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:  # pyarrow does not check strings when it reads them
        reader.problem(position, f"not utf-8 (byte {error.start} of it)")
        return
    if not isinstance(text, str):
        reader.problem(position, f"column `{reader.settings.text_field}` holds {type(text).__name__}, not text")
    elif len(text) > reader.limit // 4 and len(text.encode()) > reader.limit:
        reader.too_long(position)
    else:
        yield reader.document(text, position)
