"""The table of scores: each kind's names, needs, direction and default."""

import math
import subprocess
import sys

import pytest

from reread.preprocessing.errors import UserError
from reread.training.scoring.task_scores import SCORES, chosen_score, formatted, scores
from reread.training.trainer import LOWER_IS_BETTER

PERFECT = {
    "classify-one": (
        {"1": "a", "2": "b"},
        {"1": "a", "2": "b"},
        {"labels": ("a", "b"), "positive": "b", "probabilities": {"1": 0.1, "2": 0.9}},
    ),
    "classify-set": ({"1": {"a"}, "2": {"a", "b"}}, {"1": ["a"], "2": ["b", "a"]}, {}),
    "classify-number": ({"1": 1.0, "2": 2.0, "3": 4.0}, {"1": 1.0, "2": 2.0, "3": 4.0}, {}),
    "tag": ({"1": ["B-X", "I-X", "O"]}, {"1": ["B-X", "I-X", "O"]}, {"scheme": "BIO"}),
    "answer": ({"1": ["甲", "乙丙"], "2": []}, {"1": "乙丙。", "2": ""}, {"style": "cmrc"}),
    "answer-evidence": ({"1": (["甲"], [("a", 0)])}, {"1": ("甲。", [("a", 0)])}, {"style": "cmrc"}),
    "evidence": ({"1": (["甲"], [("a", 0)])}, {"1": ("", [("a", 0)])}, {"style": "cmrc"}),
    "rank": ({"1": [0, 1], "2": [2, 0, 1]}, {"1": [0.1, 0.2], "2": [3, 1, 2]}, {}),
    "embed-similarity": ({"1": 1.0, "2": 2.0}, {"1": 0.1, "2": 0.3}, {}),
    "embed-retrieval": ({"1": [0, 1], "2": [2, 0, 1]}, {"1": [0.1, 0.2], "2": [3, -math.inf, 2]}, {}),
    "phrases": ({"1": [("a", "b")]}, {"1": [("a", "b")]}, {}),
    "coreference": ({"1": [[(0, 1), (2, 3)]]}, {"1": [[(2, 3), (0, 1)]]}, {}),
    "generate": ({"1": "北京 a b"}, {"1": "北京 A b."}, {}),
    "choose": ({"1": 0, "2": 1}, {"1": 0, "2": 1}, {"groups": {"1": "x", "2": "x"}}),
}


@pytest.mark.parametrize("kind", SCORES)
def test_a_perfect_prediction_gives_the_best_of_every_score_of_every_kind(kind) -> None:
    gold, predicted, given = PERFECT[kind]
    best = {"spearman": 1, "pearson": 1, "mae": 0, "rmse": 0, "f1@3": 50, "f1@5": 100 / 3}  # the gold has one phrase
    assert scores(kind, gold, predicted, **given) == pytest.approx({name: best.get(name, 100) for name in SCORES[kind]})


@pytest.mark.parametrize("kind", sorted(SCORES.keys() - {"classify-number", "embed-similarity"}))
def test_no_prediction_at_all_gives_0(kind) -> None:
    gold, _, given = PERFECT[kind]
    given = {name: value for name, value in given.items() if name != "probabilities"}
    assert set(scores(kind, gold, {}, **given).values()) == {0}


def test_a_score_whose_needs_are_not_given_is_left_out() -> None:
    gold, predicted, _ = PERFECT["classify-one"]
    assert list(scores("classify-one", gold, predicted)) == ["accuracy", "matthews"]
    assert list(scores("classify-one", gold, predicted, labels=("a", "b"))) == ["accuracy", "macro-f1", "matthews"]
    with pytest.raises(TypeError, match=r"need \['style'\]"):
        scores("answer", {"1": ["x"]}, {"1": "x"})
    with pytest.raises(TypeError, match=r"do not take \['scheme'\]"):
        scores("choose", {"1": 0}, {"1": 0}, scheme="BIO")


def test_a_score_that_the_texts_do_not_have_is_left_out_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    _, predicted, given = PERFECT["classify-one"]
    with caplog.at_level("INFO", logger="reread"):
        assert list(scores("classify-one", {"1": "a", "2": "a"}, predicted, **given)) == [
            "accuracy",
            "macro-f1",
            "positive-f1",
            "matthews",
        ]
    assert caplog.messages == ["auc: left out, since AUC needs texts with and without the label `b`; here are 0, 2"]


def test_each_kind_has_the_score_that_chooses_its_best_checkpoint() -> None:
    assert {kind: chosen_score(kind)[0] for kind in SCORES} == {
        "classify-one": "accuracy",
        "classify-set": "micro-f1",
        "classify-number": "spearman",
        "tag": "entity-f1",
        "answer": "f1",
        "answer-evidence": "joint-f1",
        "evidence": "support-f1",
        "choose": "accuracy",
        "rank": "ndcg@10",
        "embed-similarity": "spearman",
        "embed-retrieval": "ndcg@10",
        "phrases": "f1@3",
        "coreference": "conll-f1",
        "generate": "rouge-l",
    }
    lower = {name for table in SCORES.values() for name, score in table.items() if not score.higher_is_better}
    assert lower == {"mae", "rmse"} and lower <= set(LOWER_IS_BETTER)
    assert [formatted(*one) for one in (("spearman", 0.87654321), ("mae", 1234.56), ("f1", 87.654))] == [
        "0.8765",
        "1235",
        "87.65",
    ]
    assert chosen_score("answer", "em")[0] == "em"
    with pytest.raises(UserError, match="`tag` has no score `entity_f1`; did you mean `entity-f1`"):
        chosen_score("tag", "entity_f1")


def test_scoring_needs_neither_torch_nor_scikit_learn() -> None:
    names = ["answers", "baselines", "classification", "entities", "options", "ranking", "spans", "task_scores"]
    names.append("written")
    code = "".join(f"import reread.training.scoring.{name}\n" for name in names)
    code += "import sys; sys.exit(bool({'torch', 'sklearn', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
