"""`reread show`: prints a recipe with all its values and the source of each, or writes it to a file to be edited."""

import importlib.util
import logging
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reread.pipeline.recipe.layers import SCALES, TASK, fine_tunes, recipe_layers, scales_of, split_scale
from reread.pipeline.recipe.load import apply_overrides, parsed, recipe_values
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.sections import first_sentence, key_of, model_section
from reread.pipeline.recipe.task import FOLLOWS, finetune_recipe
from reread.pipeline.recipe.values import as_yaml
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.settings import sections_in
from reread.training.config import TrainSettings, given_in_tokens
from reread.training.data.kinds import KINDS

log = logging.getLogger("reread")

WIDEST = 56
"""Column at which comments begin, unless the line is longer."""
WIDTH = 120
"""Columns of a written file."""
HEADER = """\
# The recipe {}, whole, with a sentence above each field.
# A field that is not set is written `#key: value`, without a blank.

# The recipe whose values hold where this one sets none; null: there is none.
base: null"""


def show(name: str, overrides: list[str]) -> None:
    """Print the recipe as YAML, which is again a recipe, with a comment behind each value that says where it comes
    from.

    A recipe that fine-tunes is complete only with the model and the examples; without them no defaults are shown.
    Raises `UserError` for a wrong key or value.
    """
    values = recipe_values(name, overrides, "train")
    chosen, computed = values, values
    if _is_whole(values):
        chosen = parsed(values, f"recipe {name}").model_dump(mode="json")
    elif values["train"].get("init") is None or values["train"]["data"].get("train") is None:
        log.info("more follows from the model and the examples: init=FOLDER task.train=FILE task.dev=FILE")
    else:
        recipe = finetune_recipe(name, overrides)
        chosen, computed = recipe.model_dump(mode="json"), recipe.model_dump(mode="json", exclude_unset=True)
    scale, others = split_scale(overrides)
    layers = recipe_layers(name, scale)
    for override in others:
        given: dict[str, Any] = {}
        apply_overrides(given, [override], "train")
        layers.append(("command line", given))

    of_tokens = {
        ("train", *path[:-1], name): f"of {'.'.join(path)}={tokens}"
        for path, becomes, tokens in given_in_tokens(values.get("train") or {})
        for name in (path[-1], becomes)
    }

    def origin(path: tuple[str, ...]) -> str:
        if path in of_tokens:
            return of_tokens[path]
        if values.get("phases") and path == ("train", "steps"):
            return "of phases"
        if not _holds(values, path):
            return "from init and examples" if _holds(computed, path) else "default"
        return next((label for label, given in reversed(layers) if _holds(given, path)), "default")

    lines = [(line, "" if path is None else f"# {origin(path)}") for line, path in _lines(chosen)]
    width = min(WIDEST, max(len(line) for line, _ in lines))
    for line, comment in lines:
        print(f"{line:<{width}}  {comment}".rstrip())


def write(name: str, overrides: list[str], path: Path) -> None:
    """Write the recipe to a file that is the same recipe, whole, with a sentence above each field.

    In a recipe that fine-tunes, what it leaves to the model and the examples stays unset. Raises `UserError` for a
    wrong key or value, and for a file that exists.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"{path}: the name of a recipe's file ends in .yaml")
    if os.path.lexists(path):
        raise UserError(f"{path}: exists and is not overwritten; give another name, or remove it")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: is not there, so no file can be written in it; make it first")
    values, scales = recipe_values(name, overrides, "train"), scales_of(name)
    Recipe.check_keys(values, f"recipe {name}")
    if _is_whole(values):
        values = parsed(values, f"recipe {name}").model_dump(mode="json")
    else:
        values[TASK] = values["train"].pop("data")
    for one in (values, *scales.values()):
        _name_from(path.parent, one)
    lines = [HEADER.format(name), *_fields(Recipe, values, ())]
    if scales:
        lines += ["", "# Values by name; the override scale=NAME puts them over those above.", _yaml(SCALES, scales, 0)]
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    log.info("%s: the recipe %s, to be edited", path, name)


def _is_whole(values: dict[str, Any]) -> bool:
    """Whether the values are a recipe without a model and examples; those of a fine-tuning's run are."""
    return not fine_tunes(values) or bool(values["train"]["data"].get("tokenizer"))


