"""Whole-word masking (NEZHA, section 2.3): what hidden states know of words."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.claims.experiment import Claim, Condition, Experiment, Figures
from benchmarks.claims.positions import FASTER, nezha, rows
from benchmarks.claims.probe import accuracy, frozen, held_out, unmasked
from benchmarks.random_corpus import write_corpus
from reread.preprocessing.corpus import CONTINUES_WORD
from reread.training.config import TrainSettings

CLASSES, WORDS, IN_ROW = 8, 32, 16


def write(folder: Path, seed: int, text: str) -> None:
    """Rows of 16 words. Word w is characters 2 w and 2 w + 1, and of class w % 8; after a word of class c comes one of
    class c + 1 (.8) or c (.2)."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        steps = np.cumsum(generator.random(IN_ROW) < 0.8)
        classes = (int(generator.integers(CLASSES)) + steps) % CLASSES
        words = classes + CLASSES * generator.integers(0, WORDS // CLASSES, IN_ROW)
        ids = 5 + 2 * words[:, None] + np.arange(2)
        return ids.reshape(-1), np.tile(np.array([0, CONTINUES_WORD], np.uint8), IN_ROW)

    splits = {"train": 4000, "validation": 200}
    write_corpus(folder, {name: [document() for _ in range(n)] for name, n in splits.items()}, 5 + 2 * WORDS)


def sides(steps: int) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "model": nezha(max_relative_position=16),
            "data": rows(2 * IN_ROW, strategy),
            "steps": steps,
            "global_batch": 32,
            "optimizer": FASTER,
        }
        for name, strategy in (("whole words", "whole-word"), ("tokens", "token"))
    }


@torch.no_grad()
def class_of_words(run: Path, settings: TrainSettings) -> Figures:
    """Accuracy of a probe for the class of words that it was not fitted on: of each class, one word a fold."""
    model, dataset = frozen(run, settings), held_out(settings)
    ids = unmasked(dataset.rows(np.arange(len(dataset))))
    states = model(ids).last_hidden_state[:, 1:-1].reshape(-1, 2 * settings.model["hidden_size"]).numpy()
    words = (ids[:, 1:-1:2].reshape(-1).numpy() - 5) // 2
    return {"accuracy": accuracy(states, words % CLASSES, words // CLASSES)}


WHOLE_WORDS = Experiment(
    "words",
    "NEZHA, 2 layers x 64, on 32 words of two characters each in 8 classes that follow each other; a linear probe of "
    "frozen states for the class of words that the probe has not seen (chance .13)",
    write,
    sides(250),
    {"accuracy": "accuracy"},
    (
        Claim(
            "Masking whole words teaches words better than masking tokens",
            "NEZHA, 2.3, Table 5",
            (Condition("whole words", "accuracy", 0, less=("tokens", "accuracy")),),
        ),
    ),
    "",
    class_of_words,
)
