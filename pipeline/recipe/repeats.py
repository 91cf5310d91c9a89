"""The runs of one fine-tuning: of each fold, of each point of its grid, and of each seed."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import yaml

from reread.pipeline.recipe.schema import Finetuning, Recipe, train_section


class Part(NamedTuple):
    """A fold, a point of a grid, a seed, or the whole of a fine-tuning."""

    name: str
    """Name of its run, or the beginning of the names of its runs."""
    overrides: list[str]
    """Overrides of the fine-tuning's recipe."""


def of_recipe(recipe: Recipe) -> Finetuning:
    """The section `finetune` of a recipe that has one."""
    assert recipe.finetune is not None
    return recipe.finetune


def folds_of(recipe: Recipe, overrides: Sequence[str]) -> list[Part]:
    """A fine-tuning for each fold; itself if there are no folds, or if it is one."""
    finetuning = of_recipe(recipe)
    if finetuning.folds is None or finetuning.fold is not None:
        return [Part(recipe.name, list(overrides))]
    numbers = range(1, finetuning.folds + 1)
    names = {number: f"{recipe.name}-fold{number}" for number in numbers}
    return [Part(names[one], [*overrides, f"finetune.fold={one}", f"name={names[one]}"]) for one in numbers]


def points_of(recipe: Recipe, part: Part) -> list[Part]:
    """A fine-tuning for each point of the grid, which scores no test; `part` itself without a grid."""
    grid = of_recipe(recipe).grid
    if not grid:
        return [part]
    names = [f"{part.name}-point{number}" for number in range(1, len(list(points(grid))) + 1)]
    return [
        Part(name, [*part.overrides, *point, "finetune.grid={}", "task.test=null", f"name={name}"])
        for name, point in zip(names, points(grid), strict=True)
    ]


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[list[str]]:
    """The points of a grid, each as overrides; the last setting changes first."""
    for values in product(*grid.values()):
        yield [f"{key}={_as_override(value)}" for key, value in zip(grid, values, strict=True)]


def _as_override(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 30)
    return text.removesuffix("...\n").strip()  # the end of a document, behind a single value


def seeds_of(recipe: Recipe, part: Part, *, first_alone: bool = False) -> list[Part]:
    """The run of each seed of `part`; with `first_alone` that of the first seed."""
    seeds, first = of_recipe(recipe).seeds, train_section(recipe).seed
    names = [part.name] if seeds == 1 else [f"{part.name}-seed{first + number}" for number in range(seeds)]
    runs = [
        Part(name, [*part.overrides, f"train.seed={first + number}", f"name={name}", "finetune.seeds=1"])
        for number, name in enumerate(names)
    ]
    return runs[:1] if first_alone else runs


def first_runs(recipe: Recipe, overrides: Sequence[str]) -> list[Part]:
    """The runs that depend on no other run of the fine-tuning: all of them; of a grid those of each point's first
    seed."""
    return [
        run
        for fold in folds_of(recipe, overrides)
        for point in points_of(recipe, fold)
        for run in seeds_of(recipe, point, first_alone=bool(of_recipe(recipe).grid))
    ]
