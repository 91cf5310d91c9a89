"""`input.text_field`: finds the text in a record, which is a JSON value or a row of a table."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"(?:(?:^|\.)[^.\[\]]+|\[\d*\])+")
_STEP = re.compile(r"[^.\[\]]+|\[\d*\]")
EACH = "[]"
"""The step of a path that stands for every element of a list."""
Path = tuple[str | int, ...]


class FieldError(Exception):
    """A record does not have the text that `input.text_field` names."""


class TextField:
    """A name, a path such as `data[].paragraphs[].context` or `[0][]`, or a template such as `{title}\\n{body}`.

    Each value that a path finds is a document; with `join`, all values in a record are joined to one document. A
    template makes one document of a record; the elements of a list in it are joined by `join`, or else by line ends. If
    a record has a field with exactly this name, it is neither a path nor a template.
    """

    def __init__(
        self, field: str, noun: str = "field", join: str | None = None, setting: str = "input.text_field"
    ) -> None:
        """In messages, a field is called `noun`, and `setting` is the name of the setting."""
        self.field, self.noun, self.setting = field, noun, setting
        self.join = None if join is None else join.replace("\\n", "\n")
        self.is_template = _PLACEHOLDER.search(field) is not None
        parts = _PLACEHOLDER.split(field.replace("\\n", "\n")) if self.is_template else ["", field]
        self._literals = parts[::2]
        self._names = parts[1::2]
        self.paths = [_path(name) for name in self._names]
        self.has_several = self._has_several()
        """Whether a record may have several texts."""

    def texts(self, record: Any) -> Iterator[str | FieldError]:
        """The texts of a record, with a `FieldError` in place of each text that is missing."""
        if isinstance(record, dict) and self.field in record:
            yield self._text(record[self.field], self.field)
        elif self.is_template:
            yield self._whole(lambda: self._filled(record))
        elif self.join is not None and EACH in self.paths[0]:
            yield self._whole(lambda: self._joined(self._values(record, self.paths[0], self.field), self.field))
        else:
            for value in self._values(record, self.paths[0], self.field):
                yield value if isinstance(value, FieldError) else self._text(value, self.field)

    def value(self, record: Any) -> Any:
        """The value of the field, of any type; a list if the path leads to several values. Raises `FieldError`."""
        if isinstance(record, dict) and self.field in record:
            return record[self.field]
        if self.is_template:
            return self._filled(record)
        values = list(self._values(record, self.paths[0], self.field))
        for value in values:
            if isinstance(value, FieldError):
                raise value
        return values if EACH in self.paths[0] else values[0]

    def roots(self, known: Sequence[str]) -> list[str]:
        """The columns that are needed of a table with the columns `known`."""
        if self.field in known:
            return [self.field]
        pairs = zip(self._names, self.paths, strict=True)
        return list(dict.fromkeys(name if name in known else str(path[0]) for name, path in pairs))

    def within(self, depth: int) -> "TextField":
        """The field whose path is the rest of this path after its first `depth` steps."""
        inner = copy(self)
        inner.paths = [self.paths[0][depth:]]
        inner.has_several = inner._has_several()
        return inner

    def _has_several(self) -> bool:
        return not self.is_template and self.join is None and EACH in self.paths[0]

    @staticmethod
    def _whole(make: Callable[[], str]) -> str | FieldError:
        try:
            return make()
        except FieldError as error:
            return error

    def _filled(self, record: Any) -> str:
        filled = self._literals[0]
        for name, path, literal in zip(self._names, self.paths, self._literals[1:], strict=True):
            is_exact = isinstance(record, dict) and name in record
            filled += self._joined([record[name]] if is_exact else self._values(record, path, name), name) + literal
        return filled

    def _joined(self, values: Iterable[Any], name: str) -> str:
        """The values as one text; numbers become texts, and null an empty text. Raises `FieldError`."""
        texts = []
        for value in values:
            text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            text = "" if value is None else text if isinstance(text, FieldError) else self._text(text, name)
            if isinstance(text, FieldError):
                raise text
            texts.append(text)
        return ("\n" if self.join is None else self.join).join(texts)

    def _text(self, value: Any, name: str) -> str | FieldError:
        if isinstance(value, str):
            return value
        hint = f"; `{name}[]` is each of its elements" if isinstance(value, list) else ""
        return FieldError(f"{self.noun} `{name}` holds {json_type(value)}, not text{hint}")

    def _values(self, value: Any, path: Path, name: str) -> Iterator[Any]:
        if not path:
            yield value
            return
        step, rest = path[0], path[1:]
        if step == EACH:
            if isinstance(value, list):
                for element in value:
                    yield from self._values(element, rest, name)
            else:
                yield FieldError(f"{self.noun} `{name}`: {json_type(value)} where {EACH} needs a list")
        elif isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                yield from self._values(value[step], rest, name)
            else:
                found = f"a list of {len(value)}" if isinstance(value, list) else json_type(value)
                yield FieldError(f"{self.noun} `{name}`: {found} where [{step}] is asked for")
        elif not isinstance(value, dict):
            hint = f"; `{self.setting}` may be a path, such as `[0]` or `[0][]`" if isinstance(value, list) else ""
            yield FieldError(f"{json_type(value)}, not an object with the {self.noun} `{name}`{hint}")
        elif step not in value:
            yield FieldError(missing(self.noun, step, value, self.setting))
        else:
            yield from self._values(value[step], rest, name)


def json_type(value: Any) -> str:
    """The name of a value's type in JSON, with its article; types that only tables have keep their Python name."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def missing(noun: str, name: str, known: Sequence[str] | dict[str, Any], setting: str = "input.text_field") -> str:
    """The message that a record has no field `name`, with the fields that it has."""
    return f"no {noun} `{name}`; it has {listed(known)} (`{setting}` says which)"


def listed(names: Any) -> str:
    """The first few names, for a message."""
    known = [name if len(name) < 40 else name[:40] + "..." for name, _ in zip(names, range(9), strict=False)]
    return ", ".join([*known[:8], "..."] if len(known) > 8 else known) or "none"


def _path(name: str) -> Path:
    """The steps of a path; a name that is no path is a single step."""
    if not _PATH.fullmatch(name):
        return (name,)
    steps = [step if step == EACH or step[0] != "[" else int(step[1:-1]) for step in _STEP.findall(name)]
    return tuple(steps)
