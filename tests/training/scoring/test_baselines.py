"""Baselines: small cases, and the figures of the real data that they are known for."""

import sys

import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.answers import answer_f1, exact_match
from reread.training.scoring.baselines import (
    BagOfGrams,
    KnownEntities,
    likeliest_clause,
    longest_option,
    majority,
    most_shared_option,
)
from reread.training.scoring.classification import accuracy
from reread.training.scoring.entities import entity_scores
from tests.conftest import extra
from tests.training.scoring.real_data import peoples_daily, questions, rows


def test_the_first_of_equals_counts() -> None:
    assert majority(["b", "a", "b", "a", "c"]) == "a"
    assert majority([2, 1, 2]) == 2
    assert longest_option(["ab", "abc", "xyz"]) == 1
    assert most_shared_option("xyz", ["aa", "xa", "ya"]) == 1
    with pytest.raises(UserError, match="no label"):
        majority([])


def test_the_clause_that_shares_most_with_the_question() -> None:
    context = "河在东边。桥有两座，桥名叫长桥！夜里有灯"
    start, end = likeliest_clause(context, "那座桥名叫什么？")
    assert context[start:end] == "桥名叫长桥"
    assert likeliest_clause("。，", "什么") == (0, 0)
    assert likeliest_clause("甲乙，丙丁", "什么") == (0, 2)


def test_known_entities_are_matched_from_the_left_and_longest_first() -> None:
    train = [
        (list("长桥站在城南"), ["B-ORG", "I-ORG", "I-ORG", "O", "B-LOC", "I-LOC"]),
        (list("长桥长桥长桥"), ["B-LOC", "I-LOC", "B-LOC", "I-LOC", "B-PER", "I-PER"]),
        (list("河"), ["B-LOC"]),
    ]
    known = KnownEntities(train)
    assert known.tags(list("到长桥站河长桥长")) == ["O", "B-ORG", "I-ORG", "I-ORG", "O", "B-LOC", "I-LOC", "O"]
    assert known.tags(list("到长桥")) == ["O", "B-LOC", "I-LOC"]  # a longer name begins so, but the text ends
    assert KnownEntities(train, shortest=1).tags(["河"]) == ["B-LOC"]
    bioes = [(["长", "桥", "站", "河"], ["B-X", "I-X", "E-X", "S-Y"])]
    assert KnownEntities(bioes, "BIOES", shortest=1).tags(["河", "长", "桥", "站"]) == ["S-Y", "B-X", "I-X", "E-X"]


@pytest.mark.long
@pytest.mark.slow
def test_the_clause_baseline_on_cmrc_and_drcd() -> None:
    for path, em, f1, squad in (
        ("zh_cmrc2018/cmrc2018_dev.json.xz", 0.3, 19.6, 0.7),
        ("zh_drcd/DRCD_dev.json.xz", 0.0, 15.6, 0.0),
    ):
        asked = questions(path)
        gold = {q.id: q.answers for q in asked}
        predicted = {q.id: q.context[slice(*likeliest_clause(q.context, q.question))] for q in asked}
        assert exact_match(gold, predicted, "cmrc") == pytest.approx(em, abs=0.05)
        assert answer_f1(gold, predicted, "cmrc") == pytest.approx(f1, abs=0.05)
        assert answer_f1(gold, predicted, "squad") == pytest.approx(squad, abs=0.05)


@pytest.mark.long
@pytest.mark.slow
def test_known_entities_of_peoples_daily() -> None:
    sentences = peoples_daily()
    assert len(sentences) == 50_658
    known, held_out = KnownEntities(sentences[:20_000]), sentences[-5000:]
    gold = {f"{place}": tags for place, (_, tags) in enumerate(held_out)}
    predicted = {f"{place}": known.tags(tokens) for place, (tokens, _) in enumerate(held_out)}
    assert entity_scores(gold, predicted).f1 == pytest.approx(48.0, abs=0.05)


def test_without_scikit_learn_the_bag_is_one_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(UserError, match=r"needs scikit-learn .*pip install 'reread\[baselines\]'"):
        BagOfGrams(["甲", "乙"], ["0", "1"], unit="char")


@pytest.mark.long
def test_the_bag_of_characters_on_chnsenticorp() -> None:
    extra("baselines", "sklearn")
    train, dev = rows("zh_chnsenticorp/train.tsv.xz"), rows("zh_chnsenticorp/dev.tsv.xz")
    bag = BagOfGrams([text for _, text in train], [label for label, _ in train], unit="char")
    predicted = bag.predict([text for _, text in dev])
    gold = {f"{place}": label for place, (label, _) in enumerate(dev)}
    score = accuracy(gold, {f"{place}": label for place, label in enumerate(predicted)})
    assert score == pytest.approx(90.9, abs=0.3)  # versions of scikit-learn stop at other places
    with pytest.raises(UserError, match="two labels or more"):
        BagOfGrams(["甲", "乙"], ["0", "0"], unit="char")


def test_a_word_of_one_character_is_a_word_and_texts_without_any_are_one_line() -> None:
    extra("baselines", "sklearn")
    bag = BagOfGrams(["a b", "c d", "b a", "d c"], ["x", "y", "x", "y"], unit="word")
    assert bag.predict(["b", "d", "a b"]) == ["x", "y", "x"]
    with pytest.raises(UserError, match=r"bag-of-words baseline cannot be made \(empty vocabulary"):
        BagOfGrams(["!", "?"], ["x", "y"], unit="word")
