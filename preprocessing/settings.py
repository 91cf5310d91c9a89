"""The base of every typed section of a recipe."""

from collections.abc import Iterator
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from preprocessing.errors import UserError, nearest

Model = TypeVar("Model", bound="Settings")


class Settings(BaseModel):
    """A frozen section of a recipe; a key it does not know is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def parse(cls: type[Model], values: Any, where: str) -> Model:
        """Check `values`; raises `UserError` naming `where`, each wrong field and the nearest right name."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors()]
            raise UserError(f"{where}: " + "; ".join(lines)) from None


def _line(model: type[BaseModel], problem: Any) -> str:
    path, models = _walk(model, [str(part) for part in problem["loc"]])
    field = ".".join(path)
    if problem["type"] != "extra_forbidden":
        return f"{field}: {problem['msg'][:1].lower()}{problem['msg'][1:]} (got {problem['input']!r})"
    names = sorted({name for owner in models for name in owner.model_fields})
    return f"unknown key `{field}`; {nearest(path[-1], names, 'known here')}"


def _walk(model: type[BaseModel], parts: list[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """The fields that pydantic's path names, without the tags of unions, and the sections that hold the last one."""
    path, models = [], [model]
    for number, part in enumerate(parts):
        tagged = [owner for owner in models if part in _literals(owner)]
        if tagged:
            models = tagged
            continue
        path.append(part)
        inner = [owner.model_fields[part].annotation for owner in models if part in owner.model_fields]
        nested = [found for annotation in inner for found in _models_in(annotation)]
        if nested and number < len(parts) - 1:
            models = nested
    return path, models


def _literals(model: type[BaseModel]) -> set[Any]:
    """The values that the `kind` of a section may have."""
    return set(get_args(model.model_fields["kind"].annotation)) if "kind" in model.model_fields else set()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
