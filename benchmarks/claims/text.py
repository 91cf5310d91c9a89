"""Recurrence in a language model on natural text (ERNIE-Doc, section 4.1)."""

from typing import Any

from benchmarks.claims.experiment import Claim, Condition, Experiment
from benchmarks.claims.positions import FASTER, write_characters
from benchmarks.claims.recurrence import SEGMENT, stream


def sides(steps: int) -> dict[str, dict[str, Any]]:
    of_text: dict[str, Any] = {
        "length": SEGMENT,
        "lanes": 64,
        "read": 64,
        "steps": steps,
        "objective": "causal_lm",
        "optimizer": FASTER,
    }
    recurrences = ("enhanced", "shifted", "none", "enhanced-above-first")
    return {recurrence: stream(recurrence, SEGMENT, **of_text) for recurrence in recurrences}


TEXT = Experiment(
    "text",
    "Transformer-XL's form, 2 layers x 64, predicts the next character of natural text in segments of 8 tokens with a "
    "memory of 8; held-out loss in nats",
    write_characters,
    sides(220),
    {"loss": "loss"},
    (
        Claim(
            "Memory lowers the loss of a language model",
            "Transformer-XL; ERNIE-Doc, 4.1",
            (Condition("none", "loss", 0, less=("shifted", "loss")),),
        ),
        Claim(
            "Enhanced recurrence lowers it further",
            "ERNIE-Doc, 4.1, Table 1",
            (Condition("shifted", "loss", 0, less=("enhanced", "loss")),),
        ),
    ),
    "",
    reads_text=True,
)
