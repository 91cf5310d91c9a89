"""What a side of the benchmark is given, and what it finds."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import STEPS_ALONE


class Sizes(NamedTuple):
    folds: int = 5
    seeds: int = 3
    batch: int = 32
    rate: float = 1e-4
    article_epochs: int = 10
    review_epochs: int = 2
    steps: int | None = None
    """Of a fine-tuning; None: as many as its epochs have."""
    short: int = 512
    """Tokens that the encoder reads of an article, special tokens included; its positions end there."""
    long: int = 2048
    """Tokens that Longformer and ERNIE-Doc read."""
    window: int = 256
    review: int = 256
    book_steps: int = 1500
    book_rows: int = 64
    book_tokens: int = 128
    book_rate: float = 2e-4
    held_out_rows: int = 2048


TOY = Sizes(
    folds=2,
    seeds=1,
    batch=4,
    steps=2,
    short=64,
    long=512,
    window=32,
    review=32,
    book_steps=3,
    book_rows=4,
    book_tokens=32,
    held_out_rows=32,
)


class Job(NamedTuple):
    """What one process does."""

    data: Path
    unpacked: Path
    """The folder with the encoder and the corpus."""
    sizes: Sizes
    kernels: str
    """`train.kernels` of our sides; empty: as it is."""
    repeats: Sequence[int]
    """Folds or seeds, from 0."""

    @property
    def encoder(self) -> Path:
        return self.unpacked / "encoder"

    @property
    def run(self) -> dict[str, Any]:
        """Settings of all our runs."""
        kernels = {"kernels": self.kernels} if self.kernels else {}
        return {**STEPS_ALONE, "name": "run", "log_every": 50, **kernels}


Figures = dict[str, float]
Found = Iterator[tuple[str, int, Figures]]
"""(row of the table, fold or seed, figures in points or nats)."""
