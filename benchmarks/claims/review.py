"""RAN's memory review and the residual of its cell (eq. 6-9)."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.experiment import Claim, Condition, Experiment, plain, write_corpus
from benchmarks.claims.positions import rows
from benchmarks.claims.questions import ANSWERS, FREE, VALUES, question
from benchmarks.claims.recurrence import KEPT, NO_DROPOUT

WINDOW, NAMES, FILLER = 4, 8, 16
VOCABULARY = FREE + NAMES + FILLER


def write(folder: Path, seed: int, text: str, names: int = NAMES) -> None:
    """Rows of windows of 4 tokens: one for each name holds it and its value, the last asks for the values of four."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        ids = FREE + NAMES + generator.integers(0, FILLER, (names + 1, WINDOW))
        order, values = generator.permutation(names), generator.integers(0, ANSWERS, names)
        ids[:-1, 0], ids[:-1, 1] = FREE + order, VALUES + values
        asked = generator.permutation(names)[:WINDOW]
        ids[-1] = question(values[asked], order[asked])
        return ids.reshape(-1)

    splits = {"train": 20_000, "validation": 1000}
    write_corpus(folder, {name: plain([document() for _ in range(n)]) for name, n in splits.items()}, VOCABULARY)


def sides(steps: int) -> dict[str, dict[str, Any]]:
    data = rows((NAMES + 1) * WINDOW - 2, special_tokens=False) | {"masking": KEPT}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_size": 16, "num_hidden_layers": 1}
    windows = {"window_size": WINDOW, "min_window_size": 1, "initializer_range": 0.1}
    common = {"type": "ran", **sizes, **windows, **NO_DROPOUT}
    changes: dict[str, dict[str, Any]] = {
        "full": {},
        "without review": {"memory_review": False},
        "without residual": {"cell_residual": "none"},
    }
    return {
        name: {
            "model": {**common, **changed},
            "objective": "asked_rows",
            "data": data,
            "steps": steps,
            "global_batch": 32,
            "optimizer": {},
        }
        for name, changed in changes.items()
    }


def parts(steps: int) -> dict[str, dict[str, Any]]:
    """Layers, windows and positions, each changed alone."""
    full = sides(steps)["full"]
    changes: dict[str, dict[str, Any]] = {
        "1 layer, window of 4": {},
        "2 layers": {"num_hidden_layers": 2},
        "3 layers": {"num_hidden_layers": 3},
        "window of 6": {"window_size": 6},
        "window of 12": {"window_size": 12},
        "without rotary positions": {"rotary": False},
    }
    return {name: {**full, "model": {**full["model"], **changed}} for name, changed in changes.items()}


PARTS = Experiment(
    "ran-parts",
    "The same text read with other depths and windows, and without positions; larger windows hold several names",
    write,
    parts(500),
    {"accuracy": "accuracy"},
    (
        Claim(
            "More layers do no worse",
            "RAN, 4.5.2",
            (Condition("2 layers", "accuracy", -0.05, less=("1 layer, window of 4", "accuracy")),),
        ),
    ),
    "",
    by_default=False,
)

REVIEW = Experiment(
    "review",
    "RAN, 1 layer x 64, windows of 4 tokens: 8 of them hold a name and its value, the ninth asks for four",
    write,
    sides(500),
    {"accuracy": "accuracy"},
    (
        Claim(
            "Memory review lets a token find what any window before it holds",
            "RAN, eq. 7-9, Table 4",
            (Condition("full", "accuracy", 0.9), Condition("without review", "accuracy", 0.5, above=False)),
        ),
        Claim(
            "The residual of the cell helps to carry what windows hold",
            "RAN, eq. 6, Table 4",
            (Condition("full", "accuracy", 0.05, less=("without residual", "accuracy")),),
        ),
    ),
    "",
)
