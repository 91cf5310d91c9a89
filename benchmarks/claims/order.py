"""Segment reordering (ERNIE-Doc, section 3.4): what the last [CLS] knows of the segments before it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.claims.experiment import Claim, Condition, Experiment, Figures
from benchmarks.claims.probe import accuracy, frozen, held_out, unmasked
from benchmarks.claims.recurrence import SEGMENT, ernie_doc
from benchmarks.random_corpus import write_corpus
from reread.preprocessing.corpus import SENTENCE_END
from reread.training.config import TrainSettings

TOPICS, CHUNKS = 6, 3
WORDS = 4
"""Tokens of a topic."""


def write(folder: Path, seed: int, text: str) -> None:
    """Documents of 3 segments, a sentence each, whose topics ascend; a topic has words of its own."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        topics = np.sort(generator.permutation(TOPICS)[:CHUNKS])
        ids = 5 + topics[:, None] * WORDS + generator.integers(0, WORDS, (CHUNKS, SEGMENT))
        flags = np.zeros((CHUNKS, SEGMENT), np.uint8)
        flags[:, -1] = SENTENCE_END
        return ids.reshape(-1), flags.reshape(-1)

    splits = {"train": 4000, "validation": 1000}
    write_corpus(folder, {name: [document() for _ in range(n)] for name, n in splits.items()}, 5 + TOPICS * WORDS)


def sides(steps: int) -> dict[str, dict[str, Any]]:
    length = SEGMENT + 2
    data = {"kind": "segments", "sequence_length": length, "reorder_chunks": CHUNKS, "retrospective": False}
    common = {
        "model": ernie_doc("enhanced", length),
        "data": {**data, "masking": {"strategy": "token"}},
        "steps": steps,
        "global_batch": 32,
        "optimizer": {},
    }
    return {
        "masked words and order": {**common, "objective": "documents"},
        "masked words alone": {**common, "objective": "documents_without_order"},
        "before training": {**common, "objective": "documents", "steps": 0},
    }


@torch.no_grad()
def topic_of_the_first(run: Path, settings: TrainSettings) -> Figures:
    """Accuracy of a probe of [CLS] in segment k of the shuffled text for the topic of segment 1, by k."""
    model, dataset = frozen(run, settings), held_out(settings)
    readings = dataset.read(np.zeros(len(dataset), np.int64), np.arange(len(dataset)))
    topics = np.array([(int(one.ids[one.chunks[0][0]]) - 5) // WORDS for one in readings])
    folds, mems, found = np.arange(len(readings)) % 2, None, {}
    for segment in range(CHUNKS):
        rows = dataset.rows(readings, [segment] * len(readings), np.ones(len(readings), bool))
        output = model(unmasked(rows), mems=mems)
        mems = output.mems
        found[f"segment_{segment + 1}"] = accuracy(output.last_hidden_state[:, -1].numpy(), topics, folds)
    return found


ORDER = Experiment(
    "order",
    "ERNIE-Doc, 2 layers x 64, on 3 shuffled segments whose topics ascend; a linear probe of the frozen [CLS] for the "
    "topic of the first (chance .17)",
    write,
    sides(450),
    {str(number + 1): f"segment_{number + 1}" for number in range(CHUNKS)},
    (
        Claim(
            "Segment reordering makes the last [CLS] know the document and not its own segment alone",
            "ERNIE-Doc, 3.4",
            (
                Condition("masked words and order", "3", 0.5),
                Condition("masked words and order", "3", 0, less=("masked words alone", "3")),
                Condition("masked words and order", "3", 0, less=("before training", "3")),
            ),
        ),
    ),
    "segment whose [CLS] is probed",
    topic_of_the_first,
)
