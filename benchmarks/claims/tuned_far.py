"""ERNIE-Doc's Table 7, judged by labels that stand in other segments than the text that they are predicted from."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.experiment import read_text
from benchmarks.claims.tuned_experiment import Judged, Tuned, TunedClaim, write_lines, write_test

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
            generator = np.random.default_rng(seed)
            write_lines(
                folder.parent / task / f"train-{seed}.jsonl", [line(known, generator) for _ in range(TRAIN[task])]
            )
        generator = np.random.default_rng(1 << 20)
        write_test(folder.parent / task, [line(unknown, generator) for _ in range(TEST)])


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


def _claims() -> Iterator[TunedClaim]:
    full, no_order, once, shifted, none = (
        "ERNIE-Doc",
        "w/o so",
        "w/o so, retro",
        "w/o so, retro, en-rec",
        "w/o so, retro, recur",
    )
    yield TunedClaim(
        "Memory of the segment before helps", "4.2.5, Table 7: HYP +3.95, TQA +2.74", "first", shifted, none
    )
    yield TunedClaim("Enhanced recurrence helps", "Table 7: HYP +1.60, TQA +2.29", "first", once, shifted)
    for task in ("last", "first"):
        yield TunedClaim("Retrospective feed helps", "Table 7: HYP +1.33, TQA +.21", task, no_order, once)
    for task in ("first", "last"):
        yield TunedClaim("Segment reordering helps", "Table 7: HYP +1.50, TQA +.97", task, full, no_order)
    yield TunedClaim("All parts together help", "Table 7: HYP +8.38, TQA +6.21", "last", full, none)
    yield TunedClaim(
        "Memory helps where the windows' probabilities are averaged, too", "its code", "first, mean", once, none
    )


FAR = Tuned(
    "far",
    "ERNIE-Doc, 2 layers x 64, pretrained on three novels in segments of 32 characters; 1,000 documents of 2 to 6 "
    "segments of the first novel, but for one segment, whose novel is the label. first: it is the first, and the label "
    "is predicted from the last (accuracy); first, mean: from the mean over segments, by the code; last: it "
    "is the last, and the label is the tag of four characters in each segment (F1)",
    ("novels",),
    write,
    {
        "first": Judged("far-first"),
        "first, mean": Judged("far-first", ("task.predict=mean",)),
        "last": Judged("far-last"),
    },
    tuple(_claims()),
)
