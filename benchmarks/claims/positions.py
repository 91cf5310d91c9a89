"""NEZHA's positions beyond the trained length (section 2.2)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.experiment import Claim, Condition, Experiment, Figures, plain
from benchmarks.claims.recurrence import NO_DROPOUT
from benchmarks.random_corpus import write_corpus
from reread.training.config import TrainSettings
from reread.training.evaluation import evaluate_run

CHARACTERS = 59
TRAINED = 32
LENGTHS = (32, 64, 128)
FASTER = {"learning_rate": 0.004}


def characters(text: str) -> NDArray[np.int64]:
    """The text's most frequent characters, lower-cased, as ids from 5 on; others are [UNK]."""
    points = np.array([ord(character) for character in " ".join(text.lower().split())])
    found, counts = np.unique(points, return_counts=True)
    frequent = np.sort(found[np.argsort(-counts, kind="stable")[:CHARACTERS]])
    places = np.searchsorted(frequent, points).clip(max=len(frequent) - 1)
    return np.where(frequent[places] == points, 5 + places, 1)


def write_characters(folder: Path, seed: int, text: str) -> None:
    """The text as two documents: its last tenth, 40,000 characters at most, is held out. Every seed has the same."""
    ids = characters(text)
    held_out = min(40_000, len(ids) // 10)
    splits = {"train": plain([ids[:-held_out]]), "validation": plain([ids[-held_out:]])}
    write_corpus(folder, splits, 5 + CHARACTERS)


def nezha(**positions: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 256}
    longest = {"max_position_embeddings": LENGTHS[-1] + 2}
    return {"type": "nezha", "initializer_range": 0.1, **sizes, **longest, **NO_DROPOUT, **positions}


def rows(length: int, strategy: str = "token", **more: Any) -> dict[str, Any]:
    """Rows of so many tokens, [CLS] and [SEP]."""
    whole = {"next_sentence": False, "short_sequence_probability": 0.0}
    return {"kind": "rows", "sequence_length": length + 2, **whole, "masking": {"strategy": strategy}, **more}


def sides(steps: int) -> dict[str, dict[str, Any]]:
    common = {"data": rows(TRAINED), "steps": steps, "global_batch": 32, "optimizer": FASTER}
    return {
        "clipped at 16": {**common, "model": nezha(max_relative_position=16)},
        "unclipped": {**common, "model": nezha(max_relative_position=None)},
        "learned absolute": {**common, "model": nezha(position_type="parametric_absolute")},
    }


def by_length(run: Path, settings: TrainSettings) -> Figures:
    """Held-out loss in rows of each length."""
    found = {}
    for length in LENGTHS:
        data = settings.data.model_copy(update={"sequence_length": length + 2})
        found[f"loss_{length}"] = evaluate_run(run, settings.model_copy(update={"data": data}))["loss"]
    return found


def types(steps: int) -> dict[str, dict[str, Any]]:
    """The positions of NEZHA's Table 5, in rows of 64."""
    common = {"data": rows(2 * TRAINED), "steps": steps, "global_batch": 32, "optimizer": FASTER}
    kinds = {"functional": "functional", "learned relative": "parametric_relative"}
    kinds["learned absolute"] = "parametric_absolute"
    return {
        name: {**common, "model": nezha(position_type=kind, max_relative_position=2 * TRAINED)}
        for name, kind in kinds.items()
    }


TYPES = Experiment(
    "position-types",
    "NEZHA, 2 layers x 64, masked characters of natural text in rows of 64; held-out loss (nats) in such rows",
    write_characters,
    types(200),
    {"loss": "loss"},
    (
        Claim(
            "Functional relative positions do better than learned ones, relative and absolute",
            "NEZHA, Table 5",
            tuple(
                Condition(side, "loss", 0, less=("functional", "loss"))
                for side in ("learned relative", "learned absolute")
            ),
        ),
    ),
    "",
    reads_text=True,
    by_default=False,
)

POSITIONS = Experiment(
    "positions",
    "NEZHA, 2 layers x 64, masked characters of natural text in rows of 32; held-out loss (nats) in longer rows",
    write_characters,
    sides(520),
    {str(length): f"loss_{length}" for length in LENGTHS},
    (
        Claim(
            "Functional relative positions read texts longer than those of training better than learned absolute ones",
            "NEZHA, 2.2",
            tuple(
                Condition("learned absolute", "128", 0, less=(side, "128")) for side in ("unclipped", "clipped at 16")
            ),
        ),
        Claim(
            "The paper's formula, which clips no distance, extrapolates to longer texts",
            "NEZHA, 2.2",
            (Condition("unclipped", "128", 0.1, above=False, less=("unclipped", "32")),),
        ),
        Claim(
            "Distances clipped below the trained length extrapolate (the authors' code)",
            "NEZHA, its code",
            (Condition("clipped at 16", "128", 0.1, above=False, less=("clipped at 16", "32")),),
        ),
    ),
    "characters in a row",
    by_length,
    reads_text=True,
)
