"""The files that a recipe is made of (its own, its `base`s, its scales), and whose values replace whose."""

import logging
import os
from collections.abc import Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.values import read_values
from reread.preprocessing.errors import UserError, close_to, nearest
from reread.training.config import IN_TOKENS
from reread.training.data.kinds import KINDS
from reread.training.run.files import RunFile, find_run

log = logging.getLogger("reread")


BUILT_IN = Path(__file__).parents[1] / "recipes"
FINETUNING = BUILT_IN / "finetune"
"""The recipes of `reread finetune`."""
SUITES = BUILT_IN / "suite"
"""The recipes that score a model on the tasks of a benchmark (`reread run`)."""
PACKAGE = BUILT_IN.parents[1]
SAMPLES = BUILT_IN.parent / "sample"
TASK = "task"
"""Another name for the section `train.data`, in recipes of `reread finetune`."""
SCALES, SCALE = "scales", "scale"
"""A recipe's `scales` maps names to values; with the override `scale=NAME` these replace the recipe's own."""


def split_scale(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The last `scale=NAME` among overrides, and the others."""
    begin = f"{SCALE}="
    named = [one.removeprefix(begin) for one in overrides if one.startswith(begin)]
    return named[-1] if named else None, [one for one in overrides if not one.startswith(begin)]


def fine_tunes(values: dict[str, Any]) -> bool:
    """Whether the values are those of a recipe whose data is a task."""
    kind = data_kind(values)
    return kind is not None and is_task(kind)


def data_kind(values: dict[str, Any]) -> str | None:
    """The kind of data that the values name, if it is one of `KINDS`."""
    train = values.get("train")
    data = train.get("data") if isinstance(train, dict) else None
    kind = str(data.get("kind")) if isinstance(data, dict) else ""
    return kind if kind in KINDS else None


def is_task(kind: str) -> bool:
    return KINDS[kind].settings.is_task


def available_recipes() -> list[str]:
    """The built-in recipes that pretrain."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def finetuning_recipes() -> list[str]:
    """The built-in recipes of `reread finetune`."""
    return sorted(path.stem for path in FINETUNING.glob("*.yaml"))


def suite_recipes() -> list[str]:
    """The built-in suites."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def recipe_layers(recipe: str, scale: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """(file, values) of each layer of a recipe: its `base`s, itself, and the scale. Later ones replace values.

    Raises `UserError` for a scale that the recipe does not have.
    """
    files = _files_of(recipe)
    scales: dict[str, Any] = reduce(merge, (values.pop(SCALES, {}) for _, values in files))
    layers = [(path.name, values) for path, values in files]
    if scale is None:
        return layers
    if scale not in scales:
        hint = nearest(scale, scales, "its scales") if scales else "the recipe has no `scales`"
        raise UserError(f"recipe {recipe}: {SCALE}={scale}: {hint}")
    return [*layers, (f"{SCALE}={scale}", scales[scale])]


def scales_of(recipe: str) -> dict[str, Any]:
    """The `scales` of a recipe and its bases."""
    return reduce(merge, (values.get(SCALES, {}) for _, values in _files_of(recipe)))


def _files_of(recipe: str, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """(file, values) of the bases of a recipe, then of itself; `above` are the files that name it as their base."""
    path = _file_of(recipe)
    if path.resolve() in above:
        raise UserError(f"{above[0]}: its `base` leads back to {path}; a recipe cannot be its own base")
    try:
        values = values_of(path)
    except FileNotFoundError:
        raise _not_there(recipe) from None
    scales = values.get(SCALES, {})
    if not isinstance(scales, dict) or not all(isinstance(one, dict) for one in scales.values()):
        raise UserError(f"{path}: {SCALES}: a mapping of names to sections, for example tiny: {{train: {{steps: 10}}}}")
    for one in (values, *scales.values()):
        _resolve(one, path)
    base = values.pop("base") if "base" in values else _neutral(path, values)
    below = [] if base is None else _files_of(_beside(path, base), (*above, path.resolve()))
    return [*below, (path, values)]


def _neutral(path: Path, values: dict[str, Any]) -> str | None:
    """The base of a user's recipe of a task that has no `base`: the built-in recipe of that kind of task.

    With `base: null` a recipe has no base.
    """
    kind = data_kind(values)
    if kind is None or not is_task(kind) or path.parent == FINETUNING or "tokenizer" in values["train"]["data"]:
        return None
    _say_neutral(path, kind)
    return kind


@lru_cache
def _say_neutral(path: Path, kind: str) -> None:
    log.info("%s: has no `base`, so values that it does not set are those of the recipe `%s`", path, kind)


def _file_of(recipe: str) -> Path:
    """The file of a recipe, given by its path, its name, or the folder or name of a run. The file may not exist."""
    if recipe.endswith((".yaml", ".yml")):
        return Path(recipe)
    built_in, of_run = _built_in(recipe), RunFile.RECIPE.of(find_run(Path(recipe)))
    return of_run if os.path.exists(of_run) and not os.path.exists(built_in) else built_in


def _not_there(recipe: str) -> UserError:
    """The error for a recipe that does not exist. It names similar files beside it and, if it is no path, built-in
    recipes."""
    if "=" in recipe:
        return UserError(f"`{recipe}`: a recipe comes first, and then what to change in it: RECIPE {recipe}")
    path = Path(recipe)
    is_path = path.suffix in (".yaml", ".yml") or "/" in recipe
    known = {one.stem: str(one) for one in path.parent.glob("*.y*ml")}
    if not is_path:
        known |= {name: name for name in [*available_recipes(), *suite_recipes(), *finetuning_recipes()]}
    near = " or ".join(f"`{known[name]}`" for name in close_to(path.stem, known)[:3])
    what = "no such file" if is_path else "no built-in recipe; `reread recipes` lists them, and files end in .yaml"
    return UserError(f"recipe {recipe}: {what}{near and f'; did you mean {near}?'}")


def _resolve(values: dict[str, Any], path: Path) -> None:
    """Expand abbreviations in the values of the file at `path`: paths relative to it, samples, the section `task`."""
    if path.parent in (BUILT_IN, SUITES):
        _find_samples(values)
    start = values.get("start")
    if isinstance(start, dict) and start.get("recipe") is not None:
        values["start"] = {**start, "recipe": _beside(path, start["recipe"])}
    if isinstance(values.get("then"), list):
        values["then"] = [
            {**one, "recipe": _beside(path, one["recipe"])} if isinstance(one, dict) and "recipe" in one else one
            for one in values["then"]
        ]
    if TASK in values:
        train = values.get("train") or {}
        if not isinstance(train, dict):
            raise UserError(f"{path}: train: not a section with keys")
        values["train"] = {**train, "data": values.pop(TASK)}


def _built_in(name: str) -> Path:
    """The file of a built-in recipe, which may not exist."""
    folder = FINETUNING if name in finetuning_recipes() else SUITES if name in suite_recipes() else BUILT_IN
    return folder / f"{name}.yaml"


def values_of(path: Path) -> dict[str, Any]:
    try:
        values = read_values(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of sections (name, preprocess, train)")
    return values


def _find_samples(values: dict[str, Any]) -> None:
    """If the inputs of a built-in recipe are not in the working folder, take those of the installed package."""
    given = values.get("preprocess", {}).get("input", {})
    for key in ("paths", "validation_paths"):
        if key in given:
            given[key] = [path if os.path.exists(path) else _shipped(path) for path in given[key]]
    if "tasks" in values and not os.path.exists(values["tasks"]):
        values["tasks"] = _shipped(values["tasks"])


def _shipped(path: str) -> str:
    inside = PACKAGE / path
    return str(inside) if inside.exists() else path


def _beside(path: Path, recipe: Any) -> str:
    """A recipe named in the file at `path`: a path is relative to that file."""
    return str(path.parent / recipe) if str(recipe).endswith((".yaml", ".yml")) else str(recipe)


def merge(base: dict[str, Any], values: dict[str, Any], section: str = "") -> dict[str, Any]:
    """`base` overlaid with `values`; data of another `kind` and a model of another `type` are replaced as a whole."""
    kind = base.get("kind", "rows")  # the default of `data`
    if section == "data" and values.get("kind", kind) != kind:
        return values
    if section == "model" and values.get("type", base.get("type")) != base.get("type"):
        return values
    replaced = {in_other_unit(section, key) for key, value in values.items() if value is not None}
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value, key) if both else value
    return merged


def in_other_unit(section: str, name: str) -> str | None:
    """The field that says in tokens what the field `name` of a section says in rows or steps, or the other way round; a
    later one of the two replaces an earlier other one."""
    fields = {tokens: becomes for (owner, tokens), becomes in IN_TOKENS.items() if owner == section}
    return {**fields, **{becomes: tokens for tokens, becomes in fields.items()}}.get(name)
