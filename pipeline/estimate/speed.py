"""The time of a step: FLOPs at a share of the peak, and the part of the all-reduces that the backward pass does not
hide."""

import math
from dataclasses import dataclass

from reread.pipeline.estimate.hardware import LAUNCH_SECONDS, MEMORY_SHARE, Cluster
from reread.pipeline.estimate.rehearsal import Footprint


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

    compute: float
    """Seconds of matrix products and other operations; at least the time to issue them."""
    tensor: float
    """All-reduces of tensor parallelism; nothing hides them."""
    reduction: float
    """Seconds of the whole all-reduce of the gradients."""
    exposed: float
    """The part of the reduction that the backward pass does not hide."""
    update: float
    """Seconds of the optimiser's step, with gathering the weights."""

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.exposed + self.update


def step_time(
    cluster: Cluster,
    footprint: Footprint,
    flops: float,
    *,
    wire_bytes: float,
    gathered_bytes: float,
    accumulation: int,
    bucket_bytes: int,
    flop_share: float,
) -> StepTime:
    """Seconds of a step. flops: of the whole global batch, without what activation checkpointing computes again.
    wire_bytes: of the gradients as they are sent. gathered_bytes: of the weights that each process receives after the
    optimiser's step, which takes half as long as their all-reduce would."""
    tensor = footprint.tensor
    again = (
        4 / 3 if footprint.checkpointing else 1.0
    )  # the forward pass once more; the backward pass takes twice as long as it
    compute = again * flops / (cluster.gpus * cluster.gpu.peak * flop_share)
    compute = max(compute, accumulation * footprint.operations * LAUNCH_SECONDS)
    inside = ring(cluster, tensor, 1)
    tensor_seconds = accumulation * inside.seconds(footprint.tensor_bytes, footprint.tensor_calls)

    data = ring(cluster, cluster.per_node // tensor, cluster.nodes, sharing=tensor)
    buckets = math.ceil(footprint.gradients / bucket_bytes)
    backward = (compute + tensor_seconds) / accumulation * (3 / 4 if footprint.checkpointing else 2 / 3)
    return StepTime(
        compute,
        tensor_seconds,
        data.seconds(wire_bytes, buckets),
        exposed_seconds(data, wire_bytes, buckets, backward),
        footprint.update_traffic / (cluster.gpu.memory_bandwidth * MEMORY_SHARE) + data.seconds(gathered_bytes) / 2,
    )


def exposed_seconds(ring: Ring, size: float, buckets: int, backward: float) -> float:
    """Seconds of an all-reduce of `size` bytes in equal buckets that are not hidden: a bucket is sent when its part of
    the last micro-batch's backward pass is done, so nothing hides the last one."""
    last = ring.seconds(size / buckets)
    return max(last, buckets * last - backward * (1 - 1 / buckets))
