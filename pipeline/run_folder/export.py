"""Exports a checkpoint of a run to a Hugging Face folder."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import writing
from reread.training.exchange.hub import hub_name
from reread.training.run.files import RunFile

log = logging.getLogger("reread")


def export(
    run: Path,
    output: Path | None,
    step: int | None = None,
    overrides: Sequence[str] = (),
    average: str | None = None,
    *,
    onnx: bool = False,
    int8: bool = False,
) -> Path:
    """Write the Hugging Face folder of a run's checkpoint, or the `average` of several, by default RUN/export, and
    return it; `onnx` and `int8` as in `export_run`."""
    recipe = recipe_of(run, overrides, step)  # before torch and transformers are imported, which takes seconds
    from reread.training.exchange.run_export import export_run

    folder = output or RunFile.EXPORT.of(run)
    with writing(folder):
        settings, known = train_section(recipe), _known(recipe)
        export_run(run, folder, settings, recipe.examples, step, known, average, onnx=onnx, int8=int8)
    log.info("exported to %s", folder)
    return folder


def _known(recipe: Recipe) -> dict[str, Any]:
    """What the recipe knows for the card's front matter."""
    given = recipe.card.model_dump()
    weights = recipe.start.weights if recipe.start else None
    began = hub_name(weights) if weights is not None else None
    return {**given, "base_model": given["base_model"] or (began.repository if began else "")}
