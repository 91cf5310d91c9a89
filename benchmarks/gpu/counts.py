"""What a training step asks of a GPU, counted without one: launches and bytes, by kind and by line.

    python benchmarks/gpu/counts.py                          # the models that `make gpu` trains
    python benchmarks/gpu/counts.py --only "nezha-base 512" --lines 30
    python benchmarks/gpu/counts.py --kernels plain          # by torch's operations, without kernels of our own

The trainer's own step of two micro-batches, their sum, its norm and the update runs on torch's meta device. An
operation counts the kernels that an eager CUDA build launches for it, and reads each input and writes each output once.
Attention is the memory-efficient kernel's. What torch.compile would fuse is not seen, nor are copies within our
operators.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import logging
import traceback
from collections import Counter
from typing import NamedTuple

import torch

from benchmarks.gpu.models import ACCUMULATION, OURS, TOKENS, VOCABULARIES, Model
from benchmarks.harness import heading, parser, row
from reread.pipeline.estimate.rehearsal import META, Ledger, as_on, step_by_lists
from reread.pipeline.estimate.work import Work, summed
from reread.preprocessing.errors import one_line
from reread.training.assembly import Assembly, resolve
from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    """An operation that wrote memory."""

    kind: str
    line: str
    work: Work


class Counts(Ledger):
    """Notes each operation that writes memory."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Done] = []

    def _note(self, kind: str, work: Work) -> None:
        self.done.append(Done(kind, line(), work))


def line() -> str:
    """The line of the project that runs, or in the backward pass the one whose gradient is computed."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT / "training") and frame.name != "_train_step":
            return f"{path.relative_to(ROOT)}:{frame.lineno}"
    node = torch._C._current_autograd_node()
    return f"backward of {node.name()}" if node else "elsewhere"


def count(model: Model, kernels: str, precision: torch.dtype = torch.bfloat16) -> tuple[Counts, dict[str, float]]:
    """A step of `model`, and its figures: launches, bytes a token, bytes a parameter of the update."""
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[precision]
    settings = model.settings(Path("unused"), name, TOKENS // model.length, False)
    settings = settings.model_copy(update={"kernels": kernels, "compile": False})
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    resolved = resolve(settings, VOCABULARIES[model.recipe], None, special)
    counts = Counts()
    with counts, as_on("gpu", counts):
        assembly = Assembly(resolved, Mesh(device=META), precision)
        step_by_lists(assembly.optimizer)
        counts.done.clear()
        pass_on(assembly, settings)
        seen = len(counts.done)
        assembly.update(1e-4, 1.0)
    whole, update = (summed([one.work for one in done]) for done in (counts.done, counts.done[seen:]))
    return counts, {
        "launches": whole.launches,
        "of the update": update.launches,
        "bytes a token": whole.bytes / (ACCUMULATION * TOKENS),
        "bytes a parameter of the update": update.bytes / sum(one.numel() for one in assembly.model.parameters()),
    }


def pass_on(assembly: Assembly, settings: TrainSettings) -> None:
    """The micro-batches of a step, and the gradient's norm."""
    objective, buckets = assembly.objective, assembly.buckets
    rows = settings.data.blank(settings.data.lanes(settings.global_batch))
    buckets.zero()
    for loss, _, is_last in objective.losses(rows, dict.fromkeys(objective.counted, 1.0), 0):
        if is_last:
            buckets.reduce_as_ready()
        if loss is not None:
            loss.backward()
    buckets.finish()
    buckets.squared_norm()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=[model.name for model in OURS], metavar="MODEL")
    arguments.add_argument("--kernels", nargs="+", choices=("auto", "plain"), default=["auto", "plain"])
    arguments.add_argument("--precision", choices=("bf16", "fp16"), default="bf16")
    arguments.add_argument("--lines", type=int, default=0, help="the lines that move most bytes")
    options = arguments.parse_args()
    logging.disable()
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    names = ["launches", "of the update", "bytes a token", "bytes a parameter of the update"]
    heading("model", "train.kernels", *names)
    details = []
    for model in OURS:
        for kernels in options.kernels if not options.only or model.name in options.only else ():
            counts, figures = count(model, kernels, precision)
            row(model.name, kernels, *(f"{figures[name]:,.0f}" for name in names))
            details.append((f"{model.name}, {kernels}", counts))
    for title, counts in details if options.lines else ():
        print(f"\n{title}\n")
        heading("line", "launches", "GB")
        size, number = Counter[str](), Counter[str]()
        for one in counts.done:
            size[f"{one.line} ({one.kind})"] += one.work.bytes
            number[f"{one.line} ({one.kind})"] += one.work.launches
        for name, moved in size.most_common(options.lines):
            row(name, number[name], f"{moved / 1e9:.2f}")


if __name__ == "__main__":
    main()
