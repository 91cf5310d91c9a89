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
    path = [str(part) for part in problem["loc"]]
    field = ".".join(path)
    if problem["type"] != "extra_forbidden":
        return f"{field}: {problem['msg'][:1].lower()}{problem['msg'][1:]} (got {problem['input']!r})"
    names = sorted(_fields_at(model, path[:-1]))
    return f"unknown key `{field}`; {nearest(path[-1], names, 'known here')}"


def _fields_at(model: type[BaseModel], path: list[str]) -> set[str]:
    models = [model]
    for part in path:
        models = [
            nested
            for owner in models
            if part in owner.model_fields
            for nested in _models_in(owner.model_fields[part].annotation)
        ] or models  # the tag of a union stands in the path but is no field
    return {name for owner in models for name in owner.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
