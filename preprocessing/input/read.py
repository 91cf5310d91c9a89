"""Streams the documents of a piece of input, in any format.

Bytes are split at "\\n" alone, since JSON strings may contain U+2028, and are decoded a line or a document at a time.
So a bad byte costs one line or document. Compressed and archived files are streamed; nothing is unpacked to the disk.
Whatever a file contains, memory is bounded by a small multiple of `input.maximum_document_bytes`, and the expanded text
by `input.maximum_expansion`.
"""

import os
import stat
from collections.abc import Callable, Iterator

from reread.preprocessing.config import InputSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.input.formats.table import read_file
from reread.preprocessing.input.piece import DAMAGE, Document, Piece, PieceReader, Problem
from reread.preprocessing.input.streams import BUFFER, ExpansionError, split_name


def read(
    piece: Piece,
    settings: InputSettings,
    report: Callable[[Problem], None],
    count_encoding: Callable[[str], None] = lambda encoding: None,
) -> Iterator[Document]:
    """Streams the documents of `piece`; a document belongs to the byte range in which it begins.

    `report` is called for each part that cannot be read, and the rest is read; if `bad_input` is `refuse`, this raises
    `UserError` instead. An error of the operating system (permission, disk) and a file that changes always raise
    `UserError`, since the next run would make another corpus. `count_encoding` is called with the encoding that
    `encoding: auto` chose for each file or member of an archive.
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
        raise UserError(
            f"{piece.path}: cannot be read ({error.strerror}); repair it, then run the same command again", error
        ) from None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # does not wait for a writer if the path is a pipe by now


def _check_unchanged(piece: Piece, before: os.stat_result, now: os.stat_result) -> None:
    size = before.st_size if piece.bytes is None else piece.bytes
    changed = before.st_mtime_ns if piece.changed is None else piece.changed
    if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (size, changed):
        how = f"from {size:,} to {now.st_size:,} bytes" if now.st_size != size else "not in size"
        raise UserError(
            f"{piece.path}: changed since the work began ({how}); once nothing writes to it, begin again in another "
            "output folder, or delete this one"
        )


def _bounded(limit: int, factor: int, size: int) -> Callable[[int], None]:
    """A function that counts the bytes to which a file of `size` bytes expands; raises ExpansionError if too many."""
    left = most = limit + factor * size

    def spend(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise ExpansionError(
                f"expands to more than {most:,} bytes, {factor} times its size plus the length of the longest "
                "document; see `input.maximum_expansion`"
            )

    return spend
