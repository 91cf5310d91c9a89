"""Recurrence in ERNIE-Doc and its language model: how far it reaches, at what cost, and reading twice."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.experiment import Claim, Condition, Experiment, plain
from benchmarks.claims.questions import ANSWERS, CHANCE, FREE, VALUES, question
from benchmarks.random_corpus import write_corpus

FILLER = 16
VOCABULARY = FREE + FILLER
SEGMENT = 8
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KEPT = {"strategy": "token", "mask_share": 0.0, "random_share": 0.0}
"""Masking that changes no token: only questions are predicted."""


def transformer_xl(recurrence: str, memory: int) -> dict[str, Any]:
    sizes = {"d_model": 64, "d_head": 16, "n_head": 4, "d_inner": 256, "n_layer": 2, "mem_len": memory}
    initial = {"initializer_range": 0.1, "proj_initializer_range": 0.1}
    return {"type": "transformer_xl", "recurrence": recurrence, "dropout": 0.0, "dropatt": 0.0, **sizes, **initial}


def ernie_doc(recurrence: str, segment: int) -> dict[str, Any]:
    """A model for segments of so many tokens, special ones included, that remembers as many states."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 256}
    lengths = {"max_position_embeddings": segment, "memory_length": segment}
    return {"type": "ernie_doc", "recurrence": recurrence, "initializer_range": 0.1, **sizes, **lengths, **NO_DROPOUT}


def stream(recurrence: str, memory: int, *, length: int, lanes: int, read: int, **more: Any) -> dict[str, Any]:
    """Transformer-XL on a stream; held-out text is read in `read` lanes."""
    evaluation = {"evaluation_length": length, "evaluation_memory": memory, "evaluation_lanes": read}
    data = {"kind": "stream", "sequence_length": length, **evaluation}
    return {
        "model": transformer_xl(recurrence, memory),
        "objective": "asked_stream",
        "data": data,
        "global_batch": lanes,
        "optimizer": {},
        **more,
    }


def documents(recurrence: str, *, twice: bool, steps: int) -> dict[str, Any]:
    """ERNIE-Doc on documents in segments of `SEGMENT` tokens, [SEP] and [CLS]."""
    length = SEGMENT + 2
    data = {"kind": "segments", "sequence_length": length, "reorder_chunks": 1, "retrospective": twice, "masking": KEPT}
    return {
        "model": ernie_doc(recurrence, length),
        "objective": "asked_documents",
        "data": data,
        "steps": steps,
        "global_batch": 32,
        "optimizer": {"learning_rate": 0.003},
    }


