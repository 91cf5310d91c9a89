"""Whether a device computes by kernels or by plain forms."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch

from reread.training.kernels.language import missing

log = logging.getLogger("reread")

OLDEST = (7, 0)
"""The least compute capability for which Triton compiles."""


def use_kernel(
    name: str, setting: Literal["auto", "plain"], device: torch.device, check: Callable[[torch.device], None]
) -> bool:
    """Whether `device` computes by the kernel; a GPU for which it does not is a line with the reason.

    `check` runs the kernel and its plain form on a few numbers and raises AssertionError if they differ. It is called
    once in a process.
    """
    if setting == "plain" or device.type not in ("cuda", "meta"):
        return False
    reason = None if device.type == "meta" else _why_not(device, check)
    if reason:
        log.info("kernels: %s by torch's operations, as %s", name, reason)
    return reason is None


@cache
def _why_not(device: torch.device, check: Callable[[torch.device], None]) -> str | None:
    if reason := missing():
        return reason
    if not torch.version.hip and torch.cuda.get_device_capability(device) < OLDEST:
        return f"Triton needs compute capability {OLDEST[0]}.{OLDEST[1]}"
    try:
        check(device)
    except Exception as error:  # a compiler, a driver or a kernel that differs may raise anything
        return f"the kernel failed its check here ({' '.join(str(error).split())[:200]})"
    return None
