"""Sizes that all sides have in common."""

from pathlib import Path

from benchmarks.training.finetuning import Finetuning

LENGTHS = (128, 512)
TOKENS = 1024
"""Tokens of a training step."""
LAYERS, WIDTH, HEADS, INNER = 4, 256, 4, 1024
RATE = 1e-4

WINDOW, BATCH = 128, 4
"""Tokens of a row that is loaded, and rows of a step."""
STEPS, RESUMED = 4000, 100_000
OPENINGS = 5
"""On a cold disk, for the first batch."""
POOL_TOKENS = 1 << 21
"""About as many as the steps read."""


def finetuning(folder: Path) -> Finetuning:
    files = folder / "runs" / "peers" / "export", folder / "train.tsv", folder / "dev.tsv"
    return Finetuning(*files, length=256, epochs=6, batch=32, rate=3e-4)
