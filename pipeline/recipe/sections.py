"""The sections of a recipe and their keys, each with type, default and sentence, from the typed models."""

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from reread.pipeline.recipe.layers import TASK
from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.preprocessing.settings import sections_in
from reread.training.config import AUTOMATIC, TrainSettings
from reread.training.data.kinds import KINDS

HIGHEST = 1_000_000
"""Upper bounds above this only keep numbers representable and are not shown."""
NAMES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    ByteSize: "bytes (200GB)",
    dict: "mapping",
    Mapping: "mapping",
    type(None): "null",
}
_TASKS = {row.settings for row in KINDS.values() if row.settings.is_task}


class Key(NamedTuple):
    name: str
    type: str
    default: str
    """As YAML; empty if the key is required."""
    sentence: str


class Section(NamedTuple):
    path: str
    """Dotted, "" for the root of a recipe."""
    kind: str
    """The value of `kind` in sections that have several forms, else empty."""
    sentence: str
    keys: list[Key]

    @property
    def title(self) -> str:
        return (self.path or "(root)") + (f", kind: {self.kind}" if self.kind else "")


@cache
def all_sections() -> list[Section]:
    """The sections of a recipe, an outer one before those in it."""
    return list({section.title: section for section in _sections(Recipe, "")}.values())


def model_section(name: str) -> Section:
    """The keys of `train.model` for a type of model, from its configuration's signature and docstring."""
    from transformers import PretrainedConfig

    from reread.training.models import model_spec

    spec = model_spec(name)
    config = spec.config
    text = inspect.cleandoc(config.__doc__ or "")
    documented = re.findall(r"^(\w[\w, ]*): (.*(?:\n +.*)*)", text, re.MULTILINE)
    sentences = {key: " ".join(sentence.split()) for keys, sentence in documented for key in keys.split(", ")}
    keys = [
        Key(one.name, _name_of(one.annotation), json.dumps(one.default, default=str), sentences.get(one.name, ""))
        for one in inspect.signature(config).parameters.values()
        if one.kind != one.VAR_KEYWORD and one.name not in inspect.signature(PretrainedConfig).parameters
    ]
    keys += [
        Key(name, _name_of(one.type), json.dumps(one.default), " ".join(one.sentence.split()))
        for name, one in spec.own_keys.items()
    ]
    return Section("train.model", "", f"Configuration of model.type={name}.", keys)


def _sections(model: type[BaseModel], path: str) -> Iterator[Section]:
    kind = _kind_of(model)
    keys = [key_of(model, name, field) for name, field in model.model_fields.items()]
    yield Section(path, kind, first_sentence(model), keys)
    for name, field in model.model_fields.items():
        for inner in sections_in(field.annotation):
            yield from _sections(inner, TASK if inner in _TASKS else f"{path}.{name}" if path else name)


def _kind_of(model: type[BaseModel]) -> str:
    return next(iter(get_args(model.model_fields["kind"].annotation)), "") if "kind" in model.model_fields else ""


def key_of(model: type[BaseModel], name: str, field: FieldInfo) -> Key:
    """The row of a field in the table of its section."""
    inner = list(sections_in(field.annotation))
    sentence = _sentences(model).get(name, "")
    if not sentence and name == "kind":
        sentence = "Which kind of data it is."
    if not sentence and inner:
        sentence = first_sentence(inner[0]) if len(inner) == 1 else f"One of the kinds {', '.join(KINDS)}."
    default = "" if field.is_required() else "null" if field.default is None else _as_yaml(field)
    return Key(name, _type_of(model, name, field), default, sentence)


def _as_yaml(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "{}"
    return json.dumps(default, ensure_ascii=False, default=str)


def _type_of(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    bounds = {type(one).__name__.lower(): one for one in field.metadata}
    if model in _TASKS and name == "format":
        return f"{_either([one for one, form in FORMATS.items() if _kind_of(model) in form.tasks])}, or null"
    words = [_name_of(field.annotation).removesuffix(" or null")]
    for bound, word in (("ge", "from"), ("gt", "above"), ("le", "to"), ("lt", "below")):
        if bound in bounds and (limit := getattr(bounds[bound], bound)) <= HIGHEST:
            words.append(f"{word} {limit:,.10g}")
    others = [
        *(["auto"] if model is TrainSettings and name in (*AUTOMATIC, "threads") else []),
        *(["null"] if type(None) in get_args(field.annotation) else []),
    ]
    return ", or ".join([" ".join(words), *others])


def _name_of(annotation: Any) -> str:
    """An annotation in words: `list of text`, `lamb or adam`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Literal, Union, types.UnionType):
        return _either(list(dict.fromkeys(str(one) if origin is Literal else _name_of(one) for one in inner)))
    if origin is tuple and Ellipsis not in inner:
        return f"{len(inner)} numbers"
    if origin in (list, tuple, Sequence):
        return f"list of {_name_of(inner[0]).replace('section', 'sections').replace('number', 'numbers')}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if isinstance(annotation, str):  # transformers' own classes
        return annotation
    return _name_of(inner[0]) if origin is Annotated else NAMES[origin or annotation]


def _either(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " or " * (len(names) > 1) + names[-1]


@cache
def _sentences(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it in the source, where a class has none that of its base.

    pydantic would read it at every start of the program (`use_attribute_docstrings`), which takes too long.
    """
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            assert isinstance(definition, ast.ClassDef)
            found.update(_attribute_docstrings(definition.body))
    return found


def _attribute_docstrings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def first_sentence(model: type[BaseModel]) -> str:
    """What a section is, from the docstring of its class."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())
