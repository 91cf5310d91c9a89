"""The time of a step: a roofline by kind of operation, and the part of the all-reduces that the backward pass does not
hide."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reread.pipeline.estimate.hardware import (
    CPU_LAUNCH_BYTES,
    GAP_SECONDS,
    LAUNCH_SECONDS,
    REACHED,
    UPDATE_SHARE,
    Cluster,
    Gpu,
)
from reread.pipeline.estimate.rehearsal import Footprint
from reread.pipeline.estimate.work import Work, summed

PRODUCTS, MEMORY = "products", "memory"
_BOUND_OF = {"products": PRODUCTS, "attention": "attention"}
BOUNDS = (*_BOUND_OF.values(), MEMORY)
"""What bounds the operations of a micro-batch; all kinds but products and attention read and write memory."""


@dataclass(frozen=True)
class Ring:
    """A ring of `ranks` processes: 2 (n - 1) steps, in each of which every process sends 1/n of the buffer on."""

    ranks: int
    bandwidth: float
    """Bytes a second of the slowest link, in one direction."""
    latency: float
    """Seconds, summed over the steps."""

    def seconds(self, size: float, calls: float = 1.0) -> float:
        """Seconds to all-reduce `size` bytes in all, in `calls` calls."""
        if self.ranks == 1:
            return 0.0
        return 2 * (self.ranks - 1) / self.ranks * size / self.bandwidth + calls * self.latency


def ring(cluster: Cluster, ranks_a_node: int, nodes: int, sharing: int = 1) -> Ring:
    """The ring of the GPUs of `nodes` machines; `sharing` rings like it cross a machine's network at the same time.

    Only the steps that cross to another machine cost the network's latency, 2 (nodes - 1) of them: NCCL's own model
    (ncclTopoTuneModel in tuning.cc).
    """
    ranks, gpu = ranks_a_node * nodes, cluster.gpu
    inside = gpu.link_bandwidth if ranks_a_node > 1 else float("inf")
    across = cluster.network.bandwidth / sharing if nodes > 1 else float("inf")
    crossing = 2 * (nodes - 1)
    staying = 2 * (ranks - 1) - crossing
    return Ring(ranks, min(inside, across), staying * gpu.link_latency + crossing * cluster.network.latency)


@dataclass(frozen=True)
class StepTime:
    """Seconds of the parts of a step."""

    passes: Mapping[str, float]
    """Seconds of the micro-batches' operations by `BOUNDS`; of one part alone at a stated share of the peak."""
    host: float
    """Seconds in which the GPU waits for the host to launch."""
    tensor: float
    """All-reduces of tensor parallelism; nothing hides them."""
    reduction: float
    """Seconds of the whole all-reduce of the gradients."""
    exposed: float
    """The part of the reduction that the backward pass does not hide."""
    update: float
    """Seconds of the gradients' norm and the optimiser's step, with gathering the weights."""

    @property
    def compute(self) -> float:
        """Seconds of the micro-batches without their all-reduces."""
        return sum(self.passes.values()) + self.host

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.exposed + self.update


def step_time(
    cluster: Cluster,
    footprint: Footprint,
    flops: float,
    *,
    micro_batches: float,
    wire_bytes: float,
    gathered_bytes: float,
    accumulation: int,
    bucket_bytes: int,
    flop_share: float | None,
) -> StepTime:
    """Seconds of a step.

    flops: of the whole global batch, without what activation checkpointing computes again, which take the time if a
    share of the peak is stated; otherwise the work of `micro_batches` like the rehearsed one takes it, in
    `accumulation` passes. wire_bytes: of the gradients as they are sent. gathered_bytes: of the weights that each
    process receives after the optimiser's step, which takes half as long as their all-reduce would.
    """
    tensor, gpu = footprint.tensor, cluster.gpu
    if flop_share is None:
        passes = {bound: micro_batches * seconds for bound, seconds in seconds_by_bound(footprint.work, gpu).items()}
    else:
        # with checkpointing the forward pass once more; the backward pass takes twice as long as it
        again = 4 / 3 if footprint.checkpointing else 1.0
        passes = {PRODUCTS: again * flops / (cluster.gpus * gpu.peak * flop_share)}
    update = footprint.update_work.bytes / (gpu.memory_bandwidth * UPDATE_SHARE)
    launches = accumulation * sum(one.launches for one in footprint.work.values())
    waits = waiting(launches, sum(passes.values()), flop_share) + waiting(
        footprint.update_work.launches, update, flop_share
    )
    inside = ring(cluster, tensor, 1)
    tensor_seconds = accumulation * inside.seconds(footprint.tensor_bytes, footprint.tensor_calls)

    data = ring(cluster, cluster.per_node // tensor, cluster.nodes, sharing=tensor)
    buckets = math.ceil(footprint.gradients / bucket_bytes)
    compute = sum(passes.values()) + waits
    backward = (compute + tensor_seconds) / accumulation * (3 / 4 if footprint.checkpointing else 2 / 3)
    return StepTime(
        passes,
        waits,
        tensor_seconds,
        data.seconds(wire_bytes, buckets),
        exposed_seconds(data, wire_bytes, buckets, backward),
        update + data.seconds(gathered_bytes) / 2,
    )


def seconds_by_bound(work: Mapping[str, Work], gpu: Gpu) -> dict[str, float]:
    """Seconds of operations on one GPU by `BOUNDS`: of each kind those of its bytes or of its FLOPs, whichever are
    more, at the shares of bandwidth and peak that the kind reaches."""
    seconds = dict.fromkeys(BOUNDS, 0.0)
    for kind, one in work.items():
        reached = REACHED[kind]
        by_bytes = one.bytes / (gpu.memory_bandwidth * reached.bandwidth)
        by_flops = one.flops / (gpu.peak * reached.peak)
        seconds[_BOUND_OF.get(kind, MEMORY)] += max(by_bytes, by_flops)
    return seconds


def waiting(launches: int, busy: float, flop_share: float | None = None) -> float:
    """Seconds that the GPU waits for launches, beside `busy` seconds of kernels. A stated share of the peak has the
    gaps in it already."""
    gaps = 0.0 if flop_share else launches * GAP_SECONDS
    return max(gaps, launches * LAUNCH_SECONDS - busy)


def cost_of_a_pass(work: Mapping[str, Work], gpu: Gpu | None) -> float:
    """What the launches of a full micro-batch take, over what its work takes, on a GPU or a CPU core (None)."""
    total = summed([*work.values()])
    if gpu is None:
        return total.launches * CPU_LAUNCH_BYTES / total.bytes
    return total.launches * GAP_SECONDS / sum(seconds_by_bound(work, gpu).values())


def exposed_seconds(ring: Ring, size: float, buckets: int, backward: float) -> float:
    """Seconds of an all-reduce of `size` bytes in equal buckets that are not hidden: a bucket is sent when its part of
    the last micro-batch's backward pass is done, so nothing hides the last one."""
    last = ring.seconds(size / buckets)
    return max(last, buckets * last - backward * (1 - 1 / buckets))
