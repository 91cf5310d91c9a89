"""MRR@10, nDCG@10, recall@10 and BM25 against their equations, written a second time."""

import math
import random
from typing import Any

import pytest

from reread.training.scoring.ranking import Bm25, mrr, ndcg, recall


def drawn(seed: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Grades of 0 to 3, and scores without ties; the first query has a relevant passage, another one has none."""
    draw = random.Random(seed)
    sizes = [draw.randint(2, 30) for _ in range(20)]
    gold = {str(n): [float(draw.choice((0, 0, 0, 1, 2, 3))) for _ in range(size)] for n, size in enumerate(sizes)}
    gold["0"][0], gold["none"] = 2.0, [0.0, 0.0]
    return gold, {name: draw.sample(range(1000), len(grades)) for name, grades in gold.items()}  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_their_equations(seed: int) -> None:
    gold, predicted = drawn(seed)
    rates, gains, shares = [], [], []
    for name, grades in gold.items():
        place = {n: 1 + sum(other > own for other in predicted[name]) for n, own in enumerate(predicted[name])}
        relevant = [place[n] for n, grade in enumerate(grades) if grade > 0]
        rates.append(1 / min(relevant) if relevant and min(relevant) <= 10 else 0)
        dcg = sum(grade / math.log2(place[n] + 1) for n, grade in enumerate(grades) if place[n] <= 10)
        ideal = sum(grade / math.log2(n + 2) for n, grade in enumerate(sorted(grades)[::-1][:10]))
        gains.append(dcg / ideal if ideal else 0)
        shares.append(sum(one <= 10 for one in relevant) / len(relevant) if relevant else 0)
    for score, values in ((mrr, rates), (ndcg, gains), (recall, shares)):
        assert score(gold, predicted) == pytest.approx(100 * sum(values) / len(values), rel=1e-12)


def test_ndcg_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = drawn(7)
    theirs = [metrics.ndcg_score([grades], [predicted[name]], k=10) for name, grades in gold.items()]
    assert ndcg(gold, predicted) == pytest.approx(100 * sum(theirs) / len(theirs), rel=1e-12)


def test_the_files_order_does_not_help_equal_scores() -> None:
    """A model that gives every passage the same score has the worst order."""
    gold: dict[str, Any] = {"1": [1, 0, 0], "2": [0, 2, 1]}
    same = {"1": [0.5] * 3, "2": [0.5] * 3}
    assert mrr(gold, same) == pytest.approx(100 * (1 / 3 + 1 / 2) / 2)
    assert mrr(gold, {"2": [0, 2, 1]}) == 50  # no prediction is no relevant passage


def test_bm25_is_its_equation() -> None:
    passages = ["the ferry leaves at six", "the lock at the weir", "渡口的早晨"]
    # "ferry" and "six" stand once in one of three passages, which has 5 of (5 + 5 + 4) / 3 terms
    idf, length = math.log(1 + 2.5 / 1.5), 1.2 * (0.25 + 0.75 * 5 / (14 / 3))
    bm25 = Bm25(passages)
    assert bm25.score("Ferry, six!", passages[0]) == pytest.approx(2 * idf * 2.2 / (1 + length), rel=1e-12)
    assert bm25.score("早晨的渡口", passages[2]) > 0 == bm25.score("早晨的渡口", passages[0])
