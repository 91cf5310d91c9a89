"""`input.text_field`: finds the text in a record, which is a JSON value or a row of a table."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"(?:(?:^|\.)[^.\[\]]+|\[\d*\])+")
_STEP = re.compile(r"[^.\[\]]+|\[\d*\]")
EACH = "[]"
"""The step of a path that stands for every element of a list."""
Path = tuple[str | int, ...]


class FieldError(Exception):
    """A record does not have the text that `input.text_field` names."""


class FieldText(NamedTuple):
    """A text of a record, or the problem because of which the record does not have it."""

    text: str = ""
    problem: str | None = None


class _Value(NamedTuple):
    """A value to which a path leads, or the problem that ends the path."""

    value: Any = None
    problem: str | None = None

    def text(self, noun: str, name: str) -> FieldText:
        """The value as the text of the field `name`, which messages call a `noun`."""
        if self.problem or isinstance(self.value, str):
            return FieldText(self.value or "", self.problem)
        hint = f"; `{name}[]` is each of its elements" if isinstance(self.value, list) else ""
        return FieldText(problem=f"{noun} `{name}` holds {json_type(self.value)}, not text{hint}")


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

    def texts(self, record: Any) -> Iterator[FieldText]:
        """The texts of a record, with a problem instead of each text that is missing."""
        if isinstance(record, dict) and self.field in record:
            yield _Value(record[self.field]).text(self.noun, self.field)
        elif self.is_template:
            yield self._whole(lambda: self._filled(record))
        elif self.join is not None and EACH in self.paths[0]:
            yield self._whole(lambda: self._joined(self._values(record, self.paths[0], self.field), self.field))
        else:
            for found in self._values(record, self.paths[0], self.field):
                yield found.text(self.noun, self.field)

    def value(self, record: Any) -> Any:
        """The value of the field, of any type; a list if the path leads to several values. Raises `FieldError`."""
        if isinstance(record, dict) and self.field in record:
            return record[self.field]
        if self.is_template:
            return self._filled(record)
        found = list(self._values(record, self.paths[0], self.field))
        for one in found:
            if one.problem:
                raise FieldError(one.problem)
        return [one.value for one in found] if EACH in self.paths[0] else found[0].value

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
    def _whole(make: Callable[[], str]) -> FieldText:
        try:
            return FieldText(make())
        except FieldError as error:
            return FieldText(problem=str(error))

    def _filled(self, record: Any) -> str:
        filled = self._literals[0]
        for name, path, literal in zip(self._names, self.paths, self._literals[1:], strict=True):
            is_exact = isinstance(record, dict) and name in record
            found = [_Value(record[name])] if is_exact else self._values(record, path, name)
            filled += self._joined(found, name) + literal
        return filled

    def _joined(self, values: Iterable[_Value], name: str) -> str:
        """The values as one text; numbers become texts, and null an empty text. Raises `FieldError`."""
        texts = []
        for found in values:
            is_number = isinstance(found.value, int | float) and not isinstance(found.value, bool)
            printed = str(found.value) if is_number else "" if found.value is None else found.value
            text, problem = found._replace(value=printed).text(self.noun, name)
            if problem:
                raise FieldError(problem)
            texts.append(text)
        return ("\n" if self.join is None else self.join).join(texts)

    def _values(self, value: Any, path: Path, name: str) -> Iterator[_Value]:
        if not path:
            yield _Value(value)
            return
        step, rest = path[0], path[1:]
        if step == EACH:
            if isinstance(value, list):
                for element in value:
                    yield from self._values(element, rest, name)
            else:
                yield _Value(problem=f"{self.noun} `{name}`: {json_type(value)} where {EACH} needs a list")
        elif isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                yield from self._values(value[step], rest, name)
            else:
                found = f"a list of {len(value)}" if isinstance(value, list) else json_type(value)
                yield _Value(problem=f"{self.noun} `{name}`: {found} where [{step}] is asked for")
        elif not isinstance(value, dict):
            hint = f"; `{self.setting}` may be a path, such as `[0]` or `[0][]`" if isinstance(value, list) else ""
            yield _Value(problem=f"{json_type(value)}, not an object with the {self.noun} `{name}`{hint}")
        elif step not in value:
            yield _Value(problem=missing(self.noun, step, value, self.setting))
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
