"""GPUs and networks for which an estimate can be made.

The tables hold the figures that vendors state. Which share of them is reached is an assumption with a source. It is the
same for all devices of a kind and is not fitted to any single measurement.
"""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from reread.preprocessing.errors import UserError, nearest
from reread.training.run.metrics import PEAK_TFLOPS

GIB = 2**30

FLOP_SHARE = 0.40
"""Share of the peak that the matrix products reach which MFU counts, where one is assumed for all operations together,
as for a CPU. Published for BERT on V100: 0.25 to 0.51, PyTorch's 0.42 to 0.51; on A100 0.23 to 0.53 (README tables of
NVIDIA's DeepLearningExamples; DeepSpeed's BERT post of 2020-05)."""


class Reached(NamedTuple):
    """Shares of what is stated that a kind of operation reaches on a GPU."""

    bandwidth: float
    peak: float


REACHED = {
    "products": Reached(0.67, 0.67),
    "attention": Reached(0.47, 0.19),
    "copies": Reached(0.43, 1.0),
    "elementwise": Reached(0.78, 1.0),
    "norms": Reached(0.25, 1.0),
    "sums": Reached(0.33, 1.0),
    "our kernels": Reached(0.78, 1.0),
    "others": Reached(0.34, 1.0),
}
"""By the kinds of work.py. One step of nezha-base at 512 tokens on an H100 by torch's operations (docs/lab-log.md): the
least time of the bytes and FLOPs counted, by the time measured; attention's bandwidth from the same at 128 tokens. Not
measured: products bound by bytes, taken to be as those by FLOPs, and our kernels, as torch's elementwise ones."""
UPDATE_SHARE = 0.90
"""Share of the memory's bandwidth that the optimiser reaches, from the same step."""
NVLINK_SHARE = 0.7
"""Share of NVLink's bandwidth in one direction that is reached: all-reduces on 8 A100 run at 200 to 208 of 300 GB/s
(NVIDIA/nccl-tests#149 and #178). Of AMD's Infinity Fabric, too: an assumption, as is NVLink's latency there."""
NETWORK_SHARE = 0.9
"""Share of a network card's line rate that is reached: 46 to 48 of 50 GB/s by NVIDIA/nccl-tests#290."""

LAUNCH_SECONDS = 8e-6
"""Time for the host to issue one operation in eager PyTorch: a step takes at least that for all of its operations. An
assumption."""
GAP_SECONDS = 6e-6
"""Time that a GPU waits, on average, before it begins a kernel. On an H100 steps of four models were 4.5 to 10 us a
launch longer than all of their kernels (docs/lab-log.md)."""

CPU_LAUNCH_BYTES = 100_000
"""Bytes that a CPU core reads and writes for operations, forward and backward, in the time that torch takes for one
beside them, 22 us. Fitted to the passes of 37 small models (docs/lab-log.md), whose time it explains better than FLOPs
do."""

LATENCY = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "ib": 14e-6, "eth": 50e-6}
"""Seconds a step of a ring: the constants that NCCL chooses its algorithms by (tuning.cc, Ring/Simple). `ib` is any
network with RDMA, RoCE too; `eth`, through the host's sockets, is an assumption."""

CONTEXT_BYTES = 0.5 * GIB
"""CUDA's context with the kernels in use (about 300 MB since they load lazily, pytorch/pytorch#107667) and cuBLAS'
workspace."""
COMMUNICATOR_BYTES = 0.65 * GIB
"""NCCL's buffers for one group of processes: 544 to 688 MB in NVIDIA/nccl#964."""
FRAGMENTED_SHARE = 0.05
"""Share of the GPU's memory that the allocator holds and cannot use. An assumption."""


@dataclass(frozen=True)
class Gpu:
    name: str
    peak: float
    """Half-precision FLOP/s, as stated."""
    memory_gib: float
    """As CUDA or HIP reports it, a little less than what is printed on the box."""
    memory_bandwidth: float
    """Bytes a second, as stated."""
    link_bandwidth: float
    """Bytes a second, in one direction, of a ring within a machine."""
    link_latency: float
    """Seconds a step of such a ring."""
    dtype: torch.dtype
    """The type that `precision: auto` chooses on this GPU."""


