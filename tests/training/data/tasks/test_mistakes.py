"""What is kept of a model's predictions: scores by class, confusion, and the worst errors, by counting by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.data.tasks.dataset import SHOWN
from reread.training.data.tasks.mistakes import CONFUSED, WORST, analysis
from reread.training.scoring.spans import Decoded, Span
from tests.tasks import dataset_of, task_values, write_tokenizer


def analysed(tmp_path: Path, kind: str, examples: list[Example], predictions: list[Any], **task: Any) -> dict[str, Any]:
    data = dataset_of(task_values("nezha", kind, write_tokenizer(tmp_path / "model"), **task), examples)
    found = analysis(data, dict(enumerate(predictions)))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def text(identity: str, label: Any, second: str | None = None) -> ClassifyExample:
    return ClassifyExample(identity, "f", f"text {identity}", second, label)


def test_one_label_has_its_classes_their_confusion_and_the_surest_errors_first(tmp_path: Path) -> None:
    examples: list[Example] = [
        text("1", "a"),
        text("2", "a", "s" * 999),
        text("3", "b"),
        text("4", "a"),
        text("5", "c"),
    ]
    chances = [[0.9, 0.1, 0], [0.4, 0.6, 0], [0.95, 0.05, 0], [0.5, 0.3, 0.2], [0, 0, 1]]
    found = analysed(tmp_path, "classify", examples, list(map(np.array, chances)), labels=["a", "b", "c"])
    assert (found["examples"], found["wrong"]) == (5, 2)
    assert found["classes"] == [["a", 3, 3, 2], ["b", 1, 1, 0], ["c", 1, 1, 1]]
    assert found["confusion"] == {"labels": ["a", "b", "c"], "rows": [[2, 1, 0], [1, 0, 0], [0, 0, 1]]}
    assert [(one["id"], one["gold"], one["predicted"]) for one in found["worst"]] == [
        ("3", "b (0.05)", "a (0.95)"),
        ("2", "a (0.40)", "b (0.60)"),
    ]
    assert found["worst"][1]["text"] == "text 2\n" + SHOWN * "s"


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    labels = [str(number) for number in range(300)]
    examples: list[Example] = [text(label, label) for label in labels]
    wrong = list(np.roll(np.eye(300), 1, axis=1))
    found = analysed(tmp_path, "classify", examples, wrong, labels=labels)
    assert (found["wrong"], len(found["worst"]), len(found["classes"])) == (300, WORST, 200)
    assert len(found["confusion"]["labels"]) == len(found["confusion"]["rows"]) == CONFUSED


def test_a_set_of_labels_is_counted_label_by_label(tmp_path: Path) -> None:
    examples: list[Example] = [text("1", ("a", "b")), text("2", ()), text("3", ("b",))]
    chances = [np.array([0.9, 0.1]), np.array([0.8, 0.7]), np.array([0.1, 0.9])]
    found = analysed(tmp_path, "classify", examples, chances, labels=["a", "b"], answer="set")
    assert found["classes"] == [["b", 2, 2, 1], ["a", 1, 2, 1]] and found["confusion"] is None
    worst = [(one["id"], one["gold"], one["predicted"]) for one in found["worst"]]
    assert worst == [("2", "none", "a, b"), ("1", "a, b", "a")]


def test_numbers_have_the_largest_differences(tmp_path: Path) -> None:
    examples: list[Example] = [text("1", 1.0), text("2", 3.5)]
    found = analysed(tmp_path, "classify", examples, [np.array([1.5]), np.array([0.25])], answer="number")
    assert [(one["id"], one["gold"], one["predicted"]) for one in found["worst"]] == [
        ("2", "3.5", "0.25"),
        ("1", "1", "1.5"),
    ]
    assert found["classes"] == []


def test_tags_are_counted_by_entities(tmp_path: Path) -> None:
    tags = ("B-X", "I-X", "O", "B-Y")
    examples: list[Example] = [TagExample(n, "f", ("a", "b", "c", "d"), tags) for n in "12"]
    labels = ["B-X", "B-Y", "I-X", "O"]
    found = analysed(tmp_path, "tag", examples, [("B-X", "O", "O", "B-Y"), tags], labels=labels)
    assert (found["wrong"], found["classes"]) == (1, [["X", 2, 2, 1], ["Y", 2, 2, 2]])
    assert found["worst"] == [{"id": "1", "text": "abcd", "gold": "ab = X", "predicted": "a = X"}]


def test_answers_and_options_are_shown_with_their_question(tmp_path: Path) -> None:
    asked: list[Example] = [
        AnswerExample("1", "f", "x " * 500 + "a b", "where ?", (Answer(1000, "a b"),)),
        AnswerExample("2", "f", "a b", "who ?", (Answer(0, "a"),)),
    ]
    spans = [Decoded(Span(0, 1, 1.0, 0.5), ()), Decoded(Span(0, 1, 1.0, 0.5), ())]
    found = analysed(tmp_path, "answer", asked, spans, sequence_length=64)
    ((one),) = found["worst"]
    assert (found["wrong"], one["id"], one["gold"], one["predicted"]) == (1, "1", "a b", "x")
    assert one["text"].startswith("where ?\n...x ") and one["text"].endswith("a b")
    chosen: list[Example] = [ChooseExample(n, "f", "t", "q ?", ("a", "b"), 1) for n in "12"]
    found = analysed(tmp_path, "choose", chosen, [np.array([0.75, 0.25]), np.array([0.25, 0.75])])
    assert found["worst"] == [{"id": "1", "text": "q ?\nt", "gold": "b (0.25)", "predicted": "a (0.75)"}]


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "never"]])
def test_a_class_that_held_out_examples_lack_has_no_row_but_a_place_in_the_confusion(
    labels: list[str], tmp_path: Path
) -> None:
    chances = np.eye(len(labels))[[0, 1]]
    found = analysed(tmp_path, "classify", [text("1", "a"), text("2", "b")], list(chances), labels=labels)
    assert [one[0] for one in found["classes"]] == ["a", "b"] and found["confusion"]["labels"] == labels
