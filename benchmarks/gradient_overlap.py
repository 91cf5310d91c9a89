"""How much of the gradient all-reduce a step still waits for, beside a backward pass that hides the rest.

    python benchmarks/gradient_overlap.py [--processes 2 4] [--buckets 1 5 25 100] [--layers 8 --hidden 512]
        [--tokens 128] [--rounds 7] [--dtype fp32] [--elsewhere SECONDS] [--rate 1gbit]

A step is forward, backward and the sum of all gradients of a NEZHA. Exposed is what it takes longer than the same step
without communication: with buckets that begin while the backward pass goes on, and with the same buckets begun after
it. Bucket sizes and orders take turns step by step, shuffled, and backends in each round. Horovod joins and leaves
around its own turns: what its thread takes from the computation is part of its figures and of no others. A figure is
the best of all rounds, of the slowest process: what else the machine does only adds.

By default processes compute on the CPUs that also carry the messages, over loopback: there is no network to wait for.
With --rate (root, iproute2) each process lives in a namespace of its own, all joined by a bridge, and may send so much
and no more (tc's token bucket; no latency is added). With --elsewhere computing is waiting for that many seconds, a
third of them forward, each parameter's share of the rest before its gradient: as if a GPU did it.
"""

import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from training.models.nezha import NezhaConfig, NezhaForPreTraining
from training.parallel import horovod
from training.parallel.gradients import GradientBuckets
from training.parallel.mesh import Mesh
from training.parallel.reduce import Reduce, in_fp16, in_torch
from training.parallel.rendezvous import close_mesh, init_mesh

BACKENDS = ("torch", "Horovod")
ORDERS = ("beside", "after")
ALONE = "alone"
"""A step without communication."""
Figures = dict[tuple[str, float, str], list[float]]


def nothing(buffer: Tensor, bucket: int) -> Callable[[], object]:
    return lambda: None


