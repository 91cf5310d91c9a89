"""What a checkpoint makes of text it has not seen: all of it, read as the recipe says."""

import logging
from pathlib import Path

import torch

from training.checkpoint.restore import restore_model
from training.config import TrainSettings
from training.data.source import open_source
from training.models import model_spec
from training.models.build import check_data
from training.objectives import TASKS
from training.parallel.mesh import Mesh
from training.parallel.tensor import parallelise
from training.trainer import evaluate, local_device

log = logging.getLogger("reread")


def evaluate_run(run: Path, settings: TrainSettings, step: int | None = None) -> dict[str, float]:
    """`Task.summary` over the held-out documents of `settings.data.corpus`, or over all where none are held out.

    By one process, in float32. Raises `UserError` if the run has no (such) checkpoint, or the corpus does not fit it.
    """
    held_out = open_source(settings.data, settings.seed, "validation")
    if len(held_out) == 0:
        log.info("%s holds no documents out: all of it is read", settings.data.corpus)
        held_out = open_source(settings.data, settings.seed, "train")
    model, step = restore_model(run, settings, held_out, step)
    spec, mesh = model_spec(settings.model["type"]), Mesh(device=torch.device(local_device()))
    check_data(spec, model.config, settings.data)
    parallelise(model, spec.tensor_plan, mesh)
    model.to(mesh.device)  # type: ignore[arg-type]
    task = TASKS[settings.data.kind](model, settings, mesh, held_out, held_out)
    log.info("step %d of %s on %s", step, run, settings.data.corpus)
    return evaluate(task, None)
