"""NEZHA's Table 5, judged by entities of the People's Daily and by ChnSentiCorp with few labels."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.tuned_experiment import Judged, Tuned, TunedClaim, write_lines, write_task
from reread.preprocessing.labelled.read import read_examples

TRAIN = 1000
SENTENCES = 3000
"""Sentences of the test, the last of the file: an easier test is one of sentences from the same articles."""
PASSAGE = 20
"""Sentences of a document of the pretraining."""


def write(folder: Path, data: Mapping[str, list[Path]], seeds: list[int]) -> None:
    """Pretraining reads all sentences and reviews but those of the tests, without labels."""
    sentences = read_examples(data["ner"][0], "tag", "conll").examples
    known, tested = sentences[:-SENTENCES], sentences[-SENTENCES:]
    reviews, dev = read_reviews(data["reviews"])
    passages = ["".join(one.text for one in known[place : place + PASSAGE]) for place in range(0, len(known), PASSAGE)]
    write_lines(folder / "text.jsonl", [{"text": text} for text in [*passages, *(one.text for one in reviews)]])
    for task, all_known, all_tested, line in (("ner", known, tested, tagged), ("reviews", reviews, dev, labelled)):
        for seed in seeds:
            drawn = np.random.default_rng(seed).permutation(len(all_known))[:TRAIN]
            lines = [line(all_known[place]) for place in drawn]
            write_task(folder.parent / f"table5-{task}", seed, lines, [line(one) for one in all_tested])


def read_reviews(paths: Sequence[Path]) -> tuple[list[Any], list[Any]]:
    """ChnSentiCorp's examples to learn from, without those that are also in the others, which are held out."""
    train, dev = (read_examples(path, "classify", "tsv", columns={"text": "text_a"}).examples for path in paths)
    texts = {one.text for one in dev}
    return [one for one in train if one.text not in texts], list(dev)


def tagged(one: Any) -> dict[str, Any]:
    return {"tokens": one.tokens, "tags": one.tags}


def labelled(one: Any) -> dict[str, Any]:
    return {"text": one.text, "label": one.label}


def _claims() -> Iterator[TunedClaim]:
    absolute, learned, functional = "absolute, learned", "relative, learned", "relative, functional"
    for task in ("ner", "reviews"):
        yield TunedClaim(
            "Functional relative positions beat learned absolute ones",
            "NEZHA, Table 5: CMRC F1 +28.1",
            task,
            functional,
            absolute,
        )
        yield TunedClaim(
            "Functional relative positions beat learned relative ones",
            "NEZHA, Table 5: CMRC F1 +.3",
            task,
            functional,
            learned,
        )
        yield TunedClaim(
            "Masking whole words beats masking tokens",
            "NEZHA, Table 5: CMRC EM +.9, F1 −.2",
            task,
            "functional, whole words",
            functional,
        )


TABLE5 = Tuned(
    "table5",
    "NEZHA, 2 layers x 128, pretrained on 2.8 M characters of news and reviews, in rows of 64; 1,000 labels. ner: "
    "entities of the People's Daily, strict F1 on its last 3,000 sentences; reviews: ChnSentiCorp, accuracy on its dev "
    "texts",
    ("ner", "reviews"),
    write,
    {task: Judged(f"table5-{task}") for task in ("ner", "reviews")},
    tuple(_claims()),
)
