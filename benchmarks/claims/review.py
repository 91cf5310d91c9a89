"""RAN's memory review, the residual of its cell, its depth and its windows (eq. 6-9)."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.experiment import Claim, Condition, Experiment, plain
from benchmarks.claims.positions import FASTER, rows, write_characters
from benchmarks.claims.questions import ANSWERS, FREE, VALUES, question
from benchmarks.claims.recurrence import KEPT, NO_DROPOUT
from benchmarks.random_corpus import write_corpus

WINDOW, NAMES = 2, 6
VOCABULARY = FREE + 8


def write(folder: Path, seed: int, text: str, names: int = NAMES, documents: int = 4000) -> None:
    """Rows of names, each followed by its value, and then of questions for the values of all, in another order."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        order, values = generator.permutation(names), generator.integers(0, ANSWERS, names)
        asked = generator.permutation(names)
        held = np.stack([FREE + order, VALUES + values], axis=1).reshape(-1)
        return np.concatenate([held, question(values[asked], order[asked])])

    splits = {"train": documents, "validation": 1000}
    write_corpus(folder, {name: plain([document() for _ in range(n)]) for name, n in splits.items()}, VOCABULARY)


def ran(steps: int, names: int = NAMES, **changed: Any) -> dict[str, Any]:
    """Heads half as wide as the hidden states (the paper's are as wide); with heads of 16 review is learned late or
    not at all."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "head_size": 64, "num_hidden_layers": 1}
    windows = {"window_size": WINDOW, "min_window_size": 1, "initializer_range": 0.1}
    return {
        "model": {"type": "ran", **sizes, **windows, **NO_DROPOUT, **changed},
        "objective": "asked_rows",
        "data": rows(3 * names - 2, special_tokens=False) | {"masking": KEPT},
        "steps": steps,
        "global_batch": 32,
        "optimizer": {},
    }


REVIEW = Experiment(
    "review",
    "RAN, 1 layer x 128, windows of 2 tokens: 6 of them hold a name and its value, three more ask for the values",
    write,
    {"with review": ran(100), "without review": ran(100, memory_review=False)},
    {"accuracy": "accuracy"},
    (
        Claim(
            "Memory review lets a token find what any window before it holds",
            "RAN, eq. 7-9, Table 4",
            (Condition("with review", "accuracy", 0.9), Condition("without review", "accuracy", 0.5, above=False)),
        ),
    ),
    "",
)

ONE_LAYER = "1 layer, windows of 2"


def no_worse(*sides: str) -> tuple[Condition, ...]:
    return tuple(Condition(side, "accuracy", -0.05, less=(ONE_LAYER, "accuracy")) for side in sides)


def helps(without: str) -> tuple[Condition, ...]:
    return (Condition(ONE_LAYER, "accuracy", 0, less=(without, "accuracy")),)


PARTS = Experiment(
    "ran-parts",
    "The text of `review` read with other depths, and without the cell's residual or positions",
    write,
    {
        ONE_LAYER: ran(100),
        "2 layers": ran(300, num_hidden_layers=2),
        "3 layers": ran(300, num_hidden_layers=3),
        "without residual": ran(100, cell_residual="none"),
        "without rotary positions": ran(100, rotary=False),
    },
    {"accuracy": "accuracy"},
    (
        Claim("More layers do no worse", "RAN, 4.5.2", no_worse("2 layers", "3 layers")),
        Claim(
            "The residual of the cell helps to carry what windows hold",
            "RAN, eq. 6, Table 4",
            helps("without residual"),
        ),
        Claim("Rotary positions help", "RAN, Table 4", helps("without rotary positions")),
    ),
    "",
    by_default=False,
)

SMALLER = "windows of 8"


def on_text(steps: int, window: int) -> dict[str, Any]:
    """RAN on masked characters of natural text."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_size": 32, "num_hidden_layers": 1}
    windows = {"window_size": window, "min_window_size": 1, "initializer_range": 0.1}
    return {
        "model": {"type": "ran", **sizes, **windows, **NO_DROPOUT},
        "data": rows(62, special_tokens=False),
        "steps": steps,
        "global_batch": 16,
        "optimizer": FASTER,
    }


WINDOWS = Experiment(
    "windows",
    "RAN, 1 layer x 64, 1,500 steps on masked characters of natural text in rows of 64; held-out loss in nats",
    write_characters,
    {SMALLER: on_text(1500, 8), "windows of 64": on_text(1500, 64)},
    {"loss": "loss"},
    (
        Claim(
            "Larger windows do no worse",
            "RAN, 4.5",
            (Condition(SMALLER, "loss", 0, less=("windows of 64", "loss")),),
        ),
    ),
    "",
    reads_text=True,
    by_default=False,
)
