"""An experiment: models that differ in one thing, trained on a corpus made for a claim, and what the claim predicts."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import open_text
from benchmarks.random_corpus import Documents
from reread.training.config import TrainSettings
from reread.training.evaluation import evaluate_run
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer

Figures = dict[str, float]

SEEDS = range(200, 208)
"""Those that decide: nothing was tuned on them. Settings are tried with seeds from 100 on."""
LEVEL = 0.05
"""Of the sign test that decides a condition."""


def plain(documents: Sequence[NDArray[Any]]) -> Documents:
    """Documents without marks of words and sentences."""
    return [(ids, np.zeros(len(ids), np.uint8)) for ids in documents]


@dataclass(frozen=True)
class Condition:
    """A figure of a side, perhaps less that of another, must be above or below a number."""

    side: str
    figure: str
    bound: float
    above: bool = True
    less: tuple[str, str] | None = None
    """Side and figure that are subtracted."""

    def value(self, figures: Mapping[str, Figures]) -> float:
        value = figures[self.side][self.figure]
        return value if self.less is None else value - figures[self.less[0]][self.less[1]]

    def margin(self, figures: Mapping[str, Figures]) -> float:
        """How far the value is on the side of the bound that the claim predicts."""
        return (self.value(figures) - self.bound) * (1 if self.above else -1)

    def __str__(self) -> str:
        less = f" less {self.less[0]} ({self.less[1]})" if self.less else ""
        return f"{self.side} ({self.figure}){less} {'>' if self.above else '<'} {self.bound:g}"


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str
    conditions: tuple[Condition, ...]
    """It holds if all of them are met, and does not if one is contradicted."""


def signs(margins: Sequence[float]) -> int:
    """1 if a two-sided sign test finds the median of `margins` [seeds] above 0, -1 if below, 0 if it cannot tell.

    With eight seeds all must agree, with ten nine. A margin of 0 counts for neither side.
    """
    above, below = sum(one > 0 for one in margins), sum(one < 0 for one in margins)
    count, most = above + below, max(above, below)
    chance = 2 * sum(comb(count, agreeing) for agreeing in range(most, count + 1)) / 2**count
    return 0 if len(margins) < len(SEEDS) or chance > LEVEL else 1 if above > below else -1


def evaluated(run: Path, settings: TrainSettings) -> Figures:
    return evaluate_run(run, settings)


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str
    """What is trained on what, for the table."""
    write: Callable[[Path, int, str], None]
    """(folder, seed, natural text): write the corpus."""
    sides: Mapping[str, Mapping[str, Any]]
    """Name -> what a `train` section has beside `COMMON`."""
    points: Mapping[str, str]
    """Label of a point of the picture -> figure of `measure`; conditions name labels."""
    claims: tuple[Claim, ...]
    axis: str
    measure: Callable[[Path, TrainSettings], Figures] = evaluated
    reads_text: bool = False
    by_default: bool = True

    def settings(self, side: str, corpus: Path, seed: int) -> TrainSettings:
        values = json.loads(json.dumps({**COMMON, **self.sides[side], "seed": seed}))
        values["data"]["corpus"] = str(corpus)
        values["optimizer"] = COMMON["optimizer"] | values["optimizer"]
        return TrainSettings.parse(values, f"{self.name}, {side}")

    def key(self, side: str, text: str) -> str:
        """A hash of what a result depends on, without the seed and the code."""
        values = [self.sides[side], md5(text.encode()).hexdigest() if self.reads_text else ""]
        return md5(json.dumps(values).encode()).hexdigest()[:8]

    def run(self, side: str, seed: int, out: Path, text: str = "") -> Figures:
        """Train a side and measure it: its figures by label. Its corpus stays in `out`, its run does not."""
        corpus, run = out / f"corpus-{self.name}-{seed}", out / f"run-{self.name}-{self.key(side, text)}-{seed}"
        self.write(corpus, seed, text)
        settings = self.settings(side, corpus, seed)
        run.mkdir(parents=True, exist_ok=True)
        Trainer(settings, run, Mesh()).train()
        found = self.measure(run, settings)
        shutil.rmtree(run)
        return {label: found[figure] for label, figure in self.points.items() if figure in found}


COMMON: dict[str, Any] = {
    "optimizer": {"name": "adam", "learning_rate": 0.002, "betas": [0.9, 0.98], "weight_decay": 0.0},
    "schedule": {"warmup_steps": 50},
    "micro_batch": 256,
    "log_every": 1 << 30,
    "validate_every": 1 << 30,
    "validation_batches": 1,
    "checkpoint": {"every_steps": 1 << 30},
    "peak_tflops": 1.0,
}
"""Adam without dropout and without anything tuned; no validation but the last step's."""


def read_text(paths: Sequence[Path]) -> str:
    """The text of files, .txt or .txt.xz, in the order of their names."""
    parts = []
    for path in sorted(paths):
        with open_text(path) as file:
            parts.append(file.read())
    return "\n".join(parts)
