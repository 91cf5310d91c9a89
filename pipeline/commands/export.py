"""`reread export`: a checkpoint to a Hugging Face folder, and to the Hugging Face Hub."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError, writing
from reread.training.exchange.hub import check_push, hub_name, push
from reread.training.run.files import RunFile

log = logging.getLogger("reread")


def export(run: Path, output: Path | None, step: int | None = None, overrides: Sequence[str] = ()) -> Path:
    """Write the Hugging Face folder of a run's checkpoint, by default RUN/export, and return it."""
    recipe = recipe_of(run, overrides)  # before torch and transformers are imported, which takes seconds
    from reread.training.exchange.run_export import export_run

    folder = output or RunFile.EXPORT.of(run)
    with writing(folder):
        export_run(run, folder, train_section(recipe), recipe.examples, step, _known(recipe))
    log.info("exported to %s", folder)
    return folder


def _known(recipe: Recipe) -> dict[str, Any]:
    """What the recipe knows for the card's front matter."""
    given = recipe.card.model_dump()
    weights = recipe.start.weights if recipe.start else None
    began = hub_name(weights) if weights is not None else None
    return {**given, "base_model": given["base_model"] or (began.repository if began else "")}


def export_and_push(run: Path, given: Sequence[str], step: int | None, name: str | None) -> None:
    """`export`, where `given` may be the folder to write and settings of the card; with `name` push it to the Hub.

    Raises `UserError` for other settings, and before any work for a name to which nothing can be pushed.
    """
    overrides = [one for one in given if "=" in one]
    outputs = [one for one in given if "=" not in one]
    if len(outputs) > 1:
        raise UserError(f"export: {' and '.join(outputs)} are given; one folder is written")
    if wrong := next((one for one in overrides if not one.startswith("card.")), None):
        raise UserError(f"`{wrong}`: a checkpoint is exported as it was trained; only card.KEY=VALUE can be given")
    target = check_push(name) if name is not None else None
    folder = export(run, Path(outputs[0]) if outputs else None, step, overrides)
    if target is not None:
        push(folder, target)
