"""How much of the gradient all-reduce a step still waits for when the backward pass hides the rest.

    python benchmarks/training/gradient_overlap.py [--processes 2 4] [--buckets 1 5 25 100] [--layers 8 --hidden 512]
        [--tokens 128] [--rounds 7] [--dtype fp32] [--elsewhere SECONDS] [--rate 1gbit]

A step is forward, backward and the sum of all gradients of a NEZHA. Exposed is what it takes longer than the same step
without communication: with buckets that are sent during the backward pass, and with the same buckets sent after it.
Bucket sizes and orders take turns step by step, shuffled, and backends in each round. Horovod is started and stopped
around its own turns, so what its thread takes from the computation is part of its figures only. A figure is the best of
all rounds, of the slowest process.

By default processes compute on the CPUs that also carry the messages, over loopback: there is no network to wait for.
With --rate (root, iproute2) each process has a network namespace of its own, joined by a bridge, and a limit on what it
sends (tc's token bucket; no latency is added). With --elsewhere sleeping replaces computing, as on a GPU: a third
of the seconds in the forward pass, and each parameter's share of the rest before its gradient.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.harness import heading, parser, row
from benchmarks.network import launch
from reread.preprocessing.errors import one_line
from reread.training.models.build import freeze
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.objectives.masked_lm import MaskedLMObjective
from reread.training.parallel import horovod
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.reduce import Reduce, in_fp16, in_torch
from reread.training.parallel.rendezvous import close_mesh, init_mesh

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
        freeze(self.model, None, MaskedLMObjective.unreached(None))
        self.ids = torch.randint(config.vocab_size, (1, options.tokens))
        self.elsewhere = options.elsewhere
        self.reducers: dict[str, Reduce] = {"torch": in_torch(mesh), "Horovod": horovod.ring}
        if options.dtype == "fp16":
            self.reducers = {backend: in_fp16(reduce) for backend, reduce in self.reducers.items()}
        self.reduce: Reduce = nothing
        self.buckets = GradientBuckets(self.model.parameters(), mesh, int(megabytes * 2**20), self._begin)

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
    shuffled = random.Random(0)  # the same turns on all processes
    for number in range(options.rounds + 1):
        for backend in BACKENDS:
            if backend == "Horovod":
                horovod.start(mesh)
            orders = ORDERS if backend == "Horovod" else (*ORDERS, ALONE)
            turns = [(megabytes, order) for megabytes in steps for order in orders]
            shuffled.shuffle(turns)
            for megabytes, order in turns:
                seconds = steps[megabytes](backend, order)
                if number:  # the first round is warm-up
                    figures[backend, megabytes, order].append(seconds)
            if backend == "Horovod":
                horovod.stop()
    return figures


def waits(figures: Figures, options: argparse.Namespace) -> list[tuple[str, float, float, float, float]]:
    """Backend, megabytes, seconds of a step without communication, exposed seconds beside and after."""
    alone = min(min(figures["torch", megabytes, ALONE]) for megabytes in options.buckets)
    return [
        (backend, megabytes, alone, *(min(figures[backend, megabytes, order]) - alone for order in ORDERS))
        for backend in BACKENDS
        for megabytes in options.buckets
    ]


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    arguments.add_argument("--buckets", type=float, nargs="+", default=[1, 5, 25, 100], help="megabytes")
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--hidden", type=int, default=512)
    arguments.add_argument("--tokens", type=int, default=128, help="in the micro-batch of one row")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--dtype", choices=["fp32", "fp16"], default="fp32", help="of gradients in messages")
    arguments.add_argument("--elsewhere", type=float, metavar="SECONDS", help="sleep so long instead of computing")
    arguments.add_argument("--rate", help="limit on what a process sends, in the notation of tc: 1gbit")
    options = arguments.parse_args()
    if "RANK" in os.environ:
        as_rank(options)
    heading("processes", "backend", "bucket MB", "step without", "exposed beside", "exposed after", "ratio")
    for processes in options.processes:
        for backend, megabytes, *times in launch([sys.executable, *sys.argv], processes, options.rate):
            shown = [f"{seconds:.2f} s" for seconds in times]
            row(processes, backend, f"{megabytes:g}", *shown, f"{times[1] / times[2]:.2f}")


def as_rank(options: argparse.Namespace) -> NoReturn:
    torch.set_num_threads(1)
    mesh = init_mesh()
    figures = measure(mesh, options)
    if mesh.rank == 0:
        print(json.dumps(waits(figures, options)))
    close_mesh()
    sys.stdout.flush()
    os._exit(0)  # as the command line ends


if __name__ == "__main__":
    main()
