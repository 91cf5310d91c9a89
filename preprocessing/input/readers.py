"""Raw text in: streaming documents out of the files of a part.

Bytes are split at "\\n" alone (JSON strings may hold U+2028) and decoded a line or a document at a time, so a bad byte
costs one line or document. Compressed and archived files are streamed; nothing is unpacked to disk. Whatever a file
contains, memory is bounded by a small multiple of `input.maximum_document_bytes`, and the expanded text by
`input.maximum_expansion`.
"""

import os
import stat
from collections.abc import Callable, Iterator

from preprocessing.config import InputSettings
from preprocessing.errors import UserError
from preprocessing.input.formats import read_file
from preprocessing.input.piece import DAMAGE, Document, Piece, PieceReader, Problem
from preprocessing.input.streams import BUFFER, ExpansionError, split_name


def read(
    piece: Piece,
    settings: InputSettings,
    report: Callable[[Problem], None],
    count_encoding: Callable[[str], None] = lambda encoding: None,
) -> Iterator[Document]:
    """The documents of `piece`, streamed; a document belongs to the byte range in which it begins.

    What cannot be read goes to `report`, and the rest is still read, or it raises `UserError` if `bad_input` is
    `refuse`. An error of the system (permission, disk) and a file that changes always raise `UserError`, since the
    next run would make a different corpus. `count_encoding` is called with the one that `encoding: auto` chose for each
    file or member of an archive.
    """
    buffering = BUFFER if split_name(piece.path)[1] is None else -1
    try:
        with open(piece.path, "rb", buffering=buffering, opener=_open) as file:
            before = os.fstat(file.fileno())

            def check() -> None:
                _check_unchanged(piece, before, os.fstat(file.fileno()))

            check()
            reader = PieceReader(piece, settings, report, check, count_encoding)
            try:
                if before.st_size == 0:
                    reader.problem("whole file", "empty file")
                else:
                    reader.spend = _bounded(reader.limit, settings.maximum_expansion, before.st_size)
                    yield from read_file(reader, file)
            except DAMAGE as error:
                reader.damaged(error)
            check()
    except OSError as error:
        raise UserError(f"{piece.path}: cannot be read ({error.strerror}); repair it and start again", error) from None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # if it is a pipe by now, this does not wait for a writer


def _check_unchanged(piece: Piece, before: os.stat_result, now: os.stat_result) -> None:
    size = before.st_size if piece.bytes is None else piece.bytes
    changed = before.st_mtime_ns if piece.changed is None else piece.changed
    if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (size, changed):
        what = f"from {size:,} to {now.st_size:,} bytes" if now.st_size != size else "though not in size"
        raise UserError(
            f"{piece.path}: changed since the work began ({what}); once nothing writes to it, begin again in another "
            "output folder, or delete this one"
        )


def _bounded(limit: int, factor: int, size: int) -> Callable[[int], None]:
    """Counts what a file of `size` bytes expands to; raises ExpansionError if it is too much."""
    left = most = limit + factor * size

    def spend(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise ExpansionError(
                f"expands to more than {most:,} bytes, {factor} times its size and one document of the greatest "
                "length: see `input.maximum_expansion`"
            )

    return spend