class Elsewhere(torch.autograd.Function):
    """A parameter's part of a backward pass that another device would compute: its gradient comes after a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor, seconds: float) -> Tensor:
        ctx.gradient, ctx.seconds = torch.ones_like(parameter), seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, ctx.gradient, None


class Steps:
    """Steps of one model with buckets of one size."""

    def __init__(self, mesh: Mesh, megabytes: float, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        config = NezhaConfig(
            vocab_size=8192,
            hidden_size=options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            intermediate_size=4 * options.hidden,
            max_relative_position=None,
        )
        self.model = NezhaForPreTraining(config)
        self.ids = torch.randint(config.vocab_size, (1, options.tokens))
        self.elsewhere = options.elsewhere
        self.reducers: dict[str, Reduce] = {"torch": in_torch(mesh), "Horovod": horovod.ring}
        if options.dtype == "fp16":
            self.reducers = {backend: in_fp16(reduce) for backend, reduce in self.reducers.items()}
        self.reduce: Reduce = nothing
        self.buckets = GradientBuckets(self.model.parameters(), mesh, int(megabytes * 2**20), self._begin)
        self("torch", ALONE)  # which parameters are used is known from then on

    def _begin(self, buffer: Tensor, bucket: int) -> Callable[[], object]:
        return self.reduce(buffer, bucket)

    def _loss(self) -> Tensor:
        if self.elsewhere is None:
            return self.model(input_ids=self.ids).prediction_logits.float().logsumexp(-1).mean()
        time.sleep(self.elsewhere / 3)
        loss, parameters = torch.zeros((), requires_grad=True), list(self.model.parameters())
        share = self.elsewhere * 2 / 3 / sum(parameter.numel() for parameter in parameters)
        for parameter in parameters:
            loss = Elsewhere.apply(loss, parameter, share * parameter.numel())
        return loss

    def __call__(self, backend: str, order: str) -> float:
        """Seconds of a step of the slowest process."""
        self.reduce = nothing if order == ALONE else self.reducers[backend]
        dist.barrier()
        begin = time.perf_counter()
        self.buckets.zero()
        if order == "beside":
            self.buckets.reduce_as_ready()
        self._loss().backward()
        self.buckets.finish()
        seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()


def measure(mesh: Mesh, options: argparse.Namespace) -> Figures:
    steps = {megabytes: Steps(mesh, megabytes, options) for megabytes in options.buckets}
    figures: Figures = defaultdict(list)
    dice = random.Random(0)  # the same turns on all processes
    for turn in range(options.rounds + 1):
        for backend in BACKENDS:
            if backend == "Horovod":
                horovod.start(mesh)
            orders = ORDERS if backend == "Horovod" else (*ORDERS, ALONE)
            plan = [(megabytes, order) for megabytes in steps for order in orders]
            dice.shuffle(plan)
            for megabytes, order in plan:
                seconds = steps[megabytes](backend, order)
                if turn:  # the first round is warm-up
                    figures[backend, megabytes, order].append(seconds)
            if backend == "Horovod":
                horovod.stop()
    return figures


def report(figures: Figures, options: argparse.Namespace) -> None:
    print("| processes | backend | bucket MB | step without | exposed beside | exposed after | ratio |")
    print("|---|---|---|---|---|---|---|")
    alone = min(min(figures["torch", megabytes, ALONE]) for megabytes in options.buckets)
    for backend in BACKENDS:
        for megabytes in options.buckets:
            beside, after = (min(figures[backend, megabytes, order]) - alone for order in ORDERS)
            print(
                f"| {options.world} | {backend} | {megabytes:g} | {alone:.2f} s | {beside:.2f} s | {after:.2f} s | "
                f"{beside / after:.2f} |"
            )


@contextmanager
def hosts(processes: int, rate: str | None) -> Iterator[list[list[str]]]:
    """What to put before each process' command; with a rate, namespaces on a bridge that are taken down at the end."""
    if rate is None:
        yield [[]] * processes
        return
    bridge = f"rr{os.getpid() % 10_000}"
    names = [f"{bridge}-{number}" for number in range(processes)]
    run(f"ip link add {bridge} type bridge", f"ip link set {bridge} up")
    try:
        for number, name in enumerate(names):
            # Horovod's process sets listen where the machine's name leads
            Path(f"/etc/netns/{name}").mkdir(parents=True)
            Path(f"/etc/netns/{name}/hosts").write_text(f"10.213.0.{number + 1} {socket.gethostname()}\n")
            run(
                f"ip netns add {name}",
                f"ip link add {bridge}v{number} type veth peer name eth0 netns {name}",
                f"ip link set {bridge}v{number} master {bridge} up",
                f"ip netns exec {name} ip link set lo up",
                f"ip netns exec {name} ip address add 10.213.0.{number + 1}/24 dev eth0",
                f"ip netns exec {name} ip link set eth0 up",
                f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 400ms",
            )
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False)


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def launch(processes: int, rate: str | None) -> None:
    """This script again in `processes` processes."""
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "10.213.0.1" if rate else "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "eth0" if rate else "lo",
    }
    with hosts(processes, rate) as prefixes:
        command = [sys.executable, *sys.argv]
        workers = [
            subprocess.Popen([*prefix, *command], env={**shared, "RANK": str(rank)})
            for rank, prefix in enumerate(prefixes)
        ]
        statuses = [worker.wait() for worker in workers]
        if any(statuses):
            sys.exit(f"processes ended with {statuses}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--buckets", type=float, nargs="+", default=[1, 5, 25, 100], help="megabytes")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128, help="of one row, the micro-batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["fp32", "fp16"], default="fp32", help="in which gradients travel")
    parser.add_argument("--elsewhere", type=float, metavar="SECONDS", help="waiting stands in for computing")
    parser.add_argument("--rate", help="what a process may send, as tc writes it: 1gbit")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        for processes in options.processes:
            launch(processes, options.rate)
        return
    torch.set_num_threads(1)
    mesh = init_mesh()
    options.world = mesh.world
    figures = measure(mesh, options)
    if mesh.rank == 0:
        report(figures, options)
    close_mesh()
    sys.stdout.flush()
    os._exit(0)  # as the command line ends


if __name__ == "__main__":
    main()
