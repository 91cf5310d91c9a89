"""`reread ablate`: train or fine-tune a recipe for each of its ablations and print one table of their figures.

Like `reread run` it is a sequence of whole commands, so these two alone import other commands.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reread.pipeline.commands.evaluate import evaluate
from reread.pipeline.commands.preprocess import preprocess
from reread.pipeline.display.scores import means
from reread.pipeline.display.terminal import print_wide
from reread.pipeline.recipe.check import check_model, check_train
from reread.pipeline.recipe.layers import available_recipes, fine_tunes, finetuning_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.schema import Ablation, Recipe, train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.run_folder.finetuning import train_all
from reread.pipeline.run_folder.train import make_start, train
from reread.preprocessing.errors import UserError, escaped
from reread.preprocessing.files import write_atomically
from reread.training.data.kinds import check_held_out
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS, has_checkpoints


def ablate(name: str, overrides: list[str]) -> None:
    """Preprocess once, train each row in runs/<recipe>-<row>, evaluate it on all held-out text and print the table.

    The rows of a recipe of `reread finetune` are fine-tuned, or those of `rows_of`. Rows that are trained already are
    not trained again. The figures are kept in runs/<recipe>-ablation.json. Raises `UserError` if the recipe has no
    ablations or nothing is held out, and under torchrun or srun, because each row starts its own processes.
    """
    if this_process().launcher:
        raise UserError(
            "reread ablate: starts its own processes; run it without torchrun or srun, and set parallel.processes "
            "instead"
        )
    if fine_tunes(recipe_values(name, overrides, "train")):
        _ablate_finetuning(name, overrides)
        return
    recipe = load_recipe(name, overrides, "train")
    changes = _changes(recipe, name, overrides)
    trained = [
        load_recipe(name, changed, "train") for changed in changes
    ]  # before hours of work, so that mistakes are found now
    check_train(recipe)
    for one in trained:
        check_model(one)
    if recipe.preprocess is not None:
        preprocess(recipe)
    for settings in map(train_section, trained):
        check_held_out(settings.data, settings.seed)
    if not all(has_checkpoints(RUNS / one.name) for one in trained):
        make_start(recipe)
    measured = {}
    for row, changed, one in zip(recipe.ablations, changes, trained, strict=True):
        _announce(row)
        train(one, ["train", name, *changed])
        figures = with_perplexity(evaluate(RUNS / one.name, [], None))
        measured[row.name] = {figure: value for figure, value in figures.items() if math.isfinite(value)}
    _keep(recipe, measured)
    from reread.training.run.metrics import quality

    known = quality(dict.fromkeys(figure for figures in measured.values() for figure in figures))
    cells = {row: {one: f"{found[one]:.4f}" for one in known if one in found} for row, found in measured.items()}
    Console().print(table("paper (its own tasks and size) | ours (held-out text)", recipe.ablations, cells))


def with_perplexity(figures: dict[str, float]) -> dict[str, float]:
    """Figures, and the perplexity of masked tokens if they have a loss (ERNIE-Doc, Figure 4)."""
    if "masked_lm_loss" not in figures:
        return figures
    return {**figures, "masked_lm_perplexity": math.exp(min(figures["masked_lm_loss"], 700.0))}


def _ablate_finetuning(name: str, overrides: list[str]) -> None:
    """Fine-tune each row with `finetune.seeds` runs, from the model that its overrides name (init=FOLDER)."""
    values = recipe_values(name, overrides, "train")
    recipe = Recipe.parse({key: value for key, value in values.items() if key != "train"}, f"recipe {name}")
    if recipe.rows_of is not None:
        recipe = _started_from(recipe, recipe.rows_of)
    changes = _changes(recipe, name, overrides)
    tuned = []
    for row, changed in zip(recipe.ablations, changes, strict=True):
        try:
            tuned.append(finetune_recipe(name, changed))
            check_model(tuned[-1])
        except UserError as error:
            raise UserError(f"recipe {name}: row `{row.name}`: {error}") from None
    if any(train_section(one).best_by is None for one in tuned):
        raise UserError(f"recipe {name}: task.dev: the examples that rows are compared by; give task.dev=FILE")
    measured = {}
    for row, changed, one in zip(recipe.ablations, changes, tuned, strict=True):
        _announce(row)
        measured[row.name] = train_all(one, name, changed)["dev"]
    _keep(recipe, measured)
    cells = {row: means(seeds) for row, seeds in measured.items()}
    size = Path(train_section(tuned[0]).data.held_out).name
    print_wide(table(f"paper (its own size) | ours ({size})", recipe.ablations, cells))


def _started_from(recipe: Recipe, pretraining: str) -> Recipe:
    """A fine-tuning recipe with a row for each row of a pretraining recipe, and a name for these rows' runs."""
    made = load_recipe(pretraining, [])
    if not made.ablations:
        raise UserError(f"recipe {recipe.name}: rows_of: {pretraining} has no `ablations`; name a recipe that has")
    rows = [
        Ablation(name=row.name, overrides=[f"init={RUNS / f'{made.name}-{_slug(row.name)}'}"]) for row in made.ablations
    ]
    return recipe.model_copy(update={"ablations": rows, "name": f"{recipe.name}-{made.name}"})


def _changes(recipe: Recipe, name: str, overrides: list[str]) -> list[list[str]]:
    """The overrides of each row. Raises `UserError` if there are no rows, or if two have the same run folder."""
    if not recipe.ablations:
        known = [*available_recipes(), *finetuning_recipes()]
        others = [other for other in known if recipe_values(other, []).get("ablations")]
        raise UserError(f"recipe {name}: has no `ablations`; {', '.join(others)} have")
    if len({_slug(row.name) for row in recipe.ablations}) < len(recipe.ablations):
        raise UserError(f"recipe {name}: two `ablations` have names that give the same run folder; rename one")
    return [[*overrides, *row.overrides, f"name={recipe.name}-{_slug(row.name)}"] for row in recipe.ablations]


def _announce(row: Ablation) -> None:
    print(escaped(f"{row.name}: {' '.join(row.overrides) or 'as the recipe says'}"), file=sys.stderr)


def _keep(recipe: Recipe, measured: dict[str, Any]) -> None:
    path = RUNS / f"{recipe.name}-ablation.json"
    write_atomically(path, json.dumps(measured, ensure_ascii=False, indent=1).encode())


def table(title: str, rows: list[Ablation], ours: dict[str, dict[str, str]]) -> Table:
    """One line for each row: the paper's figures, then ours by row and name."""
    published = list(dict.fromkeys(figure for row in rows for figure in row.published))
    names = list(dict.fromkeys(name for figures in ours.values() for name in figures))
    result = Table(title=title)
    for column in ("", *(f"paper: {figure}" for figure in published), *(name.replace("_", " ") for name in names)):
        result.add_column(column)
    for row in rows:
        theirs = [f"{row.published[figure]:g}" if figure in row.published else "-" for figure in published]
        result.add_row(row.name, *theirs, *(ours[row.name].get(name, "-") for name in names))
    return result


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
