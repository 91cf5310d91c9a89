"""`reread export`: a checkpoint to a Hugging Face folder."""

import logging
from pathlib import Path

from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import train_section
from reread.preprocessing.errors import writing
from reread.training.run.files import RunFile

log = logging.getLogger("reread")


def export(run: Path, output: Path | None, step: int | None = None) -> Path:
    """Write the Hugging Face folder of a run's checkpoint, by default RUN/export, and return it."""
    recipe = recipe_of(run)  # before torch and transformers are imported, which takes seconds
    from reread.training.exchange.run_export import export_run

    folder = output or RunFile.EXPORT.of(run)
    with writing(folder):
        export_run(run, folder, train_section(recipe), recipe.examples, step)
    log.info("exported to %s", folder)
    return folder
