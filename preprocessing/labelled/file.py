"""A file of labelled data while it is read: its bytes, its lines, its JSON, and the mistakes found in it."""

import io
import json
import lzma
import math
import os
import re
import sys
import tarfile
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import zstandard

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.files import open_file
from reread.preprocessing.input.fields import json_type
from reread.preprocessing.input.streams import BOMS, decompress, split_name
from reread.preprocessing.json_values import TooManyValuesError, loads, values_bytes
from reread.preprocessing.labelled.examples import NOTHING, Given
from reread.preprocessing.settings import Settings

Model = TypeVar("Model", bound=Settings)
Labels = Literal["one", "set", "number"]

STANDARD_INPUT = Path("-")
DAMAGE = (EOFError, OSError, lzma.LZMAError, tarfile.TarError, zlib.error, zstandard.ZstdError)
"""Errors of libraries for a damaged compressed file; an OSError with a number comes from the operating system."""

_ROOM, _EXPANSION = 256_000_000, 200
"""The bytes of memory that a compressed file may take: a constant, plus a multiple of its size."""
_VALUES = 8
"""The values of a JSON file may take `_ROOM` bytes and this many per character; usually they take twice as many as
its characters."""
_MOST_MISTAKES = 100_000
_LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_BLANKS = " \t\n\r\v\f"
_LONGEST_MARK = max(len(mark) for mark, _ in BOMS)
_PIECE = 1 << 20
"""Bytes of a long line, or of a file, that are decoded together."""
HEAD = 1 << 16
"""The bytes at the beginning of a file by which its format is recognised."""