SEGMENTS = 50
BANDS = {"same": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5 to 8": 8, "9 to 16": 16, "17 to 32": 32}
"""Distances in segments -> their upper ends."""
HELD_OUT = 128


def write_reach(folder: Path, seed: int, text: str) -> None:
    """Documents of 50 segments of 8 random tokens, the first of which sets a value. A later one sets another with
    probability 1/6; four places of each ask for the value set last. At most 32 segments back."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        ids = FREE + generator.integers(0, FILLER, (SEGMENTS, SEGMENT))
        since, value = 0, 0
        for number in range(SEGMENTS):
            places = generator.permutation(SEGMENT)[:5]
            since += 1
            if number == 0 or since > 32 or generator.random() < 1 / 6:
                since, value = 0, int(generator.integers(ANSWERS))
                places.sort()  # the value stands before its questions
                ids[number, places[0]] = VALUES + value
            band = next(group for group, end in enumerate(BANDS.values()) if since <= end)
            ids[number, places[1:]] = question(value, band)
        return ids.reshape(-1)

    splits = {"train": 640, "validation": HELD_OUT}
    write_corpus(folder, {name: plain([document() for _ in range(n)]) for name, n in splits.items()}, VOCABULARY)


def of_reach(recurrence: str, steps: int, segment: int = SEGMENT) -> dict[str, Any]:
    """256 tokens a step, and a memory as long as a segment."""
    lanes = {"length": segment, "lanes": 32 * SEGMENT // segment, "read": HELD_OUT}
    return stream(recurrence, segment, **lanes, steps=steps, optimizer={"learning_rate": 0.003})


REACH = Experiment(
    "reach",
    "Transformer-XL's form, 2 layers x 64, reads segments of 8 tokens with a memory of 8 states, or 32 with 32; a "
    "question asks for the value set some tokens back",
    write_reach,
    {
        "enhanced": of_reach("enhanced", 700),
        "shifted": of_reach("shifted", 350),  # what it cannot learn needs no more
        "shifted, 32 + 32": of_reach("shifted", 700, segment=32),
    },
    {**{band: f"accuracy_{group}" for group, band in enumerate(BANDS)}, "any distance": "accuracy"},
    (
        Claim(
            "Enhanced recurrence reaches beyond as many segments as there are layers",
            "ERNIE-Doc, 3.3, Figure 1",
            (Condition("enhanced", "5 to 8", 0.9),),
        ),
        Claim(
            "Shifted recurrence reaches as many segments as there are layers, and no further",
            "ERNIE-Doc, 3.3, Figure 1",
            (Condition("shifted", "2", 0.95), Condition("shifted", "3", 2 * CHANCE, above=False)),
        ),
        Claim(
            "Short segments with enhanced recurrence do better than longer ones without it",
            "ERNIE-Doc, 4.2.5, Figure 4",
            (
                Condition("enhanced", "17 to 32", 0, less=("shifted, 32 + 32", "17 to 32")),
                Condition("enhanced", "any distance", 0, less=("shifted, 32 + 32", "any distance")),
            ),
        ),
    ),
    "segments of 8 tokens since the value was set",
)

HYBRID = Experiment(
    "hybrid",
    "As `reach`; the first layer remembers its input and the second its output "
    "(`model.recurrence: enhanced-above-first`)",
    write_reach,
    {"enhanced-above-first": of_reach("enhanced-above-first", 700)},
    REACH.points,
    (
        Claim(
            "Enhanced recurrence above the first layer alone reaches as far",
            "none; see `text`",
            (Condition("enhanced-above-first", "5 to 8", 0.9),),
        ),
    ),
    REACH.axis,
    by_default=False,
)

IN_DOCUMENT = 4


def write_skim(folder: Path, seed: int, text: str, segments: int = IN_DOCUMENT, asked: int = 3) -> None:
    """Documents of `segments`; the last sets a value, and all of them ask for it, `asked` times each."""
    generator = np.random.default_rng(seed)

    def document() -> Any:
        ids = FREE + generator.integers(0, FILLER, (segments, SEGMENT))
        value = int(generator.integers(ANSWERS))
        for number in range(segments):
            places = generator.permutation(SEGMENT)[: asked + 1]
            ids[number, places[:asked]] = question(value, number)
            if number == segments - 1:
                ids[number, places[asked]] = VALUES + value
        return ids.reshape(-1)

    splits = {"train": 6000, "validation": 256}
    write_corpus(folder, {name: plain([document() for _ in range(n)]) for name, n in splits.items()}, VOCABULARY)


SKIM = Experiment(
    "skim",
    "ERNIE-Doc, 2 layers x 64, on documents of 4 segments; the last one has the answer to the questions of all",
    write_skim,
    {
        "enhanced, read twice": documents("enhanced", twice=True, steps=320),
        "shifted, read twice": documents("shifted", twice=True, steps=160),
        "enhanced, read once": documents("enhanced", twice=False, steps=160),
    },
    {str(number + 1): f"accuracy_{number}" for number in range(IN_DOCUMENT)},
    (
        Claim(
            "With retrospective feed the first segment knows the last",
            "ERNIE-Doc, 3.2",
            (
                Condition("enhanced, read twice", "1", 0.9),
                Condition("enhanced, read once", "1", 2 * CHANCE, above=False),
            ),
        ),
        Claim(
            "Retrospective feed needs enhanced recurrence: with shifted the skim is forgotten after as many segments "
            "as there are layers",
            "ERNIE-Doc, 3.2, 3.3",
            (
                Condition("enhanced, read twice", "3", 0.9),
                Condition("shifted, read twice", "3", 2 * CHANCE, above=False),
            ),
        ),
    ),
    "segment that asks",
)
