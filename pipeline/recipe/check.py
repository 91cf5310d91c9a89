"""Checks of a recipe before any work begins: its model, start and writers, and whether its run folder is its own."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.load import written_recipe
from reread.pipeline.recipe.phases import check_vocabularies, phases_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.recipe.start import missing_start, start_recipe, start_weights
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import differences
from reread.training.data.kinds import KINDS
from reread.training.data.tasks.settings import task_of
from reread.training.exchange.hub import not_looked_for
from reread.training.models import config_of_start
from reread.training.run.files import RUNS, RunFile, has_checkpoints
from reread.training.run.writers import check_writers

log = logging.getLogger("reread")


def check_train(recipe: Recipe) -> None:
    """Raises `UserError` for what training would refuse with any corpus, and for a `start` that cannot be made.

    Call it before any work begins.
    """
    for phase in phases_of(recipe):
        check_model(recipe.model_copy(update={"train": phase}))
        check_writers(phase)
    if recipe.phases:
        check_vocabularies(recipe)
        if _has_torch():
            from reread.training.assembly import check_same_sizes

            check_same_sizes(phases_of(recipe))
    if missing_start(recipe):
        if recipe.start and recipe.start.weights is not None:
            start_weights(recipe)
        elif _has_torch():
            check_train(start_recipe(recipe)[0])
        return
    init = train_section(recipe).init
    if init is not None and not has_checkpoints(RUNS / recipe.name):
        try:
            config_of_start(init)
        except UserError as error:
            raise UserError(f"{error}{not_looked_for(init)}") from None


def check_model(recipe: Recipe) -> None:
    """Raises `UserError` for a wrong `train.model`; logs one line if torch, which the check needs, is not installed."""
    if not _has_torch():
        log.info("train.model is not checked yet: torch or transformers is not installed here")
        return
    from reread.training.assembly import check_model as check

    check(train_section(recipe))


def _has_torch() -> bool:
    return bool(importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"))


MAY_CHANGE = {"parallel", "micro_batch", "activation_checkpointing", "compile", "checkpoint", "peak_tflops"} | {
    "kernels",
    "threads",
    "watchdog_minutes",
    "log_every",
    "validate_every",
    "validation_batches",
    "writers",
}
"""Fields of `train` that may change when a run is resumed. Apart from rounding and dropout, none of them changes the
trained model."""


def check_same_run(run: Path, recipe: Recipe) -> None:
    """Raises `UserError` if the run folder holds checkpoints of a recipe that trains something else."""
    path = RunFile.RECIPE.of(run)
    if not path.exists() or not has_checkpoints(run):
        return
    begun = written_recipe(path)  # fields that did not exist then have their defaults
    changed = differences(_learned_by(begun), _learned_by(recipe))
    if changed:
        pretrains = recipe.train is not None and not task_of(recipe.train.data)
        fits = pretrains and not any(one.startswith("train.model.") for one in changed)
        goes_on = f"; with from={run} it goes on from this one's weights" if fits else ""
        raise UserError(
            f"{path}: this run was begun with other settings ({'; '.join(changed)}); "
            f"revert them, or give the new run a name of its own with name=...{goes_on}"
        )


def _learned_by(recipe: Recipe) -> dict[str, Any]:
    """What decides the trained model, of each phase."""
    if recipe.train is None:
        return {}
    phases = [_learned(phase.model_dump(mode="json")) for phase in phases_of(recipe)]
    return {f"phases.{number}": one for number, one in enumerate(phases, 1)} if recipe.phases else {"train": phases[0]}


def _learned(train: dict[str, Any]) -> dict[str, Any]:
    data = train.get("data", {})
    may_change = KINDS[data["kind"]].settings.may_change if data else ()
    data = {key: value for key, value in data.items() if key not in may_change}
    return {key: value for key, value in {**train, "data": data}.items() if key not in MAY_CHANGE}
