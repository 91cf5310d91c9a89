"""Suites: recipes that score a given model on the tasks of their `then`, and train none themselves."""

from functools import reduce
from typing import Any

from reread.pipeline.recipe.layers import SCALE, merge, recipe_layers, split_scale
from reread.pipeline.recipe.load import parsed, recipe_values
from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.errors import UserError

_OWN = {"name", "description", "then", "tasks", "slurm", SCALE}
"""The first parts of the overrides that are a suite's own; others are of each of its tasks."""
_INIT = ("init", "train.init")


def suite_of(name: str, overrides: list[str]) -> Recipe | None:
    """The recipe of a suite, with overrides that are of its tasks in the entries of `then`; None for other recipes.

    A suite has `then` and no `train`. A scale may give it a `train`, by which a model is made where `init` names none.
    Raises `UserError` for a suite without a model.
    """
    scale, _ = split_scale(overrides)
    nothing: dict[str, Any] = {}
    plain = reduce(merge, (values for _, values in recipe_layers(name)), nothing)
    if "train" in plain or not plain.get("then"):
        return None
    if not any(one.partition("=")[0] in _INIT for one in overrides):
        if scale is not None and "train" in recipe_values(name, [f"{SCALE}={scale}"]):
            return None
        raise UserError(
            f"recipe {name}: scores a model that you have; give init=MODEL, a run, an export, a converted folder or "
            "OWNER/NAME of the Hub"
        )
    own = [one for one in overrides if one.partition("=")[0].split(".")[0] in _OWN]
    values = recipe_values(name, own)
    recipe = parsed(
        {key: value for key, value in values.items() if key not in ("train", "preprocess")}, f"recipe {name}"
    )
    shared = [one for one in overrides if one not in own]
    then = [one.model_copy(update={"overrides": [*one.overrides, *shared]}) for one in recipe.then]
    return recipe.model_copy(update={"then": then})
