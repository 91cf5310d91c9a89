"""ERNIE-Doc's Table 7, judged by labels that stand in other segments than the text that they are predicted from."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.experiment import read_text
from benchmarks.claims.tuned_experiment import Judged, Tuned, TunedClaim, write_lines, write_task

SEGMENT = 32
LONGEST = {"far-first": 6, "far-last": 3}
"""Segments of a document: from 2 to so many."""
MARK = "某"
"""The character that is tagged; it stands nowhere else."""
MARKS = 4
"""Of them in a segment."""
TRAIN = {"far-first": 1000, "far-last": 4000}
TEST = 400
PASSAGE = 400
"""Characters of a document of the pretraining."""


def write(folder: Path, data: Mapping[str, list[Path]], seeds: list[int]) -> None:
    """Documents of segments of novels. All segments are from the first novel, but for one, whose novel is the label.

    Four fifths of each novel are for pretraining and fine-tuning, the last one for the test.
    """
    books = [re.sub(rf"[^\u4e00-\u9fff，。！？：；]|{MARK}", "", read_text([path])) for path in data["novels"]]
    known = [book[: len(book) * 4 // 5] for book in books]
    unknown = [book[len(book) * 4 // 5 :] for book in books]
    passages = [book[place : place + PASSAGE] for book in known for place in range(0, len(book), PASSAGE)]
    write_lines(folder / "text.jsonl", [{"text": passage} for passage in passages])
    for task, line in (("far-first", _first), ("far-last", _last)):
        for seed in seeds:
            drawn, tested = np.random.default_rng(seed), np.random.default_rng(1 << 20)
            write_task(
                folder.parent / task,
                seed,
                [line(known, drawn) for _ in range(TRAIN[task])],
                [line(unknown, tested) for _ in range(TEST)],
            )


def _segments(books: list[str], generator: np.random.Generator, task: str, labelled: int) -> tuple[list[str], int]:
    """A document, and the number of the novel that its segment `labelled` is from."""
    label = int(generator.integers(1, len(books)))
    count = int(generator.integers(2, LONGEST[task] + 1))
    taken = [0] * count
    taken[labelled] = label
    places = [int(generator.integers(len(books[book]) - SEGMENT)) for book in taken]
    return [books[book][place : place + SEGMENT] for book, place in zip(taken, places, strict=True)], label


def _first(books: list[str], generator: np.random.Generator) -> dict[str, Any]:
    segments, label = _segments(books, generator, "far-first", 0)
    return {"text": "".join(segments), "label": str(label)}


def _last(books: list[str], generator: np.random.Generator) -> dict[str, Any]:
    segments, label = _segments(books, generator, "far-last", -1)
    tokens = list("".join(segments))
    tags = ["O"] * len(tokens)
    for begin in range(0, len(tokens), SEGMENT):
        for place in begin + generator.permutation(SEGMENT)[:MARKS]:
            tokens[place], tags[place] = MARK, f"B-{label}"
    return {"tokens": tokens, "tags": tags}


FULL, NO_ORDER, ONCE, SHIFTED, NONE = (
    "ERNIE-Doc",
    "w/o so",
    "w/o so, retro",
    "w/o so, retro, en-rec",
    "w/o so, retro, recur",
)
"""The rows of Table 7."""


def _claims() -> Iterator[TunedClaim]:
    memory = "Memory of earlier segments helps"
    yield TunedClaim(memory, "ERNIE-Doc, Table 7: HYP +3.95, TQA +2.74", "first", SHIFTED, NONE)
    yield TunedClaim("Enhanced recurrence helps", "HYP +1.60, TQA +2.29", "first", ONCE, SHIFTED)
    for task in ("first", "last"):
        yield TunedClaim("Retrospective feed helps", "HYP +1.33, TQA +.21", task, NO_ORDER, ONCE)
    for task in ("first", "last"):
        yield TunedClaim("Segment reordering helps", "HYP +1.50, TQA +.97", task, FULL, NO_ORDER)
    yield TunedClaim(f"{memory} where all segments vote, too", "its code", "first, mean", ONCE, NONE)


FAR = Tuned(
    "far",
    "ERNIE-Doc, 2 layers x 64, pretrained on three novels in segments of 32 characters, then fine-tuned on documents "
    "of segments of the first novel, but for one segment, whose novel (of two) is the label. first: it is the first of "
    "2 to 6, the label is predicted from the last one, accuracy after 1,000 documents; first, mean: by the mean of all "
    "segments' probabilities, as in the authors' code; last: it is the last of 2 or 3, the label is the tag of four "
    "characters in each, F1 after 4,000 documents",
    ("novels",),
    write,
    {
        "first": Judged("far-first"),
        "first, mean": Judged("far-first", ("task.predict=mean",)),
        "last": Judged("far-last", rows=(FULL, NO_ORDER, ONCE)),
    },
    tuple(_claims()),
)
