"""Padding that a training step computes, and what is left of it in trimmed micro-batches of similar rows.

    python benchmarks/data/padding.py CORPUS... [--lengths 128 512] [--steps 8] [--rounds 5]

CORPUS are folders made by `reread preprocess`. The first table has the share of computed slots that hold text:
untrimmed, and as objectives cut and trim a step's rows (training/data/rows/trimming.py). Rows and micro-batch are those
of one process: 180 x 60 as nezha-base has them, 32 x 16 as a small run; segments 64 x 16 as ernie-doc-base, beside as
many that skim. "evenness" is the mean of the slots that 8 processes compute in a step, over the most: the others wait
for that one.

The second table has CPU milliseconds of a training step of small NEZHAs (layers x width, rows x micro-batch), the sides
in turns; set OMP_NUM_THREADS=1. They read the same rows, which differ from step to step; medians are compared.
"chosen" is the cost of a pass that a run chooses (pipeline/estimate/passes.py). With `--device cuda` it is nezha-base
on one GPU; `--pass-shares 0.004 0.03 0.1` shows what would be best there.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tempfile
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.harness import heading, in_turns, parser, row, seconds
from benchmarks.trainer_steps import TrainerSteps
from reread.pipeline.estimate.passes import choose_pass_share
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import one_line
from reread.training.config import TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.segments import Segments, SegmentSettings
from reread.training.data.rows.trimming import PASS_SHARE, micro_batches, pieces, trimmed
from reread.training.objectives.objective import Objective

PROCESSES = 8
SIZES = ((180, 60), (32, 16))
SEGMENTS = (64, 16)
TIMED = {"cpu": ((2, 32, 8, 8), (2, 128, 8, 8), (4, 256, 32, 16)), "cuda": ((12, 768, 180, 60),)}
"""Layers, width, rows of a step and of a micro-batch."""
UNTRIMMED, CHOSEN = "untrimmed", "chosen"
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
    """Training steps of one process, one by one."""

    def __init__(self, settings: TrainSettings, run: Path, device: str, pass_share: float | str) -> None:
        self.steps, self.device, self.untrimmed = TrainerSteps(settings, run, device), device, pass_share == UNTRIMMED
        objective, self.passes = self.steps.trainer.objective, 0
        if pass_share == CHOSEN:
            choose = self.steps.trainer.share_by(choose_pass_share)
            objective.pass_share = choose() if choose else PASS_SHARE
        elif isinstance(pass_share, float):
            objective.pass_share = pass_share
        self.share = objective.pass_share
        self.steps.trainer.assembly.model.register_forward_hook(self._count)
        self.window = self.steps.window()

    def _count(self, *_: object) -> None:
        self.passes += 1

    def step(self) -> float:
        """CPU seconds; on a GPU seconds of the clock."""
        batch = next(self.steps.batches)
        with patch.object(Objective, "padding_counts", self.untrimmed):
            return seconds(lambda: self.steps.step(batch, self.window), self.device)


def time_steps(
    corpus: Path, length: int, size: tuple[int, int, int, int], rounds: int, device: str, pass_shares: list[float]
) -> None:
    layers, width, rows, micro_batch = size
    shape = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    values = {
        "model": {
            "type": "nezha",
            **shape,
            "num_attention_heads": 12 if width == 768 else 4,
            "max_relative_position": None,
        },
        "data": {"corpus": corpus, "sequence_length": length},
        "steps": 1000,
        "global_batch": rows,
        "micro_batch": micro_batch,
        "optimizer": {"learning_rate": 1e-4},
        "peak_tflops": 1.0,
    }
    settings = TrainSettings.parse(values, "benchmark")
    with tempfile.TemporaryDirectory() as temporary:
        shares: list[float | str] = [UNTRIMMED, *pass_shares, CHOSEN]
        sides = {str(share): Side(settings, Path(temporary) / str(share), device, share) for share in shares}
        taken = in_turns({name: side.step for name, side in sides.items()}, 1 + rounds)
        for side in sides.values():
            side.steps.batches.close()
    for name, found in taken.items():
        warm, theirs = median(found[1:]), median(taken[UNTRIMMED][1:])
        side, label = sides[name], f"{layers} x {width}, {rows} x {micro_batch}"
        passes = side.passes / (1 + rounds)
        share = "" if side.untrimmed else f"{side.share:.3f}"
        figures = f"{passes:.2f}", f"{1e3 * warm:.1f}", f"{theirs / warm:.2f}x"
        row(corpus.name, length, label, name if share == "" or name == CHOSEN else "", share, *figures)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("corpora", nargs="+", type=Path)
    arguments.add_argument("--lengths", nargs="+", type=int, default=[128, 512])
    arguments.add_argument("--steps", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--pass-shares", nargs="+", type=float, default=[PASS_SHARE])
    options = arguments.parse_args()
    heading("corpus", "data", "length", "rows", "text", "trimmed", "passes", "trimmed", "evenness")
    for folder in options.corpora:
        shares(folder, options.lengths, options.steps)
    if options.rounds:
        print(f"\nThe median of {options.rounds} steps of each side\n")
        heading("corpus", "length", "model, rows", "side", "cost of a pass", "passes", "ms a step", "faster")
        for folder in options.corpora:
            for length in options.lengths:
                for size in TIMED[options.device]:
                    time_steps(folder, length, size, options.rounds, options.device, options.pass_shares)


if __name__ == "__main__":
    main()
