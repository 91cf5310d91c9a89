"""Long English texts: the four models, each with pretraining and without."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.claims.tuned_experiment import Judged, Tuned, TunedClaim, write_task
from benchmarks.claims.tuned_table1 import write_reviews
from reread.preprocessing.labelled.read import read_examples

FOLDS = 5


def write(folder: Path, data: Mapping[str, list[Path]], seeds: list[int]) -> None:
    """Pretraining reads no article."""
    write_reviews(folder, "long-imdb", data, seeds)
    articles = read_examples(data["articles"][0], "classify", "semeval").examples
    order = np.random.default_rng(0).permutation(len(articles))
    lines = [{"text": articles[place].text, "label": articles[place].label} for place in order]
    for fold in range(FOLDS):
        train = [line for number, line in enumerate(lines) if number % FOLDS != fold]
        write_task(folder.parent / "long-hyperpartisan", fold, train, lines[fold::FOLDS])


RANDOM = "{}, random"
"""The row of a model without pretraining."""
WINDOWS, AVERAGE = "NEZHA, windows", "RAN, average pooling"
PAPERS = {
    "ERNIE-Doc": "its paper, beside RoBERTa: IMDB +.8, F1 of HYP +8.5",
    "RAN": "its paper, beside BERT: HYP +4.9",
    "Longformer": "its paper, beside RoBERTa: IMDB +.4, F1 of HYP +7.4",
}


def _claims() -> Iterator[TunedClaim]:
    for task in TASKS:
        for model in (WINDOWS, *PAPERS):
            yield TunedClaim("Pretraining pays", "all four", task, model, RANDOM.format(model))
        for model, paper in PAPERS.items():
            yield TunedClaim(f"{model} beats windows without memory", paper, task, model, WINDOWS)
    yield TunedClaim("Maximum pooling beats average", "RAN, Table 4: arXiv +1.1", "imdb", "RAN", AVERAGE)


ROWS = tuple(row for model in (WINDOWS, *PAPERS) for row in (model, RANDOM.format(model)))
TASKS = {"imdb": Judged("long-imdb"), "hyperpartisan": Judged("long-hyperpartisan", rows=ROWS, folds=FOLDS)}
LONG = Tuned(
    "long",
    "2 layers x 64, pretrained on ten books and 4,000 reviews, or with random weights; each text is read to its end: "
    "by NEZHA in windows of 128 tokens, by ERNIE-Doc in segments of 128 with a memory of 128, by RAN in windows of 64, "
    "by Longformer with a window of 64. imdb: accuracy on 1,000 reviews of other films, after 1,000 labels; "
    "hyperpartisan: accuracy on each of five folds of the 645 articles, after the others. A row has one pretraining; "
    "seeds and folds draw the head and the order",
    ("books", "imdb", "articles"),
    write,
    TASKS,
    tuple(_claims()),
    pretrained_once=True,
)
