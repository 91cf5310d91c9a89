"""`input.text_field`: which part of a record (a JSON value, a row of a table) is its text."""

import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"(?:(?:^|\.)[^.\[\]]+|\[\d*\])+")
_STEP = re.compile(r"[^.\[\]]+|\[\d*\]")
EACH = "[]"
"""The step of a path to every element of a list."""
Path = tuple[str | int, ...]


class FieldError(Exception):
    """A record without the text that was asked for."""


class TextField:
    """A name, a path such as `data[].paragraphs[].context` or `[0][]`, or a template such as `{title}\\n{body}`.

    Each value that a path finds is a document; a template makes one of a record, and joins the elements of a list in
    it by line ends. A name that a record has is taken as it stands, whatever it contains.
    """

    def __init__(self, field: str, noun: str = "field") -> None:
        """`noun` is what messages call a field."""
        self.field, self.noun = field, noun
        self.is_template = _PLACEHOLDER.search(field) is not None
        parts = _PLACEHOLDER.split(field.replace("\\n", "\n")) if self.is_template else ["", field]
        self._literals = parts[::2]
        self._names = parts[1::2]
        self.paths = [_path(name) for name in self._names]
        self.has_several = not self.is_template and EACH in self.paths[0]
        """Whether a record may have several texts."""

    def texts(self, record: Any) -> Iterator[str | FieldError]:
        """The texts of a record, and an error in the place of each that cannot be had."""
        if isinstance(record, dict) and self.field in record:
            yield self._text(record[self.field], self.field)
        elif not self.is_template:
            for value in self._values(record, self.paths[0], self.field):
                yield value if isinstance(value, FieldError) else self._text(value, self.field)
        else:
            try:
                yield self._filled(record)
            except FieldError as error:
                yield error

    def roots(self, known: Sequence[str]) -> list[str]:
        """The columns of a table with the columns `known` that are needed."""
        if self.field in known:
            return [self.field]
        pairs = zip(self._names, self.paths, strict=True)
        return list(dict.fromkeys(name if name in known else str(path[0]) for name, path in pairs))

    def within(self, depth: int) -> "TextField":
        """The rest of a path after its first `depth` steps."""
        inner = copy(self)
        inner.paths = [self.paths[0][depth:]]
        inner.has_several = EACH in inner.paths[0]
        return inner

    def _filled(self, record: Any) -> str:
        filled = self._literals[0]
        for name, path, literal in zip(self._names, self.paths, self._literals[1:], strict=True):
            is_exact = isinstance(record, dict) and name in record
            values = [record[name]] if is_exact else list(self._values(record, path, name))
            texts = []
            for value in values:
                text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
                text = "" if value is None else text if isinstance(text, FieldError) else self._text(text, name)
                if isinstance(text, FieldError):
                    raise text
                texts.append(text)
            filled += "\n".join(texts) + literal
        return filled

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
            hint = "; `input.text_field` may be a path, such as `[0]` or `[0][]`" if isinstance(value, list) else ""
            yield FieldError(f"{json_type(value)}, not an object with the {self.noun} `{name}`{hint}")
        elif step not in value:
            yield FieldError(missing(self.noun, step, value))
        else:
            yield from self._values(value[step], rest, name)


def json_type(value: Any) -> str:
    """What JSON calls the type of a value, with its article; a table's other types have Python's names."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def missing(noun: str, name: str, known: Sequence[str] | dict[str, Any]) -> str:
    """The reason where a record has no such field."""
    return f"no {noun} `{name}`; it has {listed(known)} (`input.text_field` says which)"


def listed(names: Any) -> str:
    """The first few names, for a message."""
    known = [name if len(name) < 40 else name[:40] + "..." for name, _ in zip(names, range(9), strict=False)]
    return ", ".join([*known[:8], "..."] if len(known) > 8 else known) or "none"


def _path(name: str) -> Path:
    """The steps of a path; a name that is none is one step."""
    if not _PATH.fullmatch(name):
        return (name,)
    steps = [step if step == EACH or step[0] != "[" else int(step[1:-1]) for step in _STEP.findall(name)]
    return tuple(steps)
