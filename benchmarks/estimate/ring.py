"""The ring model of `reread plan` against gloo's all-reduce.

    python benchmarks/estimate/ring.py [--ranks 2 4]

Latency and bandwidth are fitted to two sizes over loopback and predict the other sizes. Then, as root, the ranks are in
network namespaces with throttled cards: there the bandwidth is the one that was set, and nothing is fitted.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import time

import torch
import torch.distributed as dist

from benchmarks.harness import heading, parser, row
from benchmarks.network import can_throttle, launch
from reread.pipeline.estimate.speed import Ring
from reread.preprocessing.errors import one_line

SIZES = [2**power for power in range(14, 25, 2)]
FITTED = (2**18, 2**24)
MEGABITS = 500
PAYLOAD = 1448 / 1514
"""Share of an Ethernet frame that TCP carries."""


def all_reduce_seconds(ranks: int, rate: str | None = None) -> dict[int, float]:
    """Seconds by bytes, the best of several."""
    found = launch([sys.executable, __file__], ranks, rate, burst="128kb")
    return {int(size): seconds for size, seconds in found.items()}


def report(network: str, times: dict[int, float], model: Ring) -> None:
    for size, seconds in times.items():
        predicted = model.seconds(size)
        milliseconds = (f"{seconds * 1e3:.2f}", f"{predicted * 1e3:.2f}")
        row(network, model.ranks, f"{size:,}", *milliseconds, f"{predicted / seconds:.2f}")


def as_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = {}
    for size in SIZES:
        buffer, taken = torch.zeros(size // 4), []
        for _ in range(12 if size > 2**21 else 60):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(buffer)
            taken.append(time.perf_counter() - begin)
        times[size] = min(taken[1:])
    if dist.get_rank() == 0:
        print(json.dumps(times))
    dist.destroy_process_group()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = arguments.parse_args()
    heading("network", "ranks", "bytes", "measured ms", "predicted", "predicted / measured")
    latency = 0.0
    for ranks in options.ranks:
        times, steps = all_reduce_seconds(ranks), 2 * (ranks - 1)
        small, large = (times[size] for size in FITTED)
        bandwidth = steps / ranks * (FITTED[1] - FITTED[0]) / (large - small)
        fitted = Ring(ranks, bandwidth, small - steps / ranks * FITTED[0] / bandwidth)
        latency = latency or fitted.latency / steps
        report(f"loopback, fitted: {bandwidth / 1e9:.2f} GB/s", times, fitted)
    if not can_throttle():
        print("no throttled network: it needs root and tc")
        return
    for ranks in options.ranks:
        stated = Ring(ranks, MEGABITS * 1e6 / 8 * PAYLOAD, 2 * (ranks - 1) * latency)
        report(f"{MEGABITS} Mbit/s, nothing fitted", all_reduce_seconds(ranks, f"{MEGABITS}mbit"), stated)


if __name__ == "__main__":
    as_rank() if "RANK" in os.environ else main()
