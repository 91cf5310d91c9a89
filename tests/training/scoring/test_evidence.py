"""HotpotQA's joint scores against the owner's script, and which sentences and paragraphs are kept."""

import random
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.evidence import Fact, evidence, fact_measures, joint_scores, kept_paragraphs

WORDS = [
    "yes",
    "no",
    "noanswer",
    "the",
    "a",
    "An",
    "Rome",
    "rome.",
    "-",
    "",
    "1,000",
    "St.",
    "of",
    "the-a",
    "é",
    "\t",
    "no!",
]


def drawn(count: int) -> tuple[dict[str, str], dict[str, list[Fact]], dict[str, str], dict[str, list[Fact]]]:
    """Gold and predictions of `count` questions, of which some have no prediction, no evidence, or a fact twice."""
    generator = random.Random(7)

    def text() -> str:
        return " ".join(generator.choices(WORDS, k=generator.choice([0, 1, 1, 1, 2, 3, 5])))

    def facts(most: int) -> list[Fact]:
        return [(generator.choice("ABc"), generator.randrange(3)) for _ in range(generator.randrange(most))]

    answers, gold, given, found = {}, {}, {}, {}
    for number in range(count):
        name = f"q{number}"
        answers[name], gold[name] = text(), facts(4)
        if generator.random() < 0.95:
            given[name] = answers[name] if generator.random() < 0.3 else text()
        if generator.random() < 0.95:
            found[name] = gold[name][::-1] * 2 if generator.random() < 0.3 else facts(6)
    return {name: [one] for name, one in answers.items()}, gold, given, found


def test_joint_scores_are_those_of_the_owners_script() -> None:
    """Its output for the 3,000 drawn questions (hotpot_evaluate_v1.py of hotpotqa/hotpot, commit 4c0fa5e)."""
    table = joint_scores(*drawn(3000))
    owners = {
        "answer": [0.35033333333333333, 0.22100079365079353, 0.22323333333333342, 0.22661111111111115],
        "support": [0.314, 0.30238253968253914, 0.2972111111111116, 0.33272222222222236],
        "joint": [0.11466666666666667, 0.06953453892913648, 0.06948194444444449, 0.07893333333333334],
    }
    for name, values in owners.items():
        assert table[name] == pytest.approx([100 * one for one in values], rel=1e-12, abs=0), name


def test_a_prediction_of_no_question_is_one_line() -> None:
    with pytest.raises(UserError, match=r"1 predictions are of examples without a label, first `r`"):
        joint_scores({"q": ["x"]}, {"q": []}, {"r": "x"}, {})


@pytest.mark.parametrize(
    ("sentences", "chosen"),
    [
        ({("A", 0): 1.0, ("A", 1): -9.0, ("B", 0): -5.0, ("C", 0): -6.0}, [("A", 0), ("B", 0)]),
        ({("A", 0): 1.0, ("A", 1): 0.5, ("B", 0): 0.9, ("C", 0): 0.8}, [("A", 0), ("A", 1), ("B", 0)]),
        ({("A", 0): -1.0, ("A", 3): -2.0}, [("A", 0)]),
    ],
)
def test_evidence_is_of_exactly_two_paragraphs(sentences: dict[Fact, float], chosen: list[Fact]) -> None:
    assert evidence(sentences) == chosen


def test_at_most_five_paragraphs_above_the_score_are_kept_and_two_in_any_case() -> None:
    scores: dict[str, Any] = {title: -float(number) for number, title in enumerate("abcdefg")}
    assert kept_paragraphs(scores, 5, -3.0) == ["a", "b", "c"]
    assert kept_paragraphs(scores, 5, -9.0) == list("abcde")
    assert kept_paragraphs(scores, 5, 3.0) == ["a", "b"]


def test_no_evidence_is_right_where_there_is_none() -> None:
    """As in the owner's script: exact, with a precision and a recall of 0."""
    assert fact_measures([], []) == (1.0, 0.0, 0.0, 0.0)
