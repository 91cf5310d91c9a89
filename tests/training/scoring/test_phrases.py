"""Scores of key phrases against cases by hand and a count written a second time; TF-IDF by hand."""

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.phrases import TfIdf, f1_at
from reread.training.scoring.task_scores import scores

NBA = [("nba", "2k17"), ("key", "generator"), ("xbox",)]


def test_the_numbers_of_openkps_own_example() -> None:
    """Its README prints F1 of 0, .667 and .5 at 1, 3 and 5, where two of three are right and the first is wrong."""
    gold, predicted = {"u": NBA}, {"u": [("pc",), ("key", "generator"), ("nba", "2k17")]}
    assert scores("phrases", gold, predicted) == pytest.approx({"f1@3": 200 / 3, "f1@1": 0, "f1@5": 50})


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ([("xbox",)], {"f1@1": 50, "f1@3": 100 / 3, "f1@5": 25}),  # precision at 3 is 1/3 though one is predicted
        ([("pc",), ("pc",), ("xbox",)], {"f1@1": 0, "f1@3": 100 / 3, "f1@5": 25}),  # one that stands twice counts once
        ([("pc",), ("pc",), ("a",), ("xbox",)], {"f1@1": 0, "f1@3": 100 / 3, "f1@5": 25}),
        ([("nba",), ("2k17",)], {"f1@1": 0, "f1@3": 0, "f1@5": 0}),
        ([*NBA, ("a",), ("b",), ("c",)], {"f1@1": 50, "f1@3": 100, "f1@5": 75}),
        (None, {"f1@1": 0, "f1@3": 0, "f1@5": 0}),
    ],
)
def test_cases_by_hand(predicted, expected) -> None:
    found = scores("phrases", {"u": [*NBA, ("xbox",)]}, {} if predicted is None else {"u": predicted})
    assert found == pytest.approx(expected)


def test_f1_is_that_of_precision_and_recall_of_each_document_counted_one_by_one() -> None:
    generator = np.random.default_rng(0)
    gold, predicted = {}, {}
    for name in map(str, range(200)):
        gold[name] = [(word,) for word in generator.choice(list("abcdefg"), int(generator.integers(1, 6)))]
        predicted[name] = [(word,) for word in generator.choice(list("abcdefghij"), int(generator.integers(0, 9)))]
    for depth in (1, 3, 5):
        values = []
        for name, phrases in gold.items():
            seen, right = [], 0
            for phrase in predicted[name]:
                if phrase not in seen and len(seen) < depth:
                    seen.append(phrase)
                    right += phrase in phrases
            precision, recall = right / depth, right / len(set(phrases))
            values.append(2 * precision * recall / (precision + recall) if right else 0.0)
        assert f1_at(gold, predicted, depth) == pytest.approx(100 * sum(values) / 200, rel=1e-12)


def test_a_prediction_of_an_unknown_document_is_an_error() -> None:
    with pytest.raises(UserError, match="without a label"):
        f1_at({"1": NBA}, {"2": NBA}, 3)


def test_tf_idf_by_hand() -> None:
    tf_idf = TfIdf([tuple("aab"), tuple("ac"), tuple("ad"), tuple("a")], 2)
    # idf of a, b, c: log(4/4), log(4/1), log(4/1); of one that no document has: log(4/1)
    assert tf_idf.best(tuple("abcb"), 3) == [(1, 1), (1, 2), (2, 2)]  # b twice; b c and c b: mean idf log 4, once
    assert tf_idf.best(tuple("axa"), 2) == [(1, 1), (0, 2)]
    assert tf_idf.best((), 3) == []
    assert len(tf_idf.best(tuple("abcb"), 99)) == len({"a", "b", "c", "ab", "bc", "cb"})
