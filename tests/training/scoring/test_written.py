"""ROUGE against its equations written a second time, and numbers by hand."""

import math
from itertools import combinations
from random import Random

import pytest

from reread.training.scoring.written import equal, rouge_l, rouge_n, units


def test_units_are_chinese_characters_and_words_without_marks() -> None:
    assert units("中国GDP增长7.5%，In_the U.S.！") == ["中", "国", "gdp", "增", "长", "7", "5", "in", "the", "u", "s"]


def test_numbers_by_hand() -> None:
    """Lin 2004, section 3.1: of `police killed the gunman`, `police kill the gunman` has a subsequence of 3 of 4."""
    gold = {"1": "police killed the gunman"}
    assert rouge_l(gold, {"1": "Police kill the gunman."}) == pytest.approx(75)
    assert rouge_l(gold, {"1": "the gunman kill police"}) == pytest.approx(50)
    assert rouge_n(gold, {"1": "the gunman kill police"}, 2) == pytest.approx(100 / 3)
    assert rouge_n({"1": "北京市"}, {"1": "北京北京"}, 1) == pytest.approx(100 * 4 / 7)
    assert rouge_n({"1": "北京"}, {"1": "北"}, 2) == 0
    assert equal({"1": "北京，市", "2": "a"}, {"1": "北京 市"}) == 50


def plain(gold: list[str], guess: list[str]) -> list[float]:
    """F1 of runs of 1 and 2, and of the longest common subsequence, by counting and trying all."""

    def f1(right: float, ours: int, theirs: int) -> float:
        if not right:
            return 0.0
        precision, recall = right / ours, right / theirs
        return 2 * precision * recall / (precision + recall)

    found = []
    for size in (1, 2):
        runs = [["|".join(one[n : n + size]) for n in range(len(one) - size + 1)] for one in (guess, gold)]
        right = sum(min(runs[0].count(run), runs[1].count(run)) for run in set(runs[1]))
        found.append(f1(right, len(runs[0]), len(runs[1])))
    for length in range(min(len(gold), len(guess)), -1, -1):
        if set(combinations(gold, length)) & set(combinations(guess, length)):
            return [*found, f1(length, len(guess), len(gold))]
    raise AssertionError


def test_scores_are_those_of_the_equations_written_a_second_time() -> None:
    random = Random(0)
    pairs = [["".join(random.choices("甲乙丙丁", k=random.randint(1, 8))) for _ in "ab"] for _ in range(40)]
    gold, guess = ({str(number): pair[side] for number, pair in enumerate(pairs)} for side in (0, 1))
    each = [plain(list(theirs), list(ours)) for theirs, ours in pairs]
    expected = [100 * math.fsum(column) / len(pairs) for column in zip(*each, strict=True)]
    assert [rouge_n(gold, guess, 1), rouge_n(gold, guess, 2), rouge_l(gold, guess)] == pytest.approx(expected)
