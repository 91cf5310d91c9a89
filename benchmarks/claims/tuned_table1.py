"""Longformer's Table 1, judged by IMDB: what copied positions and more updates are worth to a task."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.claims.experiment import read_text
from benchmarks.claims.tuned_experiment import Judged, Tuned, TunedClaim, write_lines, write_task
from reread.preprocessing.labelled.read import read_examples

TRAIN = 1000
KNOWN = 2000
"""Reviews of a class from this number on are the test: they run by film, so a test drawn at random knows its films."""


def write(folder: Path, data: Mapping[str, list[Path]], seeds: list[int]) -> None:
    write_reviews(folder, "table1-imdb", data, seeds)


def write_reviews(folder: Path, task: str, data: Mapping[str, list[Path]], seeds: list[int]) -> None:
    """Pretraining reads books and the reviews that are not of the test, without labels."""
    reviews = [
        (int(re.findall(r"\d+", one.id)[0]), {"text": one.text.replace("<br />", " "), "label": one.label})
        for one in read_examples(data["imdb"][0], "classify", "folders").examples
    ]
    known = [line for number, line in reviews if number < KNOWN]
    tested = [line for number, line in sorted(reviews, key=lambda one: one[0]) if number >= KNOWN]
    texts = [read_text([path]) for path in data["books"]] + [line["text"] for line in known]
    write_lines(folder / "text.jsonl", [{"text": text} for text in texts])
    for seed in seeds:
        drawn = np.random.default_rng(seed).permutation(len(known))[:TRAIN]
        write_task(folder.parent / task, seed, [known[place] for place in drawn], tested)


def _claims() -> Iterator[TunedClaim]:
    copied, updated = "copied positions", "+ 1000 updates"
    yield TunedClaim(
        "Copied positions start better than random ones", "Table 1: BPC −8.34", "imdb", copied, "random positions"
    )
    yield TunedClaim("More updates help", "Table 1: BPC −.20", "imdb", updated, copied)
    yield TunedClaim(
        "Updating all weights helps more than positions alone",
        "Table 1: BPC −.10",
        "imdb",
        updated,
        f"{updated} of new positions only",
    )
    yield TunedClaim(
        "Longformer beats its start, which reads windows",
        "Table 1: BPC −.09; IMDB +.4",
        "imdb",
        updated,
        "RoBERTa (32 tokens)",
    )


TABLE1 = Tuned(
    "table1",
    "Longformer, 2 layers x 64, 256 tokens, from a RoBERTa of 32, pretrained on ten books and 4,000 reviews. imdb: "
    "accuracy on 1,000 reviews of other films, after 1,000 labels. All seeds have the same start",
    ("books", "imdb"),
    write,
    {"imdb": Judged("table1-imdb")},
    tuple(_claims()),
)
