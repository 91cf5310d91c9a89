"""The base class of all sections of a recipe: typed settings, whose error messages name the way out.

The sections themselves are in `reread.preprocessing.config`, `reread.training.config` and `reread.pipeline.recipe`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    field_validator,
    model_validator,
)

from reread.preprocessing.errors import CONTROL, UserError, close_to
from reread.preprocessing.redaction import redacted
from reread.preprocessing.synonyms import answer, meaning_of

NEAR = 0.75
"""How similar a mistyped key and the one that is suggested are at least, by `difflib`."""

Model = TypeVar("Model", bound="Settings")


def _check_line(text: str) -> str:
    if found := CONTROL.search(text):
        raise ValueError(f"is one line, without control characters such as {found[0]!r}")
    return text


Line = Annotated[str, AfterValidator(_check_line)]
"""Text that becomes part of a line of a script, or of a file name."""


def _check_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]*", text):
        raise ValueError("is made of the letters A-Z and a-z, digits, . _ and -")
    return text


Name = Annotated[str, AfterValidator(_check_name)]
"""Text that becomes the name of a folder or of a figure."""


def _as_path(value: Any) -> Any:
    return f"[{value[0]}]" if isinstance(value, list) and len(value) == 1 and isinstance(value[0], int) else value


FieldPath = Annotated[str, BeforeValidator(_as_path)]
"""A path in a record, which `TextField` in input/fields.py reads; YAML parses `[1]` on the command line as a list."""


class Retired(NamedTuple):
    """A key that earlier versions had, and recorded in run folders, corpora and exports."""

    values: tuple[Any, ...]
    """Values by which this version does the same: they are read and forgotten."""
    way_out: str
    """The answer to any other value."""


class Settings(BaseModel):
    """A frozen section of a recipe. An unknown key is an error, and so is a number that is not finite.

    A path may begin with ~, the home folder, which no shell expands in the middle of `section.key=~/file`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    retired: ClassVar[Mapping[str, Retired]] = {}
    """Keys that this section had once."""

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not cls.retired:
            return values
        return {
            key: value
            for key, value in values.items()
            if key not in cls.retired or value not in cls.retired[key].values
        }

    @field_validator("*")
    @classmethod
    def _check_64_bits(cls, value: Any) -> Any:
        """Raises ValueError for a number beyond the range of 64-bit integers."""
        if isinstance(value, int | float) and abs(value) >= 1 << 63:
            raise ValueError("is beyond 64 bits")
        return value

    @field_validator("*")
    @classmethod
    def _expand_home(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [cls._expand_home(one) for one in value]
        return Path(os.path.expanduser(value)) if isinstance(value, Path) else value

    @classmethod
    def parse(cls: type[Model], values: Any, where: str) -> Model:
        """The checked settings; raises `UserError` with `where`, each wrong field and the nearest right name."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors()]
            raise UserError(f"{where}: " + "; ".join(lines)) from None

    @classmethod
    def check_keys(cls, values: Any, where: str) -> None:
        """Raises the `UserError` of `parse` for unknown keys alone: values may still be missing."""
        try:
            cls.model_validate(values)
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors() if problem["type"] == "extra_forbidden"]
            if lines:
                raise UserError(f"{where}: " + "; ".join(lines)) from None


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`field: old -> new` for each leaf that differs between two nested dicts."""
    return [f"{name}: {before!r} -> {after!r}" for name, before, after in changed_leaves(old, new, path)]


def changed_leaves(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, old value, new value) of each leaf that differs between two nested dicts."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from changed_leaves(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _line(model: type[BaseModel], problem: Any) -> str:
    path, models = _walk(model, [str(part) for part in problem["loc"]])
    field = ".".join(path)
    if problem["type"] == "model_type":
        return _not_a_section(models, [part for part in path if part.strip()], problem["input"])
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ")
        of_section = problem["type"] == "value_error" and isinstance(problem["input"], dict)
        got = "" if of_section else f" (got {_shown(problem['input'])})"
        return f"{field and f'{field}: '}{message[:1].lower()}{message[1:]}{got}"
    return f"unknown key `{field}`; {_way_out(model, models, path, problem['input'])}"


def _not_a_section(owners: list[type[BaseModel]], path: list[str], given: Any) -> str:
    """The line about a value where a section belongs."""
    field = ".".join(path)
    inner = [one for owner in owners if path[-1] in owner.model_fields for one in _sections_of(owner, path[-1])]
    keys = dict.fromkeys(name for section in inner or owners for name in section.model_fields)  # or one in a list
    return f"{field}: a section; set one of its keys, {field}.KEY: {', '.join(keys)} (got {_shown(given)})"


def _way_out(root: type[BaseModel], owners: list[type[BaseModel]], path: list[str], given: Any) -> str:
    """What replaces a retired key; else a hint with the full name of the right one: by meaning, then by letters in its
    section, then in the others.

    Of an unknown section `given` the first key that has a meaning is answered.
    """
    name, section = path[-1], "".join(f"{part}." for part in path[:-1])
    retired: dict[str, Retired] = {key: one for owner in owners for key, one in getattr(owner, "retired", {}).items()}
    if name in retired:
        return retired[name].way_out
    here = {one: section + one for owner in owners for one in sorted(owner.model_fields)}
    known = f"known here: {', '.join(here.values())}"
    keys: dict[str, list[str]] = {}
    for key in _keys(root):
        keys.setdefault(key.rpartition(".")[2], []).append(key)
    if ".".join(path) in keys.get(name, ()):
        return f"it belongs to another `kind`; {known}"
    for one in (name, *(given if isinstance(given, dict) and name not in keys else ())):
        if (meaning := meaning_of(one)) and meaning.root in root.model_fields:
            return answer(meaning) + (f" by `{one}`" if one != name else "")
    if near := close_to(name, here, NEAR):
        return f"did you mean `{here[near[0]]}`?"
    elsewhere = [key for one in close_to(name, keys, NEAR)[:1] for key in keys[one]]
    return f"did you mean {' or '.join(f'`{key}`' for key in elsewhere[:3])}?" if elsewhere else known


def _keys(model: type[BaseModel], section: str = "") -> list[str]:
    """All dotted keys of `model` and its sections, outer keys first, except keys of sections in lists."""
    found = dict.fromkeys(section + name for name in model.model_fields)
    for name, info in model.model_fields.items():
        for inner in sections_in(info.annotation):
            if get_origin(info.annotation) not in (list, tuple):
                found.update(dict.fromkeys(_keys(inner, f"{section}{name}.")))
    return sorted(found, key=lambda key: key.count("."))


def _shown(value: Any) -> str:
    text = redacted(repr(value))
    return text if len(text) <= 100 else f"{text[:97]}..."


def _walk(model: type[BaseModel], parts: list[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """The fields in the path of pydantic's error, without the tags of unions, and the models that may have the last."""
    path, models = [], [model]
    for number, part in enumerate(parts):
        if not part.strip() and number < len(parts) - 1:  # the tag of a section that may be a list
            continue
        tagged = [owner for owner in models if part in _literals(owner)]
        if tagged:
            models = tagged
            continue
        path.append(part)
        nested = [found for owner in models if part in owner.model_fields for found in _sections_of(owner, part)]
        if nested and number < len(parts) - 1:
            models = nested
    return path or parts, models


def _sections_of(model: type[BaseModel], name: str) -> Iterator[type[BaseModel]]:
    return sections_in(model.model_fields[name].annotation)


def _literals(model: type[BaseModel]) -> set[Any]:
    """The values that a section permits for its `kind`; empty if it has none."""
    return set(get_args(model.model_fields["kind"].annotation)) if "kind" in model.model_fields else set()


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections (pydantic models) that occur in a type annotation."""
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)