def _name_from(folder: Path, values: dict[str, Any]) -> None:
    """Name the files of other recipes in `values`, whose paths are relative, as they are found from `folder`."""
    for one in (*(values.get("then") or ()), values.get("start")):
        other = str(one.get("recipe")) if isinstance(one, dict) else ""
        if other.endswith((".yaml", ".yml")) and not os.path.isabs(other):
            one["recipe"] = os.path.relpath(other, folder)


def _fields(section: type[BaseModel], values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a section that has `values`."""
    for name, field in section.model_fields.items():
        where = (*path, name)
        if where == ("train",) and TASK in values:
            yield from _field(TrainSettings, "data", (TASK,), values)
        if where == ("train", "model") and name in values:
            yield from _comment(key_of(section, name, field).sentence, len(path))
            yield from _model(values[name])
        elif where != ("train", "data") or name in values:  # else it is `task`
            yield from _field(section, name, where, values)


def _field(section: type[BaseModel], name: str, where: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """The sentence and the value of a field of `section`, which stands at `where` among nested `values`."""
    field, last, depth = section.model_fields[name], where[-1], len(where) - 1
    key, value, pad = key_of(section, name, field), values.get(last), "  " * depth
    inner = _inner(field, value)
    yield from [] if depth else [""]
    yield from _comment(first_sentence(inner) if inner and "kind" in inner.model_fields else key.sentence, depth)
    if inner and isinstance(value, dict) and value:
        yield f"{pad}{last}:"
        yield from _fields(inner, value, where)
    elif last in values:
        yield _yaml(last, value, depth)
    elif ".".join(where).replace(f"{TASK}.", "data.").removeprefix("train.") in FOLLOWS:
        yield f"{pad}#{last}: # follows from the model and the examples"
    elif inner and key.default == "{}":
        yield f"{pad}#{last}:"
        yield from _fields(inner, {}, where)
    else:
        yield f"{pad}#{last}: {key.default or '# required'}"


def _inner(field: FieldInfo, value: Any) -> type[BaseModel] | None:
    """The section that the value of a field is; None for a value, and for a list of sections."""
    if get_origin(field.annotation) in (list, tuple):
        return None
    sections = list(dict.fromkeys(sections_in(field.annotation)))
    if len(sections) > 1:
        return KINDS[value["kind"] if isinstance(value, dict) else "rows"].settings
    return sections[0] if sections else None


def _model(values: Mapping[str, Any]) -> Iterator[str]:
    """The lines of `train.model`: the keys of the type's configuration, those that `values` lack with their default."""
    yield "  model:"
    known = []
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        known = model_section(values["type"]).keys if "type" in values else []
    else:
        log.info("train.model: only the keys that are set are written: torch or transformers is not installed here")
    names = {key.name for key in known}
    yield from (_yaml(name, value, 2) for name, value in values.items() if name not in names)
    for key in known:
        yield from _comment(key.sentence, 2)
        yield _yaml(key.name, values[key.name], 2) if key.name in values else f"    #{key.name}: {key.default}"


def _comment(sentence: str, depth: int) -> list[str]:
    begin = f"{'  ' * depth}# "
    return textwrap.wrap(
        sentence, WIDTH, initial_indent=begin, subsequent_indent=begin, break_long_words=False, break_on_hyphens=False
    )


def _yaml(name: str, value: Any, depth: int) -> str:
    text = yaml.safe_dump({name: value}, allow_unicode=True, sort_keys=False, width=1 << 30)
    return textwrap.indent(text.rstrip("\n"), "  " * depth)


def _lines(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Lines of YAML, and the path of the value on each; None for the name of a section."""
    for key, value in values.items():
        begin = f"{'  ' * len(path)}{as_yaml(key)}:"
        if isinstance(value, dict) and value:
            yield begin, None
            yield from _lines(value, (*path, key))
        else:
            text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 30)
            yield f"{begin} {text.removesuffix('...' + chr(10)).strip()}", (*path, key)


def _holds(values: Any, path: tuple[str, ...]) -> bool:
    """Whether a value at `path`, or one that replaces a whole section above it, is among nested `values`."""
    for key in path:
        if not isinstance(values, dict):
            return True
        if key not in values:
            return False
        values = values[key]
    return True
