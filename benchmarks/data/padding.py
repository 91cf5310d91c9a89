"""Padding that a training step computes, and what is left of it in trimmed micro-batches of similar rows.

    python benchmarks/data/padding.py CORPUS... [--lengths 128 512] [--steps 8] [--rounds 5]

CORPUS are folders made by `reread preprocess`. The first table has the share of computed slots that hold text:
untrimmed, and as objectives cut and trim a step's rows (training/data/trimming.py). Rows and micro-batch are those of
one process: 180 x 60 as nezha-base has them, 32 x 16 as a small run; segments 64 x 16 as ernie-doc-base, beside as many
that skim. "evenness" is the mean of the slots that 8 processes compute in a step, over the most: the others wait for
that one.

The second table has CPU seconds of a training step of a small NEZHA, 4 x 256, the sides in turns; set
OMP_NUM_THREADS=1. They read the same rows, which differ from step to step, so the means are compared. With
`--device cuda` it is nezha-base on one GPU; `--pass-shares 0.004 0.03 0.1` shows what PASS_SHARE should be there.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.harness import heading, in_turns, parser, row, seconds
from benchmarks.trainer_steps import TrainerSteps
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import one_line
from reread.training.config import TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.rows import trimming
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.segments import Segments, SegmentSettings
from reread.training.data.rows.trimming import micro_batches, pieces, trimmed
from reread.training.objectives.objective import Objective

PROCESSES = 8
SIZES = ((180, 60), (32, 16))
SEGMENTS = (64, 16)
TIMED = {"cpu": (32, 16), "cuda": (180, 60)}
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
UNTRIMMED = "untrimmed"
APART = 8
"""Steps of lanes between two that are counted, in which documents end and others begin."""


class Step(NamedTuple):
    """What one process computes in a step, untrimmed and trimmed."""

    tokens: int
    slots: tuple[int, int]
    passes: tuple[int, int]


def counted(batch: Rows, parts: list[np.ndarray], size: int, keeps_last: bool) -> Step:
    """`parts` of a batch do not share forward passes."""
    mask = batch["attention_mask"]
    cuts = [cut for part in parts for cut in micro_batches(part, mask[part].sum(axis=1), mask.shape[1], size)]
    slots = sum(trimmed({"attention_mask": mask[cut]}, keeps_last=keeps_last)["attention_mask"].size for cut in cuts)
    untrimmed = sum(len(pieces(part, size)) for part in parts)
    return Step(int(mask.sum()), (mask.size, slots), (untrimmed, len(cuts)))


def rows_of(source: Samples, rows: int, size: int, steps: int) -> Iterator[Step]:
    for number in range(steps * PROCESSES):
        batch = source.rows(np.arange(number * rows, (number + 1) * rows))
        yield counted(batch, [np.arange(rows)], size, keeps_last=False)


def segments_of(source: Segments, rows: int, size: int, steps: int) -> Iterator[Step]:
    lanes = source.settings.lanes(rows)
    reading = source.lanes(lanes * PROCESSES, range(lanes * PROCESSES))
    for batch, _ in islice(reading, APART - 1, APART * steps, APART):
        for begin in range(0, lanes * PROCESSES, lanes):
            learns = batch["learns"][begin : begin + lanes]
            mine = {"attention_mask": batch["attention_mask"][begin : begin + lanes]}
            yield counted(mine, [np.flatnonzero(~learns), np.flatnonzero(learns)], size, keeps_last=True)


def report(label: tuple[object, ...], steps: list[Step]) -> None:
    tokens, slots, passes = (np.array(values) for values in zip(*steps, strict=True))
    shares = [f"{tokens.sum() / computed:.3f}" for computed in slots.sum(axis=0)]
    of_steps = slots[:, 1].reshape(-1, PROCESSES)
    evenness = of_steps.mean() / of_steps.max(axis=1).mean()
    row(*label, *shares, *(f"{mean:.1f}" for mean in passes.mean(axis=0)), f"{evenness:.2f}")


def shares(folder: Path, lengths: list[int], steps: int) -> None:
    corpus = Corpus(folder)
    for length in lengths:
        for name, pairs in (("pairs", True), ("one stretch", False)):
            source = Samples(corpus, RowSettings(corpus=folder, sequence_length=length, next_sentence=pairs), 0)
            for rows, size in SIZES:
                label = folder.name, name, length, f"{rows} x {size}"
                report(label, list(rows_of(source, rows, size, steps)))
        segments = Segments(corpus, SegmentSettings(kind="segments", corpus=folder, sequence_length=length), 0)
        label = folder.name, "segments", length, "{} x {}".format(*SEGMENTS)
        report(label, list(segments_of(segments, *SEGMENTS, steps)))


class Side:
    """Training steps of one process, one by one; `pass_share` None: untrimmed."""

    def __init__(self, settings: TrainSettings, run: Path, device: str, pass_share: float | None) -> None:
        self.steps, self.device, self.pass_share = TrainerSteps(settings, run, device), device, pass_share
        self.window = self.steps.window()

    def step(self) -> float:
        """CPU seconds; on a GPU seconds of the clock."""
        batch = next(self.steps.batches)
        untrimmed = patch.object(Objective, "padding_counts", self.pass_share is None)
        with untrimmed, patch.object(trimming, "PASS_SHARE", self.pass_share):
            return seconds(lambda: self.steps.step(batch, self.window), self.device)


def time_steps(corpus: Path, length: int, rounds: int, device: str, pass_shares: list[float]) -> None:
    values = {
        "model": {"type": "nezha", **(BASE if device == "cuda" else SMALL), "max_relative_position": None},
        "data": {"corpus": corpus, "sequence_length": length},
        "steps": 1000,
        "global_batch": TIMED[device][0],
        "micro_batch": TIMED[device][1],
        "optimizer": {"learning_rate": 1e-4},
        "peak_tflops": 1.0,
    }
    settings = TrainSettings.parse(values, "benchmark")
    with tempfile.TemporaryDirectory() as temporary:
        shares = {UNTRIMMED: None} | {f"trimmed, {share:.4g} of a pass": share for share in pass_shares}
        sides = {name: Side(settings, Path(temporary) / name, device, share) for name, share in shares.items()}
        taken = in_turns({name: side.step for name, side in sides.items()}, 1 + rounds)
        for side in sides.values():
            side.steps.batches.close()
    for name, found in taken.items():
        warm, theirs = sum(found[1:]), sum(taken[UNTRIMMED][1:])
        row(corpus.name, length, name, f"{warm / rounds:.3f}", f"{theirs / warm:.2f}x")


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("corpora", nargs="+", type=Path)
    arguments.add_argument("--lengths", nargs="+", type=int, default=[128, 512])
    arguments.add_argument("--steps", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--pass-shares", nargs="+", type=float, default=[trimming.PASS_SHARE])
    options = arguments.parse_args()
    heading("corpus", "data", "length", "rows", "text", "trimmed", "passes", "trimmed", "evenness")
    for folder in options.corpora:
        shares(folder, options.lengths, options.steps)
    if options.rounds:
        rows, size = TIMED[options.device]
        print(f"\n{rows} rows, micro-batches of {size}, the mean of {options.rounds} steps of each side\n")
        heading("corpus", "length", "side", "seconds a step", "faster")
        for folder in options.corpora:
            for length in options.lengths:
                time_steps(folder, length, options.rounds, options.device, options.pass_shares)


if __name__ == "__main__":
    main()
