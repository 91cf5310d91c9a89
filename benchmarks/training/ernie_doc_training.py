"""ERNIE-Doc in the trainer: what memory, long documents and the skim cost in a training step.

    python benchmarks/training/ernie_doc_training.py                 # on one GPU: ernie-doc-base, segments of 512
    python benchmarks/training/ernie_doc_training.py --segment 128   # on CPU: a small model, fp32, one thread

Three tables. Time is of forward, backward and LAMB's step, batches already drawn; the settings of a table take turns,
round after round, and what they did is divided by what it took. "tokens" are those learned from, without skimmed ones.
Peak memory is what the tensors of some steps take at most beside weights and optimiser.

1. Memory of 0, 128 and 512 slots.
2. Documents of 1 to 16 segments, each read to its end by one lane: the time of a document grows as its length, and
   peak memory does not.
3. With and without retrospective feed. Lanes are twice as many with it and half of them skim, so a step learns from
   as many rows; the skim is one forward pass beside forward and backward, so a third more at best.

The corpus is random ids, so the losses mean nothing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import tempfile
from functools import partial
from typing import Any

import torch

from benchmarks.harness import allocated, heading, in_turns, parser, row, seconds
from benchmarks.random_corpus import random_corpus
from benchmarks.trainer_steps import TrainerSteps
from reread.preprocessing.errors import one_line
from reread.training.config import TrainSettings
from reread.training.run.metrics import peak_flops

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
VOCABULARY = 50265 if CUDA else 8000


class Side:
    """A run whose steps are timed one by one."""

    def __init__(self, folder: Path, options: argparse.Namespace, segments: int, memory: int, skim: bool) -> None:
        corpus = folder / f"corpus-{segments}"
        if not corpus.exists():
            random_corpus(corpus, VOCABULARY, [segments * (options.segment - 2)] * 256)
        values = {
            "model": {
                "type": "ernie_doc",
                **(BASE if CUDA else SMALL),
                "max_position_embeddings": options.segment,
                "memory_length": memory,
            },
            "data": {
                "kind": "segments",
                "corpus": corpus,
                "sequence_length": options.segment,
                "retrospective": skim,
                "masking": {"strategy": "token"},
            },
            "steps": 1000,
            "global_batch": options.rows,
            "micro_batch": options.micro_batch,
            "optimizer": {"learning_rate": 1e-4},
            "precision": options.precision,
            **({} if CUDA else {"peak_tflops": 1.0}),
        }
        self.trainer = TrainerSteps(TrainSettings.parse(values, "benchmark"), folder, DEVICE)
        self.segments = segments
        self.seconds = self.rows = self.tokens = self.flops = 0.0
        self.peak_megabytes = 0.0

    def steps(self, count: int, timed: bool = True) -> None:
        for _ in range(count):
            batch, window = next(self.trainer.batches), self.trainer.window()
            taken = seconds(partial(self.trainer.step, batch, window), DEVICE)
            totals = self.trainer.totals(window)
            if timed and totals["rows"]:
                self.seconds += taken
                self.rows += totals["rows"]
                self.tokens += totals["tokens"]
                self.flops += self.trainer.flops(totals)

    def finish(self) -> None:
        """Measure memory over all segments of a document."""
        _, most, _ = allocated(lambda: self.steps(max(self.segments, 4), timed=False), DEVICE)
        self.peak_megabytes = most / 2**20
        self.trainer.batches.close()

    @property
    def speed(self) -> float:
        """Tokens a second: all of them over all the time, so that steps with more rows weigh more."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> str:
        return f"{100 * self.flops / self.seconds / peak_flops(None, torch.device('cuda')):.1f} %" if CUDA else "-"


def run(sides: dict[Any, Side], options: argparse.Namespace) -> dict[Any, Side]:
    """The sides, after their turns."""
    for side in sides.values():
        side.steps(options.warm, timed=False)
    in_turns({name: partial(side.steps, options.steps) for name, side in sides.items()}, options.rounds)
    for side in sides.values():
        side.finish()
    return sides


def memory_table(folder: Path, options: argparse.Namespace) -> None:
    sides = run({memory: Side(folder, options, 4, memory, False) for memory in options.memories}, options)
    heading("memory", "tokens/s", "against the first", "peak MB", "MFU")
    first = next(iter(sides.values()))
    for memory, side in sides.items():
        cells = (f"{side.speed:,.0f}", f"{side.speed / first.speed:.2f}", f"{side.peak_megabytes:.0f}")
        row(memory, *cells, side.mfu)


def length_table(folder: Path, options: argparse.Namespace) -> None:
    sides = run({segments: Side(folder, options, segments, 128, False) for segments in options.segments}, options)
    heading("segments", "s/document", "against the first", "against its number", "tokens/s", "peak MB")
    first = next(iter(sides.values()))
    for segments, side in sides.items():
        a_segment = side.seconds / side.rows
        relative = a_segment / (first.seconds / first.rows)
        times = (f"{segments * a_segment:.3f}", f"{segments / first.segments * relative:.2f}", f"{relative:.2f}")
        row(segments, *times, f"{side.speed:,.0f}", f"{side.peak_megabytes:.0f}")


def skim_table(folder: Path, options: argparse.Namespace) -> None:
    sides = run({skim: Side(folder, options, 4, 128, skim) for skim in (False, True)}, options)
    heading("retrospective feed", "learning tokens/s", "time a token learned", "peak MB", "MFU")
    for skim, side in sides.items():
        cells = (f"{side.speed:,.0f}", f"{sides[False].speed / side.speed:.2f}", f"{side.peak_megabytes:.0f}")
        row("with" if skim else "without", *cells, side.mfu)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--segment", type=int, default=512 if CUDA else 128, help="tokens of a segment")
    arguments.add_argument("--rows", type=int, default=32 if CUDA else 4, help="rows a step that are learned from")
    arguments.add_argument("--micro-batch", type=int, default=32 if CUDA else 4)
    arguments.add_argument("--precision", default="bf16" if CUDA else "fp32")
    arguments.add_argument("--memories", type=int, nargs="+", default=[0, 128, 512])
    arguments.add_argument("--segments", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="of a document")
    arguments.add_argument("--steps", type=int, default=8 if CUDA else 4, help="steps of one turn")
    arguments.add_argument("--rounds", type=int, default=5 if CUDA else 3)
    arguments.add_argument("--warm", type=int, default=3 if CUDA else 1, help="steps before that are not timed")
    options = arguments.parse_args()
    if not CUDA:
        torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if CUDA else "CPU, one thread"
    print(f"ERNIE-Doc {'base' if CUDA else SMALL}, segments of {options.segment}, {options.rows} rows, {device}")
    with tempfile.TemporaryDirectory() as folder:
        for table in (memory_table, length_table, skim_table):
            print()
            table(Path(folder), options)


if __name__ == "__main__":
    main()
