"""Scores of clusters are the reference scorer's (conll/reference-coreference-scorers, v8.01), whose numbers for random
clusters of random documents are in tests/golden/coreference.json."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.coreference import SameWords, average, b_cubed, best_alignment, ceaf, muc

GOLDEN = Path(__file__).parents[2] / "golden" / "coreference.json"


@pytest.mark.parametrize("number", range(16))
def test_recall_and_precision_of_all_documents_are_the_reference_scorers(number: int) -> None:
    case = json.loads(GOLDEN.read_text())[number]
    gold, predicted = (
        {
            str(one): [[tuple(span) for span in cluster] for cluster in clusters]
            for one, clusters in enumerate(case[side])
        }
        for side in ("gold", "predicted")
    )
    predicted = {name: clusters for name, clusters in predicted.items() if clusters}  # a missing one has none
    expected = []
    for name, score in (("muc", muc), ("bcub", b_cubed), ("ceafe", ceaf)):
        r, p = (right / total if total else 0.0 for right, total in case["scores"][name])
        expected.append(200 * r * p / (r + p) if r + p else 0.0)
        assert score(gold, predicted) == pytest.approx(expected[-1], abs=1e-9)
    assert average(gold, predicted) == pytest.approx(sum(expected) / 3, abs=1e-9)


def test_published_cases_of_the_scorer() -> None:
    """TC-A of its tests: clusters {a}, {b1, b4, ...} by letters, with the fractions that its configuration states."""
    gold = {"1": [[(0, 2)], [(3, 7), (12, 14)], [(10, 11), (15, 16), (17, 19)]]}
    assert muc(gold, gold) == b_cubed(gold, gold) == ceaf(gold, gold) == 100
    part = {"1": [[(0, 2)], [(10, 11), (15, 16)]]}
    assert muc(gold, part) == pytest.approx(100 * 2 * (1 / 3) / (1 / 3 + 1))
    assert b_cubed(gold, part) == pytest.approx(100 * 14 / 25)
    assert ceaf(gold, part) == pytest.approx(72.0)
    assert average(gold, {}) == 0.0 == average({"1": []}, {"1": []})
    with pytest.raises(UserError):
        average(gold, {"2": []})


def test_the_best_alignment_is_that_of_all_permutations() -> None:
    generator = np.random.default_rng(0)
    for rows, columns in [(1, 1), (3, 5), (5, 3), (5, 5), (2, 6)] * 4:
        profits = generator.random((rows, columns)).round(1) * (generator.random((rows, columns)) < 0.6)
        wide = profits if rows <= columns else profits.T
        most = max(
            sum(wide[row, column] for row, column in enumerate(one))
            for one in permutations(range(wide.shape[1]), wide.shape[0])
        )
        assert best_alignment(profits) == pytest.approx(most, abs=1e-12)
    optimize = pytest.importorskip("scipy.optimize")
    profits = generator.random((60, 45))
    assert best_alignment(profits) == pytest.approx(profits[optimize.linear_sum_assignment(-profits)].sum(), abs=1e-9)
    assert best_alignment(np.zeros((0, 3))) == 0.0


def test_same_words_are_one_cluster() -> None:
    text = "the boat left and the man saw it . it sank ; go on"
    train = [(text.split(" "), [(0, 2), (4, 6), (7, 8), (9, 10)])]
    text = "Mary saw The boat , and Ann Lee saw the boat . It was Ann Lee , Mary ; it sank . the crew left"
    words = text.split(" ")
    found = SameWords(train, 30).clusters(words)
    named = sorted(sorted(" ".join(words[first:end]) for first, end in one) for one in found)
    assert named == [["Ann Lee", "Ann Lee"], ["It", "it"], ["The boat", "the boat"]]  # the first Mary begins a sentence
