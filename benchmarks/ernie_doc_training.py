"""ERNIE-Doc through the real task: what memory, long documents and the skim cost in a training step.

    python benchmarks/ernie_doc_training.py                 # on one GPU: ernie-doc-base, segments of 512
    python benchmarks/ernie_doc_training.py --segment 128   # on CPU: a small one, fp32, CPU seconds of one thread

Three tables. Time is of forward, backward and LAMB's step, batches already drawn; the settings of a table take turns,
round after round, and what they did is divided by what it took. "tokens" are those learned from; skimmed ones do not
count.

1. Memory of 0, 128 and 512 slots.
2. Documents of 1 to 16 segments, each read to its end by one lane: the time of a document grows as its length, and
   peak memory stays. That is what a step adds to weights and optimiser; on CPU, what autograd saves for the backward
   pass, weights included.
3. With and without retrospective feed. Lanes are twice as many with it and half of them skim, so a step learns from
   as many rows; the skim is one forward pass beside forward and backward, so a third more at best.

The corpus is random ids, so the losses mean nothing.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from preprocessing.corpus import SENTENCE_END, Manifest, ShardWriter
from training.config import TrainSettings
from training.metrics import peak_flops
from training.parallel.mesh import Mesh
from training.trainer import Trainer
from training.window import Window

CUDA = torch.cuda.is_available()
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
VOCABULARY = 50265 if CUDA else 8000
MEMORIES = (0, 128, 512)
SEGMENTS = (1, 2, 4, 8, 16)


def random_corpus(folder: Path, tokens: int) -> Path:
    """Documents of as many tokens each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    flags = np.zeros(tokens, np.uint8)
    flags[::25] |= SENTENCE_END
    for _ in range(256):
        writer.add(rng.integers(5, VOCABULARY, tokens, np.uint16), flags)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = {"fingerprint": "random", "type": "wordpiece", "vocab_size": VOCABULARY, **special}
    Manifest(tokenizer=tokenizer, dtype="uint16", shards=[writer.close()]).write(folder)
    return folder


class Side:
    """A run whose steps are timed one by one."""

    def __init__(self, folder: Path, options: argparse.Namespace, segments: int, memory: int, skim: bool) -> None:
        corpus = folder / f"corpus-{segments}"
        if not corpus.exists():
            random_corpus(corpus, segments * (options.segment - 2))
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
        }
        self.trainer = Trainer(
            TrainSettings.parse(values, "benchmark"), folder, Mesh(device=torch.device("cuda" if CUDA else "cpu"))
        )
        self.segments = segments
        self.batches = self.trainer.objective.batches(0)
        self.seconds: list[float] = []
        self.rows: list[float] = []
        self.tokens: list[float] = []
        self.flops: list[float] = []
        self.peak = 0.0
        """Megabytes, of `peak_megabytes`."""

    def steps(self, count: int, timed: bool = True) -> None:
        trainer = self.trainer
        for _ in range(count):
            batch = next(self.batches)
            window = Window(trainer.assembly.spec, trainer.assembly.config, trainer.objective, trainer.step)
            begin = now()
            trainer._train_step(batch, window)
            seconds = now() - begin
            trainer.step += 1
            totals = trainer.objective.totals_of(window.sums)
            if timed and totals["rows"]:
                length = trainer.settings.data.sequence_length
                self.seconds.append(seconds)
                self.rows.append(totals["rows"])
                self.tokens.append(totals["tokens"])
                self.flops.append(trainer.assembly.spec.flops(trainer.assembly.config, length, totals))

    def measure_peak(self, count: int) -> None:
        """Over `count` steps, so that every segment of a document is among them."""
        with peak_megabytes() as peak:
            self.steps(count, timed=False)
        self.peak = peak[0]

    def rate(self, amounts: list[float]) -> float:
        """Per second: all that was done over all the time, so that steps with more rows weigh more."""
        return sum(amounts) / sum(self.seconds)

    def close(self) -> None:
        self.batches.close()


