"""Reads the rows of Parquet and Arrow files; runs in a child process (`confined`), as a few bytes may become gigabytes.

Only this module imports pyarrow, which is slow to import; it imports no other slow module.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from reread.preprocessing.errors import NOT_OF_THE_SYSTEM
from reread.preprocessing.input.fields import FieldText, TextField, missing

_BATCH_BYTES = 1 << 24
_ROWS = 1024
_SENT_CHARACTERS = 1 << 20
"""Characters that are sent to the parent at a time. In the child, equal texts of a million rows are held only once."""

Texts = list[FieldText]


class ColumnRows(NamedTuple):
    """Some successive rows, or a part of the file that cannot be read."""

    first: int | None = None
    """The number of the first row, or of the first one that cannot be read, from 0; None if that is the row after the
    last one that was read."""
    texts: Sequence[Texts | int] = ()
    """The texts of each row, or the position of the first byte that is not UTF-8."""
    problem: str | None = None
    """Why no row can be read here."""
    is_whole: bool = False
    """Whether the problem is one of the whole file, which lacks the column of the text."""


def load() -> None:
    """Import pyarrow, for `confined`."""
    import pyarrow.ipc
    import pyarrow.parquet  # noqa: F401


def parquet_rows(path: str, field: TextField) -> Iterator[ColumnRows]:
    import pyarrow

    with open(path, "rb") as file:
        try:
            yield from _parquet_rows(file, field)
        except pyarrow.ArrowException as error:
            yield _damage(error)


def arrow_rows(path: str, field: TextField) -> Iterator[ColumnRows]:
    import pyarrow

    with open(path, "rb") as file:
        try:
            yield from _arrow_rows(file, field)
        except (pyarrow.ArrowException, OverflowError) as error:  # a damaged size may be any number
            yield _damage(error)


def _parquet_rows(file: BinaryIO, field: TextField) -> Iterator[ColumnRows]:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    names = field.roots(table.schema_arrow.names)
    if part := _missing(names, table.schema_arrow.names):
        yield part
        return
    flat = {table.schema.column(index).path for index in range(len(table.schema))}  # not a list or struct
    # Equal values are held in memory only once.
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
                yield from _rows(field, names, batch, row)
                row += len(batch)
        except (OSError, pyarrow.ArrowException) as error:  # the other row groups may be intact
            yield _damage(error, f"damaged row group {number}")
        row = following


def _arrow_rows(file: BinaryIO, field: TextField) -> Iterator[ColumnRows]:
    import pyarrow.ipc

    is_stream = file.read(6) != b"ARROW1"
    file.seek(0)
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    opened = (pyarrow.ipc.open_stream if is_stream else pyarrow.ipc.open_file)(file, options=options)
    names = field.roots(opened.schema.names)
    if part := _missing(names, opened.schema.names):
        yield part
        return
    batches = opened if is_stream else (opened.get_batch(number) for number in range(opened.num_record_batches))
    row = 0
    for batch in batches:
        try:
            for name in names:
                batch.column(name).validate(full=True)  # pyarrow would follow a wrong offset to any address
            yield from _rows(field, names, batch, row)
        except pyarrow.ArrowInvalid as error:  # the other batches may be intact
            yield _damage(error, f"damaged batch of {len(batch):,} rows", row)
        row += len(batch)


def _rows(field: TextField, names: list[str], batch: Any, first: int) -> Iterator[ColumnRows]:
    """The texts of a batch; `first` is the number of its first row, from 0."""
    columns = {name: batch.column(name) for name in names}
    held, size = list[Texts | int](), 0
    for index in range(len(batch)):
        try:
            texts = list(field.texts({name: column[index].as_py() for name, column in columns.items()}))
            held.append(texts)
            size += sum(len(one.text) for one in texts)
        except UnicodeDecodeError as error:  # pyarrow does not check strings when it reads them
            held.append(error.start)
        if size >= _SENT_CHARACTERS or index + 1 == len(batch):
            yield ColumnRows(first + index + 1 - len(held), held)
            held, size = [], 0


def _missing(names: list[str], known: list[str]) -> ColumnRows | None:
    absent = next((name for name in names if name not in known), None)
    return None if absent is None else ColumnRows(problem=missing("column", absent, known), is_whole=True)


def _damage(error: Exception, what: str = "damaged or cut short", row: int | None = None) -> ColumnRows:
    """The part for an error of pyarrow; raises errors of the operating system and for lack of memory again."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in NOT_OF_THE_SYSTEM):
        raise error
    return ColumnRows(row, problem=f"{what} ({str(error) or type(error).__name__})")
