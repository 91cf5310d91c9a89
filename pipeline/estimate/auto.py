"""Chooses `train.micro_batch: auto` and `train.activation_checkpointing: auto` by what fits on a run's devices."""

import logging
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from reread.pipeline.estimate.arrangement import Estimator
from reread.pipeline.estimate.hardware import FLOP_SHARE, GIB, Cluster, gpu_like, network_named
from reread.preprocessing.errors import UserError
from reread.training.assembly import spec_of
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")


def choose_auto(
    settings: TrainSettings,
    config: PretrainedConfig,
    mesh: Mesh,
    dtype: torch.dtype,
    memory: int,
    dataset: Dataset[Any] | None = None,
) -> TrainSettings:
    """The settings with values in place of `auto`, the same on all processes; logs the values and the reason.

    `memory`: bytes of the smallest device, for one process; `dataset`: the training data, whose longest examples count
    if it is a task's. Sends nothing to other processes.
    Values that the recipe states are kept. Raises `UserError` if it does not fit, with the largest `micro_batch` that
    does, if not a single row fits, and where the model or the global batch cannot be split so.
    """
    cluster = Cluster(gpu_like(memory, dtype), mesh.world, mesh.tensor_size, network_named("ib100"))
    kernels: Literal["cpu", "gpu"] = "cpu" if mesh.device.type == "cpu" else "gpu"
    share = FLOP_SHARE if kernels == "cpu" else None
    estimator = Estimator(settings, spec_of(settings), config, cluster, share, kernels, dataset)
    try:
        found = estimator.as_stated()
    except UserError as error:
        if (message := str(error)).startswith("--gpu "):  # no row fits
            message = f"{_names(settings)}: auto, but on {message.removeprefix('--gpu ')}"
        raise UserError(message) from None
    footprint = found.footprint
    values = {"micro_batch": footprint.micro_batch, "activation_checkpointing": footprint.checkpointing}
    log.info(
        "%s: auto: %d of %d rows at a time, %s activation checkpointing: %.2f GiB by the estimate, of %.2f usable on "
        "the smallest device of %.2f GiB",
        *(_names(settings), footprint.micro_batch, found.rows, "with" if footprint.checkpointing else "without"),
        *(found.bytes / GIB, found.limit / GIB, memory / GIB),
    )
    return settings.model_copy(update={name: values[name] for name in settings.automatic})


def _names(settings: TrainSettings) -> str:
    return " and ".join(f"train.{name}" for name in settings.automatic)
