"""Scores of options, and the figures of C3 that need no reading."""

from collections import Counter

import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.baselines import longest_option, majority, most_shared_option
from reread.training.scoring.classification import accuracy
from reread.training.scoring.options import pac, qac
from tests.training.scoring.real_data import c3


def test_a_passage_is_right_if_all_its_blanks_are() -> None:
    gold = {"1": 0, "2": 1, "3": 2, "4": 0}
    groups = {"1": "x", "2": "x", "3": "y", "4": "z"}
    assert (qac(gold, gold), pac(gold, gold, groups)) == (100, 100)
    predicted = {"1": 0, "2": 2, "3": 2}  # blank 4 stays open
    assert qac(gold, predicted) == 50
    assert pac(gold, predicted, groups) == 100 / 3
    backwards = dict(reversed(gold.items()))
    assert pac(backwards, predicted, groups) == 100 / 3


def test_a_prediction_of_another_file_is_refused() -> None:
    with pytest.raises(UserError, match="first `9`"):
        pac({"1": 0}, {"9": 0}, {"1": "x"})


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "asked", "fixed", "longest", "shared_characters"),
    [("m", 6013, 28.4, 34.6, 45.7), ("d", 5856, 29.5, 28.8, 44.2)],
)
def test_the_figures_of_c3_that_need_no_reading(name, asked, fixed, longest, shared_characters) -> None:
    examples = c3(f"zh_c3/c3-{name}-train.json.xz")
    gold = {f"{place}": label for place, (_, _, label) in enumerate(examples)}
    assert len(gold) == asked
    best_place = majority(gold.values())
    assert Counter(gold.values())[best_place] == max(Counter(gold.values()).values())
    assert accuracy(gold, dict.fromkeys(gold, best_place)) == pytest.approx(fixed, abs=0.05)
    by_length = {f"{place}": longest_option(options) for place, (_, options, _) in enumerate(examples)}
    assert accuracy(gold, by_length) == pytest.approx(longest, abs=0.05)
    by_characters = {f"{place}": most_shared_option(text, options) for place, (text, options, _) in enumerate(examples)}
    assert accuracy(gold, by_characters) == pytest.approx(shared_characters, abs=0.05)
