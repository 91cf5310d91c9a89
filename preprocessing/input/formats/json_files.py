"""JSON files: an array of records, an object that contains records, or JSON lines in a file called .json.

Arrays are read element by element with the standard library's decoder, so that a file may be larger than memory; only
one record has to fit. ijson is not used, since it takes time quadratic in the depth of nested brackets, of which a
small file can have a million. The decoder refuses such files.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from reread.preprocessing.input.fields import EACH, FieldError, FieldText, TextField, missing
from reread.preprocessing.input.formats.text_files import jsonl
from reread.preprocessing.input.piece import Document, PieceReader
from reread.preprocessing.input.streams import BUFFER
from reread.preprocessing.json_values import TooManyValuesError, check_values, is_cheap

_BLANK = " \t\r\n"
_NEAR_THE_END = 16
"""Characters before the end of the buffer in which an error may only be a cut value: `tru`, `12`, `\\u12`."""


class _RecordTooLongError(Exception):
    """A record is longer than a document may be."""


def json_file(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    """The documents of a JSON file.

    The records are the elements of the array, or of the first list to which the path leads, or else the object itself.
    An element that is a text is a document.
    """
    if _holds_lines(stream.peek()):  # type: ignore[attr-defined]
        yield from jsonl(reader, stream)
        return
    stated = TextField(reader.settings.text_field, join=reader.settings.join)
    text, count = _Text(stream, reader.encoding, reader.limit), 0
    try:
        for count, (record, field) in enumerate(_records(text, stated), 1):
            if isinstance(record, str):
                yield from reader.texts([FieldText(record)], f"item {count}")
            else:
                yield from reader.texts(field.texts(record), f"item {count}", field.has_several)
    except _RecordTooLongError:
        reader.too_long(f"item {count + 1}")
    except FieldError as error:
        reader.problem("whole file", str(error))
    except json.JSONDecodeError as error:
        reader.problem(f"after {reader.last}", f"not JSON ({error.msg}, after item {count})")
    except TooManyValuesError as error:
        reader.problem(f"item {count + 1}", str(error))
    except (ValueError, RecursionError) as error:  # a number of too many digits, too many brackets
        if isinstance(error, UnicodeError):
            raise
        reader.problem(f"after {reader.last}", f"not JSON ({error}, after item {count})")


def _holds_lines(head: bytes) -> bool:
    """Whether the first line is a complete object and another object follows, as in JSON lines."""
    first, end, rest = head.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")
    if not end or not rest.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(first.decode("latin-1")), dict)
    except (ValueError, RecursionError):
        return False


def _records(text: "_Text", field: TextField) -> Iterator[tuple[Any, TextField]]:
    """Each record, and the field of its text. With `join`, what contains the list of texts is the record."""
    path = () if field.is_template else field.paths[0]
    joins = field.join is not None and path.count(EACH) == 1
    begin = text.next()
    if begin == "{" and EACH in path and not joins and all(isinstance(step, str) for step in path[: path.index(EACH)]):
        depth = path.index(EACH)
        for step in path[:depth]:
            text.enter(str(step))
        if text.next() != "[":
            raise FieldError(f"field `{field.field}`: not a list where {EACH} stands")
        inner = field.within(depth + 1)
        yield from ((value, inner) for value in text.elements())
        return
    if begin == "[" and not (joins and path[0] == EACH):
        inner = field.within(1) if path[:1] == (EACH,) else field
        yield from ((value, inner) for value in text.elements())
    else:
        yield text.value(), field
    if rest := text.next():
        raise json.JSONDecodeError(f"`{rest}` follows the end; JSON lines are `input.format=jsonl`", "", 0)


class _Text:
    """The text of a stream, read in pieces, of which one value at a time is kept."""

    def __init__(self, stream: BinaryIO, encoding: str, limit: int) -> None:
        self._stream, self._limit = stream, limit
        self._decode = codecs.getincrementaldecoder(encoding)().decode
        self._decoder = json.JSONDecoder()
        self._text, self._at, self._is_over = "", 0, False
        self._more(1)
        self._text = self._text.removeprefix("\ufeff")

    def _more(self, size: int) -> None:
        """Read at least `size` more bytes, unless the stream ends; forget text that has been used."""
        parts = [self._text[self._at :]]
        while size > 0 and not self._is_over:
            data = self._stream.read(BUFFER)
            self._is_over = not data
            parts.append(self._decode(data, self._is_over))
            size -= len(data)
        self._text, self._at = "".join(parts), 0
        self._is_cheap = is_cheap(self._text, self._limit)

    def next(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANK:
                    return self._text[self._at]
                self._at += 1
            if self._is_over:
                return ""
            self._more(1)

    def _take(self, *expected: str) -> str:
        found = self.next()
        if found not in expected or not found:
            raise json.JSONDecodeError(f"{found or 'the end'} where {' or '.join(expected)} should be", "", 0)
        self._at += 1
        return found

    def value(self) -> Any:
        """The next value.

        Raises `_RecordTooLongError` if it has more than `limit` characters, `TooManyValuesError` before it is parsed if
        it would take too much memory, and the decoder's errors.
        """
        self.next()
        while True:
            if not self._is_cheap:
                check_values(self._text, self._at, self._limit)
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos + _NEAR_THE_END >= len(self._text)
                if self._is_over or not is_cut:
                    raise
            else:
                if end < len(self._text) or self._is_over:  # else it may be the beginning of a longer number
                    self._at = end
                    return value
            held = len(self._text) - self._at
            if held > self._limit:
                raise _RecordTooLongError
            self._more(held)

    def elements(self) -> Iterator[Any]:
        """The elements of the list that comes next."""
        self._take("[")
        if self.next() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._take(",", "]") == "]":
                return

    def enter(self, name: str) -> None:
        """Go to the value of the field `name` of the object that comes next."""
        self._take("{")
        names = list[str]()
        while self.next() != "}":
            if names:
                self._take(",")
                self.next()
            key = self.value()
            self._take(":")
            if key == name:
                self.next()
                return
            names.append(str(key))
            self.value()
        raise FieldError(missing("field", name, names))
