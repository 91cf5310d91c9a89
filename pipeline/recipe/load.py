"""Reading a recipe, changing it by `key=value`, checking it, and writing it to a run."""

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from reread.pipeline.recipe.layers import (
    SCALE,
    TASK,
    data_kind,
    fine_tunes,
    in_other_unit,
    is_task,
    merge,
    recipe_layers,
    split_scale,
    values_of,
)
from reread.pipeline.recipe.phases import phase_at, say_counts, value_at, with_phases
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.values import as_yaml, read_override
from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.settings import Settings
from reread.training.config import TrainSettings
from reread.training.exchange.hub import hub_name
from reread.training.run.files import RUNS, RunFile, checkpoint_steps, read_mapping

log = logging.getLogger("reread")


def load_recipe(
    recipe: str, overrides: list[str], section: str | None = None, beneath: dict[str, Any] | None = None
) -> Recipe:
    """Read a recipe by its built-in name or its path, apply `key=value` overrides and check it.

    A key is dotted from the root (`train.steps=100`); the keys of `section` may leave its name out (`steps=100`).
    `scale=NAME` applies values of the recipe's `scales` before the other overrides, and also in the recipes of `then`.
    Values in `beneath` hold where the recipe sets none.
    Raises `UserError` naming the recipe and each wrong key with the nearest right one, and for a recipe that only
    `reread finetune` can complete.
    """
    values = recipe_values(recipe, overrides, section, beneath)
    if fine_tunes(values) and values["train"]["data"].get("tokenizer") is None:  # that of the model to fine-tune
        raise UserError(
            f"recipe {recipe}: fine-tunes a model; start it by "
            f"`reread finetune {recipe} init=FOLDER task.train=FILE task.dev=FILE`"
        )
    return parsed(values, f"recipe {recipe}")


def parsed(values: dict[str, Any], where: str) -> Recipe:
    """The checked recipe; logs the rows and steps that were given in tokens."""
    values = with_phases(values, where)
    recipe = Recipe.parse(values, where)
    if recipe.train:
        say_counts("train", values["train"], recipe.train)
    return recipe


