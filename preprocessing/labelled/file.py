"""A file of labelled data while it is read: its bytes, its lines, its JSON, and the mistakes found in it."""

import io
import json
import lzma
import math
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
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
    _left: float = math.inf
    """Bytes that a compressed file may still take."""

    @cached_property
    def name(self) -> str:
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)

    def location(self, position: str | int) -> str:
        """`FILE:12` for a line, `FILE: article 12` for another position."""
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

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each line, blank ones too, without its end; U+2028 and the like end no line."""
        with self.open() if self.is_plain else nullcontext(io.BytesIO(self.data)) as stream:
            first = stream.readline()
            first = first.removeprefix(self._mark(first))
            lines = chain([first] if first else [], stream)  # there may be millions
            yield from enumerate(map(_without_end, lines), 1)

    def decode(self, data: bytes, location: str) -> str | None:
        """`data` as text; None, with a mistake recorded, if it is not UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.mistake(location, _not_utf8(error))
            return None

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and object of each line that is not blank."""
        for number, line in self.lines():
            if not line.strip():
                continue
            try:
                values = self._loads(line, _ROOM)
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
            return self._loads(self.data, _ROOM, _VALUES)
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from None

    def _loads(self, data: bytes, room: int, a_character: int = 0) -> Any:
        """The value of a JSON text, which may take `room` bytes of memory and `a_character` for each of its characters.

        Raises ValueError with the reason if the text is not JSON, or takes more.
        """
        try:
            text = data.decode()
            if self._left < math.inf:
                self.spend(values_bytes(text))
            return loads(text, room + a_character * len(text))
        except TooManyValuesError:
            raise
        except UnicodeDecodeError as error:
            raise ValueError(_not_utf8(error)) from None
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


def _not_utf8(error: UnicodeDecodeError) -> str:
    found = error.object[error.start]
    return f"not UTF-8 (byte 0x{found:02x} after {error.start} bytes); convert it: iconv -f gb18030 -t utf-8"
