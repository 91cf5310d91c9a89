"""What a forward pass of a run costs beside its tokens, by the operations of its recipe and the kind of its devices."""

import logging
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from reread.pipeline.estimate.hardware import gpu_of_kind
from reread.pipeline.estimate.rehearsal import rehearsed_pass
from reread.pipeline.estimate.speed import cost_of_a_pass
from reread.pipeline.estimate.work import summed
from reread.preprocessing.errors import first_line
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.rows.trimming import PASS_SHARE
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")


def choose_pass_share(
    settings: TrainSettings, config: PretrainedConfig, mesh: Mesh, dtype: torch.dtype, dataset: Dataset[Any]
) -> float:
    """The constant cost of a pass as a share of the cost of a full one, at least `PASS_SHARE`; logs it, and why.

    `settings` have values for what is `auto`. Nothing is timed, so that fresh runs of a recipe are the same. Sends
    nothing to other processes.
    """
    gpu, where = None, "a CPU core"
    if mesh.device.type == "cuda":
        properties = torch.cuda.get_device_properties(mesh.device)
        where, gpu = properties.name, gpu_of_kind(properties.name, properties.total_memory)
        if gpu is None:
            log.info("padding: a pass counts as %.3g of a full one: the speed of %s is not known", PASS_SHARE, where)
            return PASS_SHARE
    kernels: Literal["cpu", "gpu"] = "gpu" if gpu else "cpu"
    try:
        work = rehearsed_pass(settings, config, dtype, tensor=mesh.tensor_size, kernels=kernels, dataset=dataset)
    except RuntimeError as error:  # an operation of a model of the user's own that knows no meta device
        log.info(
            "padding: a pass counts as %.3g of a full one: its operations cannot be counted (%s)",
            *(PASS_SHARE, first_line(error)),
        )
        return PASS_SHARE
    found = cost_of_a_pass(work, gpu)
    log.info(
        "padding: a pass counts as %.3g of a full one, and micro-batches are cut where less is computed: its %d "
        "operations take about %.3g of the time of their work on %s%s",
        *(max(PASS_SHARE, found), summed([*work.values()]).launches, found, where),
        ", which is less than is assumed at least" if found < PASS_SHARE else "",
    )
    return max(PASS_SHARE, found)
