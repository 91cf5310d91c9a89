"""`train.micro_batch: auto` and `train.activation_checkpointing: auto`: what fits on the devices of a run."""

import logging
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from pipeline.estimate.arrangement import Estimator
from pipeline.estimate.hardware import FLOP_SHARE, GIB, Cluster, gpu_like, network_named
from preprocessing.errors import UserError
from training.assembly import spec_of
from training.config import TrainSettings
from training.data.dataset import Dataset
from training.parallel.mesh import Mesh

log = logging.getLogger("reread")


def fit(
    settings: TrainSettings,
    config: PretrainedConfig,
    mesh: Mesh,
    dtype: torch.dtype,
    memory: int,
    dataset: Dataset[Any] | None = None,
) -> TrainSettings:
    """The settings with values for what is `auto`, the same on all processes; logs them and the reason.

    `memory`: bytes of the smallest device, for one process; `dataset`: the training data, whose longest examples count
    if it is a task's. Sends nothing to other processes.
    Raises `UserError` if not a single row fits, and where the model or the global batch cannot be split so.
    """
    cluster = Cluster(gpu_like(memory, dtype), mesh.world, mesh.tensor_size, network_named("ib100"))
    kernels: Literal["cpu", "gpu"] = "cpu" if mesh.device.type == "cpu" else "gpu"
    estimator = Estimator(settings, spec_of(settings), config, cluster, FLOP_SHARE, kernels, dataset)
    try:
        found = estimator.as_stated()
    except UserError as error:
        if (message := str(error)).startswith("--gpu "):  # no row fits
            message = f"{_names(settings)}: auto, but on {message.removeprefix('--gpu ')}"
        raise UserError(message) from None
    footprint = found.footprint
    chosen = {"micro_batch": footprint.micro_batch, "activation_checkpointing": footprint.checkpointing}
    log.info(
        "%s: auto: %d of %d rows at a time, %s activation checkpointing: %.2f GiB by the estimate, of %.2f usable on "
        "the smallest device of %.2f GiB",
        *(_names(settings), footprint.micro_batch, found.rows, "with" if footprint.checkpointing else "without"),
        *(found.bytes / GIB, found.limit / GIB, memory / GIB),
    )
    return settings.model_copy(update=chosen)


def _names(settings: TrainSettings) -> str:
    return " and ".join(f"train.{name}" for name in settings.automatic)
