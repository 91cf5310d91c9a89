"""`reread show`: prints a recipe with all its values and the source of each."""

import logging
from collections.abc import Iterator
from typing import Any

import yaml

from reread.pipeline.recipe.layers import BATCH, fine_tunes, recipe_layers, split_scale
from reread.pipeline.recipe.load import apply_overrides, recipe_values
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.recipe.values import as_yaml

log = logging.getLogger("reread")

WIDEST = 56
"""Column at which comments begin, unless the line is longer."""


def show(name: str, overrides: list[str]) -> None:
    """Print the recipe as YAML, which is again a recipe, with a comment behind each value that says where it comes
    from.

    A recipe that fine-tunes is complete only with the model and the examples; without them no defaults are shown.
    Raises `UserError` for a wrong key or value.
    """
    values = recipe_values(name, overrides, "train")
    chosen, computed = values, values
    if not fine_tunes(values) or values["train"]["data"].get("tokenizer"):  # which the recipe of a run has
        chosen = Recipe.parse(values, f"recipe {name}").model_dump(mode="json")
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

    tokens = (values.get("train") or {}).get("batch_tokens")

    def origin(path: tuple[str, ...]) -> str:
        if tokens is not None and path[0] == "train" and path[1] in BATCH:
            return f"of batch_tokens={tokens}"
        if not _holds(values, path):
            return "from init and examples" if _holds(computed, path) else "default"
        return next((label for label, given in reversed(layers) if _holds(given, path)), "default")

    lines = [(line, "" if path is None else f"# {origin(path)}") for line, path in _lines(chosen)]
    width = min(WIDEST, max(len(line) for line, _ in lines))
    for line, comment in lines:
        print(f"{line:<{width}}  {comment}".rstrip())


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
