"""Scores of one label, sets of labels and numbers, against their definitions and the figures of real data."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.errors import UserError
from reread.training.scoring.classification import (
    accuracy,
    auc,
    exact_sets,
    macro_f1,
    mean_absolute_error,
    micro_f1,
    pearson,
    positive_f1,
    root_mean_square_error,
    spearman,
)
from tests.training.scoring.real_data import rows, text_of

LABELS = ("a", "b", "c")
pairs_of_labels = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from((*LABELS, None))), min_size=1)
numbers = st.integers(-5, 5).map(float)


def by_id(values) -> dict:
    return {f"id{place}": value for place, value in enumerate(values) if value is not None}


def test_scores_by_hand() -> None:
    gold, predicted = by_id("aaab"), by_id("aabb")
    assert accuracy(gold, predicted) == 75
    assert macro_f1(gold, predicted, ("a", "b")) == (80 + 100 * 2 / 3) / 2
    assert positive_f1(gold, predicted, "b") == 100 * 2 / 3
    sets = {"1": {"x", "y"}, "2": set(), "3": {"z"}}
    guesses = {"1": ["x"], "2": ["z"], "3": ("z",)}
    assert micro_f1(sets, guesses) == 100 * 4 / 6
    assert exact_sets(sets, guesses) == 100 / 3


def test_a_label_that_never_occurs_counts_as_zero_in_macro_f1() -> None:
    gold = by_id("aab")
    assert macro_f1(gold, gold, ("a", "b", "c", "d")) == 50


def test_a_missing_prediction_is_wrong() -> None:
    gold, predicted = by_id("aab"), {"id0": "a"}
    assert accuracy(gold, predicted) == 100 / 3
    assert macro_f1(gold, predicted, ("a", "b")) == (100 * 2 / 3) / 2
    assert micro_f1({"1": {"x"}, "2": {"x"}}, {"1": {"x"}}) == 100 * 2 / 3
    assert exact_sets({"1": set(), "2": {"x"}}, {"2": {"x"}}) == 50  # an empty set has to be predicted, too


def test_a_prediction_without_gold_an_unknown_label_and_nothing_to_score_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^2 predictions are of examples without a label, first `id1`; "):
        accuracy(by_id("a"), by_id("abb"))
    with pytest.raises(UserError, match="label `z` is not one of the 2 labels"):
        macro_f1(by_id("ab"), by_id("az"), ("a", "b"))
    with pytest.raises(UserError, match="nothing to score"):
        accuracy({}, {})


def test_numbers_have_no_wrong_value_that_stands_for_a_missing_one() -> None:
    for score in (pearson, spearman, mean_absolute_error, root_mean_square_error):
        with pytest.raises(UserError, match="1 of 2 texts have no finite number predicted"):
            score(by_id([1.0, 2.0]), {"id0": 1.0})
        with pytest.raises(UserError, match="1 of 2 texts"):
            score(by_id([1.0, 2.0]), by_id([1.0, float("nan")]))
    with pytest.raises(UserError, match="AUC needs texts with and without the label `b`; here are 0, 2"):
        auc(by_id("aa"), by_id([0.1, 0.2]), "b")


@given(pairs_of_labels)
def test_scores_of_labels_follow_from_the_table_of_confusions(pairs) -> None:
    gold, predicted = by_id(label for label, _ in pairs), by_id(guess for _, guess in pairs)
    table = Counter(pairs)
    each = []
    for label in LABELS:
        hit = table[label, label]
        false_alarms = sum(table[other, label] for other in LABELS if other != label)
        misses = sum(table[label, other] for other in (*LABELS, None) if other != label)
        each.append(200 * hit / (2 * hit + false_alarms + misses) if hit else 0.0)
        assert positive_f1(gold, predicted, label) == pytest.approx(each[-1], rel=1e-12)
    assert macro_f1(gold, predicted, LABELS) == pytest.approx(sum(each) / 3, rel=1e-12)
    assert accuracy(gold, predicted) == pytest.approx(100 * sum(table[x, x] for x in LABELS) / len(pairs), rel=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1))
def test_auc_is_how_often_a_positive_text_wins(pairs) -> None:
    gold, probabilities = by_id("ny"[is_positive] for is_positive, _ in pairs), by_id(value / 4 for _, value in pairs)
    wins = [(a > b) + (a == b) / 2 for is_a, a in pairs for is_b, b in pairs if is_a and not is_b]
    if wins:
        assert auc(gold, probabilities, "y") == pytest.approx(100 * sum(wins) / len(wins), rel=1e-12)


def test_correlations_by_hand() -> None:
    gold, predicted = by_id([1.0, 2.0, 3.0, 4.0]), by_id([1.0, 3.0, 3.0, 9.0])
    assert pearson(gold, predicted) == pytest.approx(12 / np.sqrt(5 * 36), rel=1e-12)
    assert spearman(gold, predicted) == pytest.approx(4.5 / np.sqrt(5 * 4.5), rel=1e-12)  # ranks 1, 2.5, 2.5, 4
    assert pearson(gold, by_id([2.0] * 4)) == spearman(gold, by_id([2.0] * 4)) == 0


def test_errors_are_in_the_unit_of_the_numbers() -> None:
    gold, predicted = by_id([1.0, 2.0, 6.0, 5.0]), by_id([1.0, 4.0, 3.0, 6.0])
    assert mean_absolute_error(gold, predicted) == 1.5
    assert root_mean_square_error(gold, predicted) == pytest.approx(np.sqrt(3.5), rel=1e-15)
    in_cents = [by_id(100 * value for value in side.values()) for side in (gold, predicted)]
    assert mean_absolute_error(*in_cents) == 150 and spearman(*in_cents) == spearman(gold, predicted)


@given(st.lists(st.tuples(numbers, numbers), min_size=2), st.randoms(use_true_random=False))
def test_correlations_follow_their_definition_in_any_order(pairs, shuffler) -> None:
    a, b = (list(side) for side in zip(*pairs, strict=True))
    gold, predicted = by_id(a), by_id(b)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert pearson(gold, predicted) == pytest.approx(np.corrcoef(a, b)[0, 1], rel=1e-9, abs=1e-11)
        ranks = [[sum(y < x for y in side) + sum(y == x for y in side) / 2 for x in side] for side in (a, b)]
        assert spearman(gold, predicted) == pytest.approx(np.corrcoef(*ranks)[0, 1], rel=1e-9, abs=1e-11)
    names = list(gold)
    shuffler.shuffle(names)
    shuffled = {name: gold[name] for name in names}
    assert pearson(shuffled, predicted) == pearson(gold, predicted)
    assert spearman(shuffled, predicted) == spearman(gold, predicted)


@given(st.lists(numbers, min_size=2).filter(lambda values: len(set(values)) > 1))
def test_a_perfect_prediction_has_correlation_1(values) -> None:
    gold = by_id(values)
    assert pearson(gold, gold) == spearman(gold, gold) == 1
    assert spearman(gold, by_id(value**3 for value in values)) == 1


def test_majority_figures_of_the_real_data() -> None:
    train, dev = rows("zh_chnsenticorp/train.tsv.xz"), rows("zh_chnsenticorp/dev.tsv.xz")
    most = Counter(label for label, _ in train).most_common(1)[0][0]
    assert accuracy(by_id(label for label, _ in dev), by_id(most for _ in dev)) == pytest.approx(50.6, abs=0.05)
    split = {}
    for name in ("train", "dev"):
        text = text_of(f"zh_iflytek_fewclue/{name}_few_all.json.xz")
        split[name] = by_id(str(json.loads(line)["label"]) for line in text.split("\n") if line)
    most = Counter(split["train"].values()).most_common(1)[0][0]
    guess = dict.fromkeys(split["dev"], most)
    assert accuracy(split["dev"], guess) == pytest.approx(2.8, abs=0.05)
    labels = sorted(set(split["train"].values()))
    assert len(labels) == 119
    assert macro_f1(split["dev"], guess, labels) < 0.1
    # all 119 right, but two classes are absent from dev
    assert macro_f1(split["dev"], split["dev"], labels) == pytest.approx(100 * 117 / 119)


def test_figures_of_hyperpartisan_that_need_no_model() -> None:
    truth = text_of("en_hyperpartisan/ground-truth-training-byarticle-20181122.xml.xz")
    labels = [line.split('hyperpartisan="')[1].split('"')[0] for line in truth.split("\n") if 'hyperpartisan="' in line]
    gold = by_id(labels)
    all_false, all_true = dict.fromkeys(gold, "false"), dict.fromkeys(gold, "true")
    assert accuracy(gold, all_false) == pytest.approx(63.1, abs=0.05)
    assert macro_f1(gold, all_false, ("false", "true")) == pytest.approx(38.7, abs=0.05)
    assert positive_f1(gold, all_true, "true") == pytest.approx(53.9, abs=0.05)


def test_order_of_examples_changes_no_bit() -> None:
    names = [f"{place}" for place in range(997)]
    draw = random.Random(0)
    gold = {name: draw.choice("abcdefg") for name in names}
    predicted = {name: draw.choice("abcdefg") for name in names[5:]}
    expected = macro_f1(gold, predicted, "abcdefg"), accuracy(gold, predicted)
    draw.shuffle(names)
    shuffled = {name: gold[name] for name in names}
    assert (macro_f1(shuffled, predicted, "abcdefg"), accuracy(shuffled, predicted)) == expected
