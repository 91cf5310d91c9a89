"""The ring model of `reread plan` against gloo's all-reduce.

Latency and bandwidth are fitted to two sizes over loopback and the others are predicted; then, as root, between network
namespaces whose cards are throttled, with that bandwidth as it was set and nothing fitted.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.estimate.speed import Ring

SIZES = [2**power for power in range(14, 25, 2)]
FITTED = (2**18, 2**24)
RATE = 62.5e6
"""Bytes a second of the network that is made, 500 Mbit/s."""
PAYLOAD = 1448 / 1514
"""Of an Ethernet frame, TCP's."""


def ring(corpus: Path) -> None:
    """gloo's all-reduce over loopback and, as root, between network namespaces whose cards are throttled."""
    print("| | processes | bytes | measured ms | predicted | predicted / measured |")
    print("|---|---:|---:|---:|---:|---:|")
    latency = 0.0
    for ranks in (2, 4):
        times, steps = all_reduce_seconds(ranks, throttled=False), 2 * (ranks - 1)
        small, large = (times[size] for size in FITTED)
        bandwidth = steps / ranks * (FITTED[1] - FITTED[0]) / (large - small)
        fitted = Ring(ranks, bandwidth, small - steps / ranks * FITTED[0] / bandwidth)
        latency = latency or fitted.latency / steps
        report_ring(f"loopback, fitted: {bandwidth / 1e9:.2f} GB/s", times, fitted)
    if os.geteuid() or shutil.which("tc") is None:
        print("no throttled network: that takes root and tc")
        return
    for ranks in (2, 4):
        stated = Ring(ranks, RATE * PAYLOAD, 2 * (ranks - 1) * latency)
        report_ring("500 Mbit/s, nothing fitted", all_reduce_seconds(ranks, throttled=True), stated)


def report_ring(name: str, times: dict[int, float], by: Ring) -> None:
    for size, seconds in times.items():
        expected = by.seconds(size)
        shown = f"{seconds * 1e3:.2f} | {expected * 1e3:.2f} | {expected / seconds:.2f}"
        print(f"| {name} | {by.ranks} | {size:,} | {shown} |", flush=True)


def all_reduce_seconds(ranks: int, throttled: bool) -> dict[int, float]:
    """By bytes, the least of several: neighbours on the machine only ever add."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mine = [sys.executable, __file__, "--rank"]
    if not throttled:
        started = [_start([*mine, f"{rank},{ranks},{port},"]) for rank in range(ranks)]
        return _first_answer(started)
    # Everything is inside a namespace of its own and ends with it
    answer = subprocess.run(
        ["unshare", "-n", sys.executable, __file__, "--switch", f"{ranks},{port}"], check=True, stdout=subprocess.PIPE
    )
    return _times(answer.stdout)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def _first_answer(started: list[subprocess.Popen[bytes]]) -> dict[int, float]:
    first, *_ = [process.communicate()[0] for process in started]
    return _times(first)


def _times(output: bytes) -> dict[int, float]:
    """By its last line: gloo has something to say, too."""
    return {int(size): seconds for size, seconds in json.loads(output.splitlines()[-1]).items()}


def switch(ranks: int, port: int) -> None:
    """A bridge, and on it a process in a namespace of its own for each rank."""
    shell("ip link add bridge0 type bridge; ip link set bridge0 up")
    started = []
    for rank in range(ranks):
        process = _start(["unshare", "-n", sys.executable, __file__, "--rank", f"{rank},{ranks},{port},eth0"])
        time.sleep(0.5)  # until it is in there
        shell(
            f"ip link add v{rank} type veth peer name eth0 netns {process.pid}; ip link set v{rank} master bridge0 up"
        )
        started.append(process)
    print(json.dumps(_first_answer(started)))


def reduce_rank(rank: int, ranks: int, port: int, card: str) -> None:
    address = "127.0.0.1"
    if card:
        address = "10.0.0.1"
        while subprocess.run(["ip", "link", "show", card], capture_output=True, check=False).returncode:
            time.sleep(0.05)
        shell(
            f"ip link set lo up; ip addr add 10.0.0.{rank + 1}/24 dev {card}; ip link set {card} up; "
            f"tc qdisc add dev {card} root tbf rate {RATE * 8:.0f}bit burst 128kb latency 100ms"
        )
        os.environ["GLOO_SOCKET_IFNAME"] = card
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    times = {}
    for size in SIZES:
        buffer, taken = torch.zeros(size // 4), []
        for _ in range(12 if size > 2**21 else 60):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(buffer)
            taken.append(time.perf_counter() - begin)
        times[size] = min(taken[1:])
    if rank == 0:
        print(json.dumps(times))
    dist.destroy_process_group()


def shell(commands: str) -> None:
    for command in commands.split(";"):
        subprocess.run(command.split(), check=True)


if __name__ == "__main__":  # what the functions above start
    if sys.argv[1] == "--switch":
        switch(*map(int, sys.argv[2].split(",")))
    else:
        rank, ranks, port, card = sys.argv[2].split(",")
        reduce_rank(int(rank), int(ranks), int(port), card)
