"""Evaluates a checkpoint on all held-out text, read by the recipe's settings, and keeps the figures."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.training.assembly import to_device
from reread.training.config import TrainSettings
from reread.training.data.kinds import nothing_held_out, open_dataset
from reread.training.data.tasks.settings import task_of
from reread.training.parallel.mesh import Mesh
from reread.training.run.auto import settings_of_run
from reread.training.run.files import RunFile
from reread.training.run.metrics import keep_evaluation, keep_mistakes
from reread.training.run.model import read_run_model
from reread.training.run.restore import average_of, averaged_steps, restore_model
from reread.training.run.threads import use_threads
from reread.training.trainer import local_device

log = logging.getLogger("reread")


def evaluate_run(
    run: Path,
    settings: TrainSettings,
    step: int | None = None,
    overrides: Sequence[str] = (),
    average: str | None = None,
) -> dict[str, float]:
    """`Objective.summary` over held-out documents; over all documents of other data than the run's, if none is held
    out.

    With `average` the model is that of several checkpoints (`averaged_steps`). The figures are kept in
    RUN/evaluation.json with `overrides`, by which `settings` differ from the run's, and the average. What is chosen on
    dev is chosen anew if nothing is overridden, and kept in RUN/chosen.json. The mistakes of a
    task's model, if `overrides` only name another file, are kept in RUN/mistakes.json. One process computes, in
    float32. Raises `UserError` if there is no such checkpoint, if the corpus does not fit it, and if nothing is held
    out of the corpus that it learned from.
    """
    settings = settings_of_run(settings, run)
    task = task_of(settings.data)
    chooses = step is None and not overrides and average is None
    if task is not None and (unchosen := task.unchosen):
        if not chooses and unchosen == task:
            raise UserError(f"{run}: its thresholds are not chosen yet; `reread evaluate {run}` chooses them on dev")
        settings = settings.model_copy(update={"data": unchosen}) if chooses else settings
    corpus, kept = settings.data.held_out, read_run_model(run, settings)
    held_out = open_dataset(settings.data, settings.seed, "validation")
    if len(held_out) == 0:
        held_out = open_dataset(settings.data, settings.seed, "train")
        if kept.corpus["fingerprint"] == held_out.facts()["fingerprint"]:
            raise nothing_held_out(settings.data)
        log.info("%s has no held-out documents: all of it is read", corpus)
    if kept.corpus["tokenizer"] != held_out.facts()["tokenizer"]:
        raise UserError(
            f"{corpus}: made with another vocabulary than the corpus {run} was trained on; preprocess it with "
            f"tokenizer.path={RunFile.MODEL.of(run)}, the run's own"
        )
    averaged = averaged_steps(run, average, step)
    model, step = restore_model(run, kept, step, averaged)
    mesh = Mesh(device=torch.device(local_device()))
    use_threads(settings, run, True, mesh)
    kept.check()
    to_device(model, kept.spec, mesh)
    objective = kept.objective(model, settings, mesh, held_out=held_out)
    log.info("step %d of %s on %s", step, run, corpus)
    figures = objective.held_out_summary(None)
    try:
        only_file = all(one.partition("=")[0] == "task.dev" for one in overrides)
        if only_file and not averaged and (mistakes := objective.mistakes()):
            keep_mistakes(run, str(corpus), {"step": step, **mistakes})
        if chooses and held_out.chosen:
            log.info("chosen on %s: %s", corpus, _told(held_out.chosen))
            write_atomically(RunFile.CHOSEN.of(run), json.dumps(held_out.chosen).encode())
        read_by = {"step": step, "overrides": [*overrides, *average_of(averaged)], "held_out": str(corpus)}
        keep_evaluation(run, read_by, figures)
    except OSError as error:
        log.warning("%s: the figures are not kept there (%s)", RunFile.EVALUATION.of(run), error.strerror)
    return figures


def _told(chosen: dict[str, list[float]]) -> str:
    """Names of settings with their values, or with the lowest and the highest of many."""
    several = {name: sorted({round(value, 4) for value in values}) for name, values in chosen.items()}
    return ", ".join(
        f"{name} {' to '.join(map(str, dict.fromkeys((values[0], values[-1]))))}" for name, values in several.items()
    )
