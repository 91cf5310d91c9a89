"""Weights of classes in the loss: torch's and scikit-learn's definitions, written a second time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.data.tasks.class_weights import class_weights
from reread.training.objectives import OBJECTIVES
from tests.tasks import dataset_of, objective_of, task_values, write_tokenizer

ONE = [ClassifyExample(str(n), f"f:{n}", "a b", None, "xyy"[n % 3]) for n in range(6)]
SET = [ClassifyExample(str(n), f"f:{n}", "a b", None, ("x", "y")[: 1 + n % 2]) for n in range(6)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def objective(tokenizer: Path, examples: Any, kind: str = "classify", **task: Any) -> Any:
    return objective_of(task_values("nezha", kind, tokenizer, labels=["x", "y"], sequence_length=8, **task), examples)


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def test_a_text_counts_as_much_as_its_class_weighs(tokenizer: Path) -> None:
    logits = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    rows = {"labels": np.array([0, 1]), "learns": np.array([True, True])}
    of_rows = -torch.log_softmax(logits, -1)
    for given, (x, y) in (([3.0, 0.5], (3, 0.5)), ("balanced", (6 / (2 * 2), 6 / (2 * 4)))):
        loss, right = objective(tokenizer, ONE, class_weights=given).loss(Output(logits), rows)
        assert loss.item() == pytest.approx((x * of_rows[0, 0] + y * of_rows[1, 1]).item())
        assert right == 2


def test_a_label_of_a_set_weighs_where_it_is_there(tokenizer: Path) -> None:
    logits = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    rows = {"labels": np.array([[0.0, 1.0]]), "learns": np.array([True])}
    found = objective(tokenizer, SET, answer="set", class_weights="balanced")
    assert class_weights(found.data, {"x": 6, "y": 3}, 6) == [0, 1]
    found = objective(tokenizer, SET, answer="set", class_weights=[1, 4])
    absent, there = -torch.log(1 - torch.sigmoid(logits[0, 0])), -torch.log(torch.sigmoid(logits[0, 1]))
    assert found.loss(Output(logits), rows)[0].item() == pytest.approx(((absent + 4 * there) / 2).item())


def test_a_tag_weighs_at_its_token(tokenizer: Path) -> None:
    examples = [TagExample("1", "f:1", ("a", "b", "c"), ("x", "y", "y"))]
    logits = torch.tensor([[[1.0, 0.0], [0.5, 2.0]]], dtype=torch.float64)
    rows = {"labels": np.array([[0, 1]]), "learns": np.array([True])}
    of_rows = -torch.log_softmax(logits[0], -1)
    loss, _ = objective(tokenizer, examples, "tag", class_weights="balanced").loss(Output(logits), rows)
    assert loss.item() == pytest.approx((1.5 * of_rows[0, 0] + 0.75 * of_rows[1, 1]).item())


@pytest.mark.parametrize(
    ("kind", "task", "message"),
    [
        ("classify", {"class_weights": [1.0]}, "1 weights for 2 classes; give one for each of x, y, in this order"),
        ("classify", {"class_weights": [0, 0]}, "all of them are 0"),
        ("classify", {"class_weights": "balanced", "answer": "number"}, "numbers to predict have no classes"),
        ("tag", {"class_weights": "balanced", "crf": True}, "not with task.crf"),
        ("classify", {"threshold": "each", "dev": "d"}, "task.threshold: for task.answer=set"),
        ("classify", {"threshold": "each", "answer": "set"}, "is chosen on task.dev, which is not given"),
        ("classify", {"thresholds": [0.1], "answer": "set"}, "task.thresholds: 1 for 2 labels"),
    ],
)
def test_weights_and_thresholds_that_cannot_be_are_one_line(
    tokenizer: Path, kind: str, task: dict[str, Any], message: str
) -> None:
    examples = [TagExample("1", "f:1", ("a",), ("x",))] if kind == "tag" else ONE
    data = dataset_of(task_values("nezha", kind, tokenizer, labels=["x", "y"], **task), examples).settings
    with pytest.raises(UserError, match=message):
        OBJECTIVES[kind].check(object(), data)
