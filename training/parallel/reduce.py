"""Sums gradients over data-parallel ranks, by the library and in the type that the settings name."""

import logging
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from reread.training.config import ParallelSettings
from reread.training.parallel import horovod
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")

Reduce = Callable[[Tensor, int], Callable[[], object]]
"""Begins to sum a buffer [n] in place over the data-parallel ranks; the number is the bucket's, the same on all ranks.
The function returned waits for the sum."""


def reducer(settings: ParallelSettings, mesh: Mesh) -> Reduce:
    """The `Reduce` that the settings name; logs its ring. `init_mesh` has joined its processes."""
    if mesh.data_size == 1:
        log.info("gradients: nothing to reduce with one data-parallel rank")
        return in_torch(mesh)
    reduce, by = in_torch(mesh), "torch.distributed"
    if settings.gradients == "horovod":
        reduce, by = horovod.ring, "Horovod"
    beside = f" beside tensor groups of {mesh.tensor_size}" if mesh.tensor_size > 1 else ""
    log.info(
        f"gradients: {by} over {_ring(settings.gradients, mesh)}, {mesh.data_size} data-parallel ranks{beside}, "
        f"buckets of {settings.bucket_megabytes:g} MB, sent as {settings.gradient_dtype}"
    )
    return in_fp16(reduce) if settings.gradient_dtype == "fp16" else reduce


def in_torch(mesh: Mesh) -> Reduce:
    """torch.distributed's all-reduce."""

    def begin(buffer: Tensor, bucket: int) -> Callable[[], object]:
        work: dist.Work = dist.all_reduce(buffer, group=mesh.data_group, async_op=True)  # type: ignore[assignment]
        return work.wait

    return begin


def in_fp16(reduce: Reduce) -> Reduce:
    """Wrap `reduce`: buffers are sent and summed in float16, half the bytes; what overflows becomes inf.

    Nothing is scaled here. The loss scale keeps gradients in float16's range, as it does when they are computed in it.
    """
    copies: dict[int, Tensor] = {}

    def begin(buffer: Tensor, bucket: int) -> Callable[[], object]:
        if bucket not in copies:
            copies[bucket] = torch.empty_like(buffer, dtype=torch.float16)
        copy = copies[bucket].copy_(buffer)
        wait = reduce(copy, bucket)

        def finish() -> None:
            wait()
            buffer.copy_(copy)

        return finish

    return begin


def _ring(gradients: str, mesh: Mesh) -> str:
    if mesh.device.type == "cpu":
        return "gloo's ring (nccl-ring: no NCCL on CPU)" if gradients == "nccl-ring" else "gloo's ring"
    library, pinned = "RCCL" if torch.version.hip else "NCCL", os.environ.get("NCCL_ALGO")
    return f"{library} ({f'NCCL_ALGO={pinned}' if pinned else 'ring or tree, as it chooses'})"