@dataclass
class LabelledFile:
    """The file that the reader of a format reads, the settings for it, and the mistakes found in it."""

    path: Path
    task: str
    """A key of `TASKS`."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The field of an example -> the name that the file has for it."""
    labels: Labels = "one"
    join: str = "\n"
    """The separator of the texts that a path of `columns` finds in a record."""
    label_separator: str | None = None
    """The separator of the labels of a set in one text; None: a comma in a table."""
    given: Given = NOTHING
    """Split, question and options for raw texts without their own."""
    mistakes: list[str] = field(default_factory=list)
    """One line each, with file and position."""
    misplaced: dict[str, str] = field(default_factory=dict)
    """The location of each example with a misplaced answer or phrase -> a line on the first of them."""
    _place: str = ""
    """What a number of `location` counts, where that is not lines."""
    _left: float = math.inf
    """Bytes that a compressed file may still take."""

    @cached_property
    def name(self) -> str:
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)

    def location(self, position: str | int) -> str:
        """`FILE:12` for a line, `FILE: article 12` for another position, `FILE: member 12` in a JSON list."""
        if isinstance(position, int) and self._place:
            position = f"{self._place}{position}"
        return f"{self.name}:{position}" if isinstance(position, int) else f"{self.name}: {position}"

    def mistake(self, location: str, reason: str) -> None:
        """Record why the example at `location` is not read."""
        self._add(UserError(f"{location}: {reason}"))

    def _add(self, error: UserError) -> None:
        self.mistakes.append(str(error))
        if len(self.mistakes) > _MOST_MISTAKES:
            raise UserError(f"{self.mistakes[0]} (the first of more than {_MOST_MISTAKES:,} mistakes)")

    def misplace(self, location: str, reason: str) -> None:
        """Record that the example at `location` has an answer or a phrase that is not where it should be."""
        self.misplaced.setdefault(location, str(UserError(f"{location}: {reason}")))

    def spend(self, count: int) -> None:
        """Count bytes of memory that a compressed file takes; raises `UserError` if they are too many."""
        self._left -= count
        if self._left < 0:
            raise UserError(
                f"{self.path}: takes more than {_EXPANSION} times its size and {_ROOM:,} bytes of memory, which no "
                "text does; if it is right, decompress it first"
            )

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its suffix."""
        with nullcontext(sys.stdin.buffer) if self.path == STANDARD_INPUT else open_file(self.path) as file:
            if split_name(str(self.path))[1] is not None:
                self._left = _ROOM + _EXPANSION * os.fstat(file.fileno()).st_size
            yield decompress(file, str(self.path), self.spend)

    def damaged(self, error: BaseException) -> UserError:
        """The error line for an error of a library; errors of the operating system are raised again."""
        if isinstance(error, OSError) and error.errno is not None:
            raise error
        return UserError(f"{self.path}: damaged or cut short ({first_line(error)}); fetch it again")

    @cached_property
    def data(self) -> bytes:
        """The whole file without a byte order mark; raises `UserError` if it is damaged or in another encoding."""
        try:
            with self.open() as stream:
                data = stream.read()
        except DAMAGE as error:
            raise self.damaged(error) from None
        return data.removeprefix(self._mark(data))

    def _mark(self, data: bytes) -> bytes:
        """The byte order mark of a file that begins with `data`; raises `UserError` for one of another encoding."""
        mark, encoding = next(((mark, name) for mark, name in BOMS if data.startswith(mark)), (b"", "utf-8"))
        if encoding != "utf-8":
            raise UserError(f"{self.path}: not UTF-8 but {encoding}; convert it: iconv -f {encoding} -t utf-8")
        return mark

    @property
    def is_plain(self) -> bool:
        """Whether it is a file whose bytes can be read again, as they are needed."""
        return self.path.is_file() and split_name(str(self.path))[1] is None

    @cached_property
    def head(self) -> bytes:
        """The first bytes of `data`."""
        if not self.is_plain:
            return self.data[:HEAD]
        with self.open() as stream:
            data = stream.read(HEAD)
        return data.removeprefix(self._mark(data))

    @contextmanager
    def _stream(self) -> Iterator[BinaryIO]:
        """The file's bytes, at the first one behind a byte order mark."""
        with self.open() if self.is_plain else nullcontext(io.BytesIO(self.data)) as stream:
            stream.seek(len(self._mark(stream.read(_LONGEST_MARK))))
            yield stream

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each line, blank ones too, without its end; U+2028 and the like end no line."""
        with self._stream() as stream:
            yield from enumerate(map(_without_end, stream), 1)

    def rows(self, separator: str | None = None) -> Iterator[tuple[int, list[str]]]:
        """Number and cells of each line of `lines` that is not empty; one that is not UTF-8 is a mistake.

        A long line is decoded as it is read, and nothing here refers to its text any longer than its reader does.
        """
        with self._stream() as stream:
            for number in count(1):
                line = stream.readline(_PIECE)
                if not line:
                    return
                if len(line) == _PIECE and not line.endswith(b"\n"):
                    cells = self._joined(_rest_of_line(line, stream), self.location(number), separator)
                    if cells is not None and cells != [""]:
                        yield number, [cells.pop(0) for _ in range(len(cells))]
                elif text := self.decode(_without_end(line), self.location(number)):
                    yield number, _cells(text, separator)

    def visible_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Number and text, as a list of one, of each line of `rows` that is not blank."""
        return (one for one in self.rows() if one[1][0].strip(_BLANKS))

    def text(self) -> str | None:
        """The whole file as a text; None, with a mistake recorded, if it is not UTF-8."""
        with self._stream() as stream:
            found = self._joined(iter(lambda: stream.read(_PIECE), b""), self.name)
        return found.pop() if found else None

    def _joined(self, pieces: Iterator[bytes], location: str, separator: str | None = None) -> list[str] | None:
        """The cells of a text that comes in pieces; None, with a mistake recorded, if it is not UTF-8."""
        decoder, cells, done = getincrementaldecoder("utf-8")(), [""], 0
        for piece in chain(pieces, [b""]):
            before = done - len(decoder.getstate()[0])
            try:
                first, *others = _cells(decoder.decode(piece, final=not piece), separator)
            except UnicodeDecodeError as error:
                self.mistake(location, _not_utf8(error, before))
                for _ in pieces:
                    pass
                return None
            done += len(piece)
            last = cells.pop()
            last += first  # the only reference to it, so that it grows where it is
            cells += [last, *others]
        return cells

    def decode(self, data: bytes, location: str) -> str | None:
        """`data` as text; None, with a mistake recorded, if it is not UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.mistake(location, _not_utf8(error))
            return None

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and object of each line that is not blank, or of each member of a file that is one JSON list."""
        if _LIST_OF_OBJECTS.match(self.head):
            self._place = "member "
            for number, values in enumerate(self.json(), 1):
                if isinstance(values, dict):
                    yield number, values
                else:
                    self.mistake(self.location(number), f"{json_type(values)}; each member has to be one object")
            return
        for number, cells in self.visible_rows():
            try:
                values = self._loads(cells.pop(), _ROOM)
            except ValueError as error:
                self.mistake(self.location(number), str(error))
                continue
            if isinstance(values, dict):
                yield number, values
            else:
                self.mistake(self.location(number), f"{json_type(values)}; each line has to be one object")

    def json(self) -> Any:
        """The whole file as one JSON value; raises `UserError`."""
        try:
            return self._loads(self.data.decode(), _ROOM, _VALUES)
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path}: {_not_utf8(error)}") from None
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from None

    def _loads(self, text: str, room: int, a_character: int = 0) -> Any:
        """The value of a JSON text, which may take `room` bytes of memory and `a_character` for each of its characters.

        Raises ValueError with the reason if the text is not JSON, or takes more.
        """
        try:
            if self._left < math.inf:
                self.spend(values_bytes(text))
            return loads(text, room + a_character * len(text))
        except TooManyValuesError:
            raise
        except json.JSONDecodeError as error:
            reason = f"{error.msg}, line {error.lineno}, character {error.colno}"
        except (ValueError, RecursionError) as error:
            reason = first_line(error)
        raise ValueError(f"not JSON ({reason})")

    def parse(self, model: type[Model], values: Any, location: str) -> Model | None:
        """The checked `values`; None, with a mistake recorded, if they are wrong."""
        if not isinstance(values, dict):
            self.mistake(location, f"{json_type(values)}, not an object")
            return None
        try:
            return model.parse(values, location)
        except UserError as error:
            self._add(error)
            return None

    def parse_each(self, model: type[Model], values: Sequence[Any], name: str) -> Iterator[tuple[str, Model]]:
        """The valid objects among `values`, each with its position: `name` and its number from 1."""
        for number, value in enumerate(values, 1):
            position = f"{name} {number}"
            parsed = self.parse(model, value, self.location(position))
            if parsed is not None:
                yield position, parsed

    @staticmethod
    def separated(text: str, separator: str) -> list[str]:
        """The labels of a set that is written as one text."""
        return [name.strip() for name in text.split(separator) if name.strip()]

    def label(self, value: Any) -> str | tuple[str, ...] | float | None:
        """A label in the form that `labels` names; None for null and an empty text. Raises ValueError with a reason."""
        if value is None or value == "":
            return None
        if self.labels == "set":
            if isinstance(value, str) and self.label_separator:
                value = self.separated(value, self.label_separator)
            if isinstance(value, list | tuple):
                return tuple(dict.fromkeys(map(_name, value)))
            raise ValueError(
                f"label {value!r} is not a list, which `task.answer=set` needs; if one text holds "
                "several, name their separator by `task.label_separator`"
            )
        if isinstance(value, list | tuple):
            raise ValueError(f"label {value!r} is a list; did you mean `task.answer=set`?")
        return _number(value) if self.labels == "number" else _name(value)


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    hint = "; did you mean `task.answer=number`?" if isinstance(value, float) else ""
    raise ValueError(f"label {value!r} is neither text nor a whole number{hint}")


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"label {value!r} is not a number, which `task.answer=number` needs")
    return number


def _without_end(line: bytes) -> bytes:
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


def _rest_of_line(piece: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """A line that begins with `piece`, in pieces, without its end."""
    while piece:
        following = b"" if piece.endswith(b"\n") else stream.readline(_PIECE)
        if following and piece.endswith(b"\r"):  # it may be half of the end
            piece, following = piece[:-1], b"\r" + following
        yield piece if following else _without_end(piece)
        piece = following


def _cells(text: str, separator: str | None) -> list[str]:
    return text.split(separator) if separator else [text]


def _not_utf8(error: UnicodeDecodeError, before: int = 0) -> str:
    """The reason, where `before` bytes were decoded earlier."""
    found, after = error.object[error.start], before + error.start
    return f"not UTF-8 (byte 0x{found:02x} after {after} bytes); convert it: iconv -f gb18030 -t utf-8"
