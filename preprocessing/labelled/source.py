"""A file of labelled data while it is read: its bytes, its lines, its JSON, and the mistakes found in it."""

import json
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import zstandard

from preprocessing.errors import UserError, first_line
from preprocessing.input.fields import json_type
from preprocessing.input.streams import BOMS, decompress
from preprocessing.settings import Settings

Model = TypeVar("Model", bound=Settings)
Task = Literal["classify", "tag", "answer", "choose"]
Labels = Literal["one", "set", "number"]

DAMAGE = (EOFError, OSError, lzma.LZMAError, tarfile.TarError, zlib.error, zstandard.ZstdError)
"""What libraries raise for a damaged compressed file; an OSError with a number is one of the system."""


@dataclass
class Source:
    """What a reader of a format is given: where it reads, how, and where it reports mistakes."""

    path: Path
    task: Task
    columns: Mapping[str, str] = field(default_factory=dict)
    """The field of an example -> the name that the file has for it."""
    labels: Labels = "one"
    mistakes: list[str] = field(default_factory=list)
    """One line each, with file and position."""

    def place(self, position: str | int) -> str:
        """`FILE:12` for a line, `FILE: article 12` for another position."""
        return f"{self.path}:{position}" if isinstance(position, int) else f"{self.path}: {position}"

    def mistake(self, place: str, reason: str) -> None:
        """Note why the example at `place` is not read."""
        self.mistakes.append(str(UserError(f"{place}: {reason}")))

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its suffix."""
        with self.path.open("rb") as file:
            yield decompress(file, str(self.path), lambda size: None)

    def damaged(self, error: BaseException) -> UserError:
        """The line for what a library raised; raises errors of the system again."""
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
        mark, encoding = next(((mark, name) for mark, name in BOMS if data.startswith(mark)), (b"", "utf-8"))
        if encoding != "utf-8":
            raise UserError(f"{self.path}: not UTF-8 but {encoding}; convert it: iconv -f {encoding} -t utf-8")
        return data.removeprefix(mark)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each line, blank ones too, without its end; U+2028 and the like end no line."""
        return enumerate(self.data.replace(b"\r\n", b"\n").split(b"\n"), 1)

    def decode(self, data: bytes, place: str) -> str | None:
        """`data` as text; a mistake and None if it is not UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.mistake(place, _not_utf8(error))
            return None

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and object of each line that is not blank."""
        for number, line in self.lines():
            if not line.strip():
                continue
            try:
                values = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                self.mistake(self.place(number), _not_json(error))
                continue
            if isinstance(values, dict):
                yield number, values
            else:
                self.mistake(self.place(number), f"{json_type(values)}; each line has to be one object")

    def json(self) -> Any:
        """The whole file as one JSON value; raises `UserError`."""
        try:
            return json.loads(self.data.decode())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path}: {_not_json(error)}") from None

    def parse(self, model: type[Model], values: Any, place: str) -> Model | None:
        """`values` checked; a mistake and None if they are wrong."""
        if not isinstance(values, dict):
            self.mistake(place, f"{json_type(values)}, not an object")
            return None
        try:
            return model.parse(values, place)
        except UserError as error:
            self.mistakes.append(str(error))
            return None

    def parse_each(self, model: type[Model], values: Sequence[Any], name: str) -> Iterator[tuple[str, Model]]:
        """Position (`name` and its number from 1) and object of each of `values` that is right."""
        for number, value in enumerate(values, 1):
            position = f"{name} {number}"
            parsed = self.parse(model, value, self.place(position))
            if parsed is not None:
                yield position, parsed

    def label(self, value: Any) -> str | tuple[str, ...] | float | None:
        """A label as `labels` wants it; None and an empty text are no label. Raises ValueError with the reason."""
        if value is None or value == "":
            return None
        if self.labels == "set":
            if isinstance(value, list | tuple):
                return tuple(dict.fromkeys(map(_name, value)))
            raise ValueError(f"label {value!r} is not a list, which `task.answer=set` needs")
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


def _not_utf8(error: UnicodeDecodeError) -> str:
    found = error.object[error.start]
    return f"not UTF-8 (byte 0x{found:02x} after {error.start} bytes); convert it: iconv -f gb18030 -t utf-8"


def _not_json(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return _not_utf8(error)
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, line {error.lineno}, character {error.colno})"
    return f"not JSON ({first_line(error)})"
