"""Text files with a document per file or per line, JSON lines, and documents separated by blank lines.

Each reader yields the documents that begin in its piece.
"""

import json
from collections.abc import Iterator
from typing import BinaryIO

from reread.preprocessing.input.fields import TextField
from reread.preprocessing.input.piece import Document, PieceReader
from reread.preprocessing.input.streams import line_start, lines, read_at_most, skip_line
from reread.preprocessing.json_values import TooManyValuesError, loads

_LONGEST_BLANK = 1 << 16
"""A line of more bytes than this counts as not blank."""


def _lines(reader: PieceReader, stream: BinaryIO, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
    """(byte offset, number, bytes) of each line of `stream`, which is at `offset`; bytes are None for a long line."""
    if reader.piece.end is not None and offset >= reader.piece.end:
        return
    for number, (line, size) in enumerate(lines(stream, reader.limit), 1):
        yield offset, number, line if size <= reader.limit else None
        offset += size


def _next_line(reader: PieceReader, stream: BinaryIO) -> int:
    """The byte offset of the first line that begins in the piece; the end of the piece if there is none."""
    before, end = reader.piece.start - 1, reader.piece.end
    stream.seek(before)
    return before + skip_line(stream, at_least=None if end is None else end - before)


def _position(reader: PieceReader, offset: int, number: int) -> str:
    # The number of a line in a later byte range is unknown, since the lines before it are not read.
    return f"byte {offset}" if reader.piece.start else f"line {number}"


def _own_lines(reader: PieceReader, stream: BinaryIO) -> Iterator[tuple[str, str]]:
    """(position, text) of each non-blank line that begins in the piece."""
    for offset, number, line in _lines(reader, stream, _next_line(reader, stream) if reader.piece.start else 0):
        if reader.piece.end is not None and offset >= reader.piece.end:
            return
        position = _position(reader, offset, number)
        if line is None:
            reader.too_long(position)
        elif line.strip():
            text = reader.decode(line, position)
            if text is not None:
                yield position, text


def document_per_file(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    data = read_at_most(stream, reader.limit)
    if not data:
        reader.problem("whole file", "empty file")
    elif len(data) > reader.limit:
        reader.too_long("whole file")
    else:
        text = reader.decode(data, "whole file")
        if text is not None:
            yield reader.document(text, "whole file")


def document_per_line(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    for position, text in _own_lines(reader, stream):
        yield reader.document(text, position)


def jsonl(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    field = TextField(reader.settings.text_field, join=reader.settings.join)
    for position, line in _own_lines(reader, stream):
        try:
            record = loads(line, reader.limit)
        except TooManyValuesError as error:
            reader.problem(position, str(error))
        except json.JSONDecodeError as error:
            reader.problem(position, f"not JSON ({error.msg}, character {error.pos + 1} of it)")
        except (ValueError, RecursionError) as error:  # a number of too many digits, too many brackets
            reader.problem(position, f"not JSON ({error})")
        else:
            yield from reader.texts(field.texts(record), position, field.has_several)


def blank_line(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    # Begin at the line before the piece, since the piece begins with a document if that line is blank
    start, end = reader.piece.start, reader.piece.end
    offset = 0
    if start > 0:
        found = line_start(stream, start - 1, _LONGEST_BLANK)
        if found is not None:
            stream.seek(found)
        offset = _next_line(reader, stream) if found is None else found  # None: that line is too long to be blank
    # Collect the lines of each document that begins in the piece
    after_blank = start == 0
    parts: list[bytes] = []
    position, room = "", reader.limit
    for at, number, line in _lines(reader, stream, offset):
        if end is not None and at >= end and not parts:
            return
        if line is not None and _is_blank(line, reader.encoding):
            yield from _joined(reader, parts, position)
            parts, after_blank = [], True
            continue
        if after_blank and at >= start:
            position, room = _position(reader, at, number), reader.limit
        elif not parts:  # a document that began before the piece, or is too long
            after_blank = False
            continue
        after_blank = False
        room -= reader.limit + 1 if line is None else len(line)
        if line is None or room < 0:
            reader.too_long(position)
            parts = []
        else:
            parts.append(line)
    yield from _joined(reader, parts, position)


def _is_blank(line: bytes, encoding: str) -> bool:
    if len(line) > _LONGEST_BLANK:
        return False
    visible = line.strip()
    # A line of ideographic spaces, which have several bytes each, is blank, too.
    short = 0 < len(visible) < 64 and visible.startswith("\u3000".encode(encoding, "ignore"))
    return not visible or (short and not visible.decode(encoding, "replace").strip())


def _joined(reader: PieceReader, parts: list[bytes], position: str) -> Iterator[Document]:
    text = reader.decode(b"".join(parts), position) if parts else None
    if text is not None:
        yield reader.document(text, position)