def _gpu(name: str, family: str, memory_gib: float, memory: float, link: float) -> Gpu:
    """Bandwidths in GB/s; up to 64 the link is PCIe, of which a ring reaches 12 of 16 GB/s and so on."""
    kind, reached = ("pcie", 0.75) if link <= 64 else ("nvlink", NVLINK_SHARE)
    dtype = torch.float16 if family in ("V100", "T4") else torch.bfloat16
    peak = PEAK_TFLOPS[family] * 1e12
    return Gpu(name, peak, memory_gib, memory * 1e9, link * reached * 1e9, LATENCY[kind], dtype)


GPUS = {
    gpu.name: gpu
    for gpu in (  # memory in GiB, its GB/s, GB/s of the links in one direction
        _gpu("v100-16g", "V100", 15.78, 900, 150),
        _gpu("v100-32g", "V100", 31.75, 900, 150),
        _gpu("a100-40g", "A100", 39.4, 1555, 300),
        _gpu("a100-80g", "A100", 79.2, 2039, 300),
        _gpu("a800-80g", "A800", 79.2, 2039, 200),
        _gpu("h100-80g", "H100", 79.2, 3350, 450),
        _gpu("h800-80g", "H800", 79.2, 3350, 200),
        _gpu("h200", "H200", 139.8, 4800, 450),
        _gpu("t4", "T4", 14.75, 320, 16),
        _gpu("l40s", "L40S", 44.4, 864, 32),
        _gpu("rtx-4090", "RTX 4090", 23.6, 1008, 32),
        _gpu("mi250x-die", "MI250X", 63.98, 1638, 100),  # a device is one of its two dies; two links to a neighbour
        _gpu("mi300x", "MI300X", 191.98, 5300, 448),
    )
}


def gpu_named(name: str) -> Gpu:
    """Raises `UserError` with the nearest name."""
    if name in GPUS:
        return GPUS[name]
    raise UserError(f"--gpu {name}: not in the table; {nearest(name.lower(), GPUS, cutoff=0.4)}")


def gpu_like(memory: int, dtype: torch.dtype) -> Gpu:
    """A device of `memory` bytes that computes in `dtype` as fast as the GPU in the table with the most similar
    memory."""
    gib = memory / GIB
    nearest_gpu = min(GPUS.values(), key=lambda gpu: abs(gpu.memory_gib - gib))
    return replace(nearest_gpu, name=f"a device of {gib:.1f} GiB", memory_gib=gib, dtype=dtype)


def gpu_of_kind(device: str, memory: int) -> Gpu | None:
    """The GPU in the table of the family that CUDA's name of a device of `memory` bytes has, else None."""
    family = next((family for family in PEAK_TFLOPS if family in device), None)
    if family is None:
        return None
    kind = family.lower().replace(" ", "-")
    found = [gpu for gpu in GPUS.values() if gpu.name.startswith(kind)]
    return min(found, key=lambda gpu: abs(gpu.memory_gib * GIB - memory))


@dataclass(frozen=True)
class Network:
    """The network between machines."""

    name: str
    bandwidth: float
    """Bytes a second of one machine in one direction."""
    latency: float
    """Seconds a step of a ring."""


def network_named(name: str) -> Network:
    """`ib100`, `eth25`, `4xib100`: cards a machine, kind, Gbit/s of each. Raises `UserError` for anything else."""
    match = re.fullmatch(r"(?:([1-9]\d*)x)?(ib|eth)([1-9]\d*)", name.lower())
    if match is None:
        raise UserError(
            f"--network {name}: write ib100 or eth25, kind and Gbit/s of a machine's card (ib: with RDMA or RoCE), or "
            "4xib100 for several cards"
        )
    cards, kind, gigabits = int(match[1] or 1), match[2], int(match[3])
    return Network(name, cards * gigabits / 8 * 1e9 * NETWORK_SHARE, LATENCY[kind])


@dataclass(frozen=True)
class Cluster:
    gpu: Gpu
    gpus: int
    per_node: int
    """GPUs a machine."""
    network: Network

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.per_node)


def cluster(gpus: int, gpu: str, per_node: int, network: str) -> Cluster:
    """Raises `UserError` for a name that is in no table, and if the machines would not be full."""
    per_node = min(gpus, per_node)
    if gpus % per_node:
        raise UserError(
            f"--gpus {gpus}: do not fill machines of {per_node}; give a multiple of {per_node}, or --gpus-per-node"
        )
    return Cluster(gpu_named(gpu), gpus, per_node, network_named(network))