def now() -> float:
    """Seconds: of this thread's CPU, which neighbours on the machine disturb least; of the clock with a GPU."""
    if not CUDA:
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def peak_megabytes() -> Iterator[list[float]]:
    """What is allocated at most; on CPU, what autograd holds at most for the backward passes."""
    result = [0.0]
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield result
        result[0] = (torch.cuda.max_memory_allocated() - before) / 2**20
        return
    held: dict[int, int] = {}
    total = 0

    class Saved:
        """A tensor that autograd holds; a storage that several share is counted once."""

        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal total
            self.tensor, self.storage = tensor, tensor.untyped_storage()
            place = self.storage.data_ptr()
            held[place] = held.get(place, 0) + 1
            total += self.storage.nbytes() if held[place] == 1 else 0
            result[0] = max(result[0], total / 2**20)

        def __del__(self) -> None:
            nonlocal total
            place = self.storage.data_ptr()
            held[place] -= 1
            total -= 0 if held[place] else self.storage.nbytes()

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        yield result


def run(sides: list[Side], options: argparse.Namespace) -> None:
    """The sides take turns."""
    for side in sides:
        side.steps(options.warm, timed=False)
    for _ in range(options.rounds):
        for side in sides:
            side.steps(options.steps)
    for side in sides:
        side.measure_peak(max(side.segments, 4))
        side.close()


def mfu(side: Side) -> str:
    peak = peak_flops(None, torch.device("cuda")) if CUDA else float("nan")
    return f"{100 * side.rate(side.flops) / peak:.1f} %" if CUDA else "-"


def table(columns: tuple[str, ...], lines: list[tuple[Any, ...]]) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segment", type=int, default=512 if CUDA else 128, help="tokens of a segment")
    parser.add_argument("--rows", type=int, default=32 if CUDA else 4, help="rows a step that are learned from")
    parser.add_argument("--micro-batch", type=int, default=32 if CUDA else 4)
    parser.add_argument("--precision", default="bf16" if CUDA else "fp32")
    parser.add_argument("--steps", type=int, default=8 if CUDA else 4, help="steps of one turn")
    parser.add_argument("--rounds", type=int, default=5 if CUDA else 3)
    parser.add_argument("--warm", type=int, default=3 if CUDA else 1, help="steps before that are not timed")
    options = parser.parse_args()
    if not CUDA:
        torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if CUDA else "CPU, one thread"
    print(f"ERNIE-Doc {'base' if CUDA else SMALL}, segments of {options.segment}, {options.rows} rows, {device}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        sides = [Side(place, options, 4, memory, False) for memory in MEMORIES]
        run(sides, options)
        table(
            ("memory", "tokens/s", "against no memory", "peak MB", "MFU"),
            [
                (
                    memory,
                    f"{side.rate(side.tokens):,.0f}",
                    f"{side.rate(side.tokens) / sides[0].rate(sides[0].tokens):.2f}",
                    f"{side.peak:.0f}",
                    mfu(side),
                )
                for memory, side in zip(MEMORIES, sides, strict=True)
            ],
        )

        sides = [Side(place, options, segments, 128, False) for segments in SEGMENTS]
        run(sides, options)
        table(
            ("segments", "s/document", "against one segment", "against its number", "tokens/s", "peak MB"),
            [
                (
                    segments,
                    f"{segments / side.rate(side.rows):.3f}",
                    f"{segments * (ratio := sides[0].rate(sides[0].rows) / side.rate(side.rows)):.2f}",
                    f"{ratio:.2f}",
                    f"{side.rate(side.tokens):,.0f}",
                    f"{side.peak:.0f}",
                )
                for segments, side in zip(SEGMENTS, sides, strict=True)
            ],
        )

        sides = [Side(place, options, 4, 128, skim) for skim in (False, True)]
        run(sides, options)
        table(
            ("retrospective feed", "learning tokens/s", "time a token learned", "peak MB", "MFU"),
            [
                (
                    name,
                    f"{side.rate(side.tokens):,.0f}",
                    f"{sides[0].rate(sides[0].tokens) / side.rate(side.tokens):.2f}",
                    f"{side.peak:.0f}",
                    mfu(side),
                )
                for name, side in zip(("without", "with"), sides, strict=True)
            ],
        )


if __name__ == "__main__":
    main()
