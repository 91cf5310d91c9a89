"""`reread ablate`: train a recipe once for each of its ablations and print one table of their figures."""

import json
import math
import re
import sys

from rich.console import Console
from rich.table import Table

from pipeline.commands import check_model, check_train, evaluate, make_start, preprocess, train
from pipeline.recipe import Ablation, available_recipes, load_recipe
from pipeline.run_folder import RUNS, has_checkpoints
from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from training.parallel.place import place


def ablate(name: str, overrides: list[str]) -> None:
    """Preprocess once, train each row in runs/<recipe>-<row>, evaluate it on all held-out text and print the table.

    Rows that are trained already are not trained again. The figures are kept in runs/<recipe>-ablation.json.
    Raises `UserError` if the recipe has no ablations, and below torchrun or srun: each row starts its own processes.
    """
    if place().launcher:
        raise UserError("reread ablate: start it by itself, not by torchrun or srun; set parallel.processes instead")
    recipe = load_recipe(name, overrides, "train")
    if not recipe.ablations:
        others = [other for other in available_recipes() if load_recipe(other, []).ablations]
        raise UserError(f"recipe {name}: has no `ablations`; {', '.join(others)} have")
    if len({_slug(row.name) for row in recipe.ablations}) < len(recipe.ablations):
        raise UserError(f"recipe {name}: two `ablations` have names that give the same run folder; rename one")
    changes = [[*overrides, *row.overrides, f"name={recipe.name}-{_slug(row.name)}"] for row in recipe.ablations]
    trained = [load_recipe(name, changed, "train") for changed in changes]  # refused before hours of work
    check_train(recipe)
    for one in trained:
        check_model(one)
    if recipe.preprocess is not None:
        preprocess(recipe)
    if not all(has_checkpoints(RUNS / one.name) for one in trained):
        make_start(recipe)
    measured = {}
    for row, changed, one in zip(recipe.ablations, changes, trained, strict=True):
        print(f"{row.name}: {' '.join(row.overrides) or 'as the recipe says'}", file=sys.stderr)
        train(one, ["train", name, *changed])
        figures = evaluate(RUNS / one.name, [], None)
        measured[row.name] = {figure: value for figure, value in figures.items() if math.isfinite(value)}
    path = RUNS / f"{recipe.name}-ablation.json"
    write_atomically(path, json.dumps(measured, ensure_ascii=False, indent=1).encode())
    Console().print(table(recipe.ablations, measured))


def table(rows: list[Ablation], measured: dict[str, dict[str, float]]) -> Table:
    """One line for each row: the paper's figures, then the losses and accuracies measured here."""
    from training.metrics import quality  # which imports torch

    published = list(dict.fromkeys(figure for row in rows for figure in row.published))
    found = dict.fromkeys(name for figures in measured.values() for name in figures)
    ours = quality(found)
    result = Table(title="paper (its own tasks and size) | ours (held-out text)")
    for column in ("", *(f"paper: {figure}" for figure in published), *(name.replace("_", " ") for name in ours)):
        result.add_column(column)
    for row in rows:
        theirs = [f"{row.published[figure]:g}" if figure in row.published else "-" for figure in published]
        figures = measured[row.name]
        result.add_row(row.name, *theirs, *(f"{figures[name]:.4f}" if name in figures else "-" for name in ours))
    return result


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
