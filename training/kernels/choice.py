"""Whether a run computes by kernels or by torch's operations, which all of its processes decide together."""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from reread.training.config import TrainSettings
from reread.training.kernels.language import missing
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")

OLDEST = (7, 0)
"""The least compute capability for which Triton compiles."""


def by_kernels(setting: Literal["auto", "plain"], device: torch.device) -> bool:
    """Whether `device` computes by kernels; on `meta` that is counted."""
    return setting == "auto" and device.type in ("cuda", "meta")


def settle_kernels(
    settings: TrainSettings, mesh: Mesh, checks: Sequence[Callable[[torch.device], None]]
) -> TrainSettings:
    """`settings`, with torch's operations if the GPU of any process cannot run the kernels (collective); a line says
    which it is and why. Each of `checks` runs kernels and their plain forms on a few numbers and raises AssertionError
    if they differ."""
    if mesh.device.type != "cuda" or settings.kernels == "plain":
        return settings
    reason = _why_not(mesh.device, checks)
    if all(works for (works,) in mesh.gather(int(reason is None))):
        log.info("kernels: our own where there are some (train.kernels=auto)")
        return settings
    log.info("kernels: torch's operations, as %s", reason or "another process cannot run ours")
    return settings.model_copy(update={"kernels": "plain"})


def _why_not(device: torch.device, checks: Sequence[Callable[[torch.device], None]]) -> str | None:
    if reason := missing():
        return reason
    if not torch.version.hip and torch.cuda.get_device_capability(device) < OLDEST:
        return f"Triton needs compute capability {OLDEST[0]}.{OLDEST[1]}"
    try:
        for check in checks:
            check(device)
    except Exception as error:  # a compiler, a driver or a kernel that differs may raise anything
        return f"a kernel failed its check here ({' '.join(str(error).split())[:200]})"
    return None
