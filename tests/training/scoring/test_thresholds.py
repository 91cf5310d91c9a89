"""Thresholds of label sets: none of all possible ones is better."""

import numpy as np
import pytest

from reread.training.scoring.classification import matthews, micro_f1
from reread.training.scoring.thresholds import best_threshold, shared_threshold, threshold_of_each


def f1_of(chances: np.ndarray, gold: np.ndarray, threshold: float) -> float:
    made = chances > threshold
    return 2 * (made & gold).sum() / max(1, made.sum() + gold.sum())


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_a_better_f1(seed: int) -> None:
    draw = np.random.default_rng(seed)
    chances, gold = np.round(draw.random(30), 1), draw.random(30) < 0.3  # many are equal
    found = best_threshold(chances, gold)
    best = max(f1_of(chances, gold, threshold) for threshold in np.linspace(0.05, 0.95, 10))
    assert f1_of(chances, gold, found) == best > 0


def test_a_label_without_gold_keeps_one_half_and_a_tie_is_nearest_to_it() -> None:
    assert best_threshold(np.array([0.2, 0.9]), np.array([False, False])) == 0.5
    assert best_threshold(np.array([0.9, 0.2]), np.array([True, False])) == pytest.approx(0.55)


def test_shared_is_best_by_micro_f1_and_each_by_its_label() -> None:
    draw = np.random.default_rng(0)
    gold = draw.random((40, 3)) < [0.1, 0.4, 0.8]
    chances = np.clip(gold * 0.2 + draw.random((40, 3)) * 0.5, 0, 1)

    def micro(thresholds: list[float]) -> float:
        sets = [
            {str(number): set(np.flatnonzero(row)) for number, row in enumerate(one)}
            for one in (gold, chances > thresholds)
        ]
        return micro_f1(*sets)  # type: ignore[arg-type]

    shared, each = shared_threshold(chances, gold), threshold_of_each(chances, gold)
    assert len(set(shared)) == 1
    assert micro(shared) >= max(micro([one] * 3) for one in np.linspace(0, 1, 101))
    assert each == [best_threshold(chances[:, label], gold[:, label]) for label in range(3)]


def test_matthews_of_two_labels_is_the_formula_of_the_four_counts() -> None:
    gold = dict(zip(map(str, range(8)), "11110000", strict=True))
    predicted = dict(zip(map(str, range(8)), "11101000", strict=True))
    tp, tn, fp, fn = 3, 3, 1, 1
    scale = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert matthews(gold, predicted) == pytest.approx(100 * (tp * tn - fp * fn) / scale)
    assert matthews(gold, gold) == 100
    assert matthews(gold, dict.fromkeys(gold, "1")) == 0