def recipe_values(
    recipe: str, overrides: list[str], section: str | None = None, beneath: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The values of `load_recipe` before they are checked."""
    scale, others = split_scale(overrides)
    values = reduce(merge, (given for _, given in recipe_layers(recipe, scale)), beneath or {})
    apply_overrides(values, others, section)
    if scale is not None and isinstance(values.get("then"), list):
        values["then"] = [_at_scale(one, scale) for one in values["then"]]
    _start_from_hub(values)
    return values


def _start_from_hub(values: dict[str, Any]) -> None:
    """Replace `train.init: OWNER/NAME` by the folder for that model, and `start` by what makes this."""
    train, start = values.get("train"), values.get("start")
    if (
        not isinstance(train, dict)
        or not isinstance(init := train.get("init"), str)
        or (name := hub_name(init)) is None
    ):
        return
    given = start.get("convert") if isinstance(start, dict) else None
    options = {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else {}
    model = train.get("model")
    made_into = [model["type"]] if isinstance(model, dict) and "type" in model else []
    folder = name.folder(*made_into, *options.values())
    values["train"] = {**train, "init": str(folder)}
    values["start"] = {"weights": str(name), "convert": options}


def _at_scale(following: Any, scale: str) -> Any:
    """An entry of `then` whose recipe is read at the scale of this one."""
    if not isinstance(following, dict) or not isinstance(following.get("overrides", []), list):
        return following  # the settings refuse it
    return {**following, "overrides": [f"{SCALE}={scale}", *following.get("overrides", [])]}


def apply_overrides(values: dict[str, Any], overrides: list[str], section: str | None = None) -> None:
    """Set `a.b=value` in nested `values`; a value that is not YAML is text: `input.paths=*.txt`.

    A key that does not begin with a field of a recipe belongs to `section`. If `section` lacks it and the other of
    `preprocess` and `train` has it, it belongs there.
    """
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f"`{override}`: an override is written key=value, for example train.steps=100")
        path = key.split(".")
        if path[0] == TASK:
            if path[1:] != ["kind"] and (kind := data_kind(values)) and not is_task(kind):
                raise UserError(f"`{override}`: only fine-tuning has a task, and this pretrains (data.kind: {kind})")
            path = ["train", "data", *path[1:]]
        elif section and path[0] not in Recipe.model_fields:
            path = [_section_of(path[0], section), *path]
        value = read_override(text, f"`{override}`")
        phases = values.get("phases")
        if isinstance(phases, list) and phases:
            if path[0] == "phases" and len(path) > 2:
                _assign(_phase(phases, path[1], override), path[2:], value, override, "train")
                continue
            _refuse_of_phases(phases, path, override)
        _assign(values, path, value, override)


def _phase(phases: list[Any], number: str, override: str) -> dict[str, Any]:
    """The phase of this number, counted from 1."""
    if not number.isdecimal() or not 1 <= int(number) <= len(phases) or not isinstance(phases[int(number) - 1], dict):
        raise UserError(f"`{override}`: the recipe has the phases 1 to {len(phases)}; write phases.1.KEY=VALUE")
    return phases[int(number) - 1]  # type: ignore[no-any-return]


def _refuse_of_phases(phases: list[Any], path: list[str], override: str) -> None:
    """Raises `UserError` for a setting of `train` that a phase sets, too: the override would change nothing there."""
    if path[0] != "train" or path in (["train", "steps"], ["train", "tokens"]):
        return
    other = in_other_unit(*path[-2:]) if len(path) > 1 else None
    same = [path[1:]] if other is None else [path[1:], [*path[1:-1], other]]
    for number, phase in enumerate(phases, 1):
        if any(value_at(phase, one) is not None for one in same):
            raise UserError(
                f"`{override}`: phase {number} sets it, too; write phases.{number}.{'.'.join(path[1:])}=..."
            )


def _section_of(key: str, section: str) -> str:
    """The section of a key that names none: `preprocess` or `train` if only one of them has the key, else `section`."""
    sections: dict[str, type[Settings]] = {"preprocess": PreprocessSettings, "train": TrainSettings}
    having = [name for name, settings in sections.items() if key in settings.model_fields]
    return having[0] if len(having) == 1 and section in sections else section


def override(key: str, path: Path | str) -> str:
    """`key=path` for `apply_overrides`, quoted where YAML needs it."""
    return f"{key}={as_yaml(str(path))}"


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe: with this file alone the run can be started again."""
    values = recipe.model_dump(mode="json")
    write_atomically(path, yaml.safe_dump(values, allow_unicode=True, sort_keys=False).encode())


def written_recipe(path: Path) -> Recipe:
    """A recipe that `write_recipe` wrote. Raises `UserError` for anything else."""
    return Recipe.parse(values_of(path), str(path))


def _assign(values: dict[str, Any], path: list[str], value: Any, override: str, root: str = "") -> None:
    """Set the value at `path` in nested `values`, which are the section `root`, in place of one in another unit."""
    section = path[-2] if len(path) > 1 else root
    for depth, part in enumerate(path[:-1], 1):
        values = values.setdefault(part, {})
        if isinstance(values, list):
            key, _, inner = override.partition("=")
            for name in reversed(path[depth:]):
                key, inner = key.removesuffix(f".{name}"), f"{{{name}: {inner}}}"
            raise UserError(
                f"`{override}`: `{part}` is a list of sections here, and none of them is named; replace all of it by "
                f"{key}='[{inner}]', or change the recipe's file"
            )
        if not isinstance(values, dict):
            raise UserError(f"`{override}`: `{part}` holds a value, not a section")
    if value is not None and (other := in_other_unit(section, path[-1])):
        values.pop(other, None)
    values[path[-1]] = value


def recipe_of(run: Path, overrides: Sequence[str] = (), step: int | None = None) -> Recipe:
    """The recipe that a run was last started with, with overrides; a task is read with the run's own tokenizer
    and with what was chosen for it on dev.

    Of a run with phases it is that of the phase that made the checkpoint of `step`, by default the last one."""
    path, named = RunFile.RECIPE.of(run), RUNS / run
    if not path.exists():
        way_out = f"give {named}, the run" if RunFile.RECIPE.of(named).exists() else "is it a run of `reread train`?"
        raise UserError(f"{path}: not there; {way_out}")
    recipe = written_recipe(path)
    values = recipe.model_dump(mode="json")
    if recipe.phases:
        last = max(checkpoint_steps(run), default=0)
        values |= {"train": phase_at(recipe, last if step is None else step).model_dump(mode="json"), "phases": []}
    if fine_tunes(values):
        values["train"]["data"] |= {**read_mapping(RunFile.CHOSEN.of(run)), "tokenizer": str(RunFile.MODEL.of(run))}
    override_learned(values, overrides)
    return Recipe.parse(values, str(path))


def override_learned(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """`apply_overrides` to the recipe of a model that has learned. Raises `UserError` if its labels, or what stands
    around its texts, would change."""
    learned = dict(_task_of(values))
    apply_overrides(values, list(overrides), "train")
    task = _task_of(values)
    drop_chosen(task, learned)
    for name in ("labels", "frame"):
        value = learned.get(name)
        if value not in (None, []) and fine_tunes(values) and task.get(name) != value:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else repr(value)
            raise UserError(f"task.{name}: the model has learned {shown}; leave this setting out")


def drop_chosen(task: dict[str, Any], learned: Mapping[str, Any]) -> None:
    """Leave the thresholds that were chosen out of the settings `task` if their `threshold` is another than that of
    `learned`, which it takes the place of."""
    chosen = learned.get("thresholds")
    if chosen and task.get("threshold") != learned.get("threshold") and task.get("thresholds") == chosen:
        task["thresholds"] = []


def _task_of(values: Any) -> dict[str, Any]:
    """`train.data`; empty if there is none."""
    for key in ("train", "data"):
        values = values.get(key) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}
