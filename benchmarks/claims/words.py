"""Whole-word masking (NEZHA, section 2.3): what hidden states know of words."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.claims.experiment import Claim, Condition, Experiment, Figures, write_corpus
from benchmarks.claims.positions import nezha, rows
from benchmarks.claims.probe import accuracy, frozen, held_out, unmasked
from preprocessing.corpus import CONTINUES_WORD
from training.config import TrainSettings

CHARACTERS, CLASSES, WORDS, IN_ROW = 32, 8, 64, 32


def _words(seed: int) -> Any:
    """Ids [64, 2] of the words; word w is of class w % 8. A character is in words of several classes."""
    pairs = np.random.default_rng(seed).permutation(CHARACTERS * CHARACTERS)[:WORDS]
    return 5 + np.stack(np.divmod(pairs, CHARACTERS), axis=1)


def write(folder: Path, seed: int, text: str) -> None:
    """Rows of 32 words. After a word of class c comes one of class c + 1 (.8) or c (.2)."""
    generator, words = np.random.default_rng(seed + 1000), _words(seed)

    def document() -> Any:
        steps = np.cumsum(generator.random(IN_ROW) < 0.8)
        classes = (int(generator.integers(CLASSES)) + steps) % CLASSES
        chosen = classes + CLASSES * generator.integers(0, WORDS // CLASSES, IN_ROW)
        return words[chosen].reshape(-1), np.tile(np.array([0, CONTINUES_WORD], np.uint8), IN_ROW)

    splits = {"train": 4000, "validation": 400}
    write_corpus(folder, {name: [document() for _ in range(n)] for name, n in splits.items()}, 5 + CHARACTERS)


def sides(steps: int) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "model": nezha(max_relative_position=16),
            "data": rows(2 * IN_ROW, strategy),
            "steps": steps,
            "global_batch": 32,
            "optimizer": {},
        }
        for name, strategy in (("whole words", "whole-word"), ("tokens", "token"))
    }


@torch.no_grad()
def class_of_words(run: Path, settings: TrainSettings) -> Figures:
    """Accuracy of a probe for the class of words, fitted on 6 words of each class and tested on the other 2."""
    model, dataset = frozen(run, settings), held_out(settings)
    ids = unmasked(dataset.rows(np.arange(len(dataset))))
    states = model(ids).last_hidden_state[:, 1:-1].reshape(-1, 2 * settings.model["hidden_size"]).numpy()
    pairs = ids[:, 1:-1].reshape(-1, 1, 2).numpy()
    number = (pairs == _words(settings.seed)).all(2).argmax(1)
    return {"accuracy": accuracy(states, number % CLASSES, number < 6 * CLASSES)}


WHOLE_WORDS = Experiment(
    "words",
    "NEZHA, 2 layers x 64, on 64 words of two of 32 characters in 8 classes that follow each other; a linear probe of "
    "frozen states for the class of words that the probe has not seen (chance .13)",
    write,
    sides(1500),
    {"accuracy": "accuracy"},
    (
        Claim(
            "Masking whole words teaches words better than masking tokens",
            "NEZHA, 2.3, Table 5",
            (Condition("whole words", "accuracy", 0.1, less=("tokens", "accuracy")),),
        ),
    ),
    "",
    class_of_words,
)
