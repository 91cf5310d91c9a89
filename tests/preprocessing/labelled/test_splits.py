"""Labels of training and held-out examples, and what stands in both."""

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.splits import check_labels, duplicates, labels_of, with_labels
from reread.preprocessing.labelled.tasks.answer import AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.tag import TagExample


def classify(*labels: object, text: str = "x") -> list[ClassifyExample]:
    return [ClassifyExample(str(n), f"f:{n}", text, None, label) for n, label in enumerate(labels)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1", "9"], ["-1", "9", "10"]),
        (["1.5", "1", "01"], ["01", "1", "1.5"]),
        (["b", "10", "9", "a"], ["10", "9", "a", "b"]),
        (["nan", "2", "inf"], ["2", "inf", "nan"]),
        ([("b", "a"), (), ("c",)], ["a", "b", "c"]),
        ([0.5, 2.0], []),
    ],
)
def test_labels_have_one_order(labels: list[object], expected: list[str]) -> None:
    assert labels_of(classify(*labels)) == labels_of(classify(*reversed(labels))) == expected


def test_tags_are_labels_and_options_are_not() -> None:
    assert labels_of([TagExample("1", "f:1", ("a", "b"), ("O", "B-X"))]) == ["B-X", "O"]
    assert labels_of([ChooseExample("1", "f:1", "t", "q", ("a", "b"), 1)]) == []


def test_a_label_that_training_lacks_is_named_with_its_place() -> None:
    check_labels(["a", "b"], classify("b"))
    with pytest.raises(UserError, match="f:1: label `c` is in no training example"):
        check_labels(["a", "b"], classify("a", "c"))
    tags = [TagExample(str(n), f"f:{n}", ("a",), (tag,)) for n, tag in enumerate(("O", "B-X"))]
    with pytest.raises(UserError, match="f:1: label `B-X`"):
        check_labels(labels_of(tags[:1]), tags)


def test_a_mistyped_label_is_named_with_the_nearest_and_the_setting_that_states_the_set() -> None:
    with pytest.raises(UserError) as caught:
        check_labels(["negative", "positive"], classify("positive", "postive", "postive"))
    line = str(caught.value)
    assert line.startswith("f:1: label `postive` (2 times) is in no training example") and "\n" not in line
    assert "did you mean `positive`?" in line and """'task.labels=["negative", "positive"]'""" in line
    with pytest.raises(UserError, match=r"f:0: label `x` is none of task\.labels; correct it, add it there, or leave"):
        check_labels(["negative", "positive"], classify("x"), stated=True)
    many = [str(number) for number in range(1000)]
    with pytest.raises(UserError) as caught:
        check_labels(many, classify("x"))
    assert len(str(caught.value)) < 500


def test_examples_without_a_label_or_with_an_unknown_one_are_left_out() -> None:
    examples = [*classify("a", None, "c", "b", ("a", "c"), ("a", "b"), ())]
    kept, left_out = with_labels(examples, ["a", "b"])
    assert [one.id for one in kept] == ["0", "3", "5", "6"]
    assert left_out == ["f:1: no label", "f:2: label `c` is unknown", "f:4: label `c` is unknown"]
    assert [one.id for one in with_labels(examples, [])[0]] == ["0", "2", "3", "4", "5", "6"]


def test_an_example_without_label_is_refused_where_labels_are_needed() -> None:
    with pytest.raises(UserError, match=r"f:1: no label; label it, or leave such examples out by `task\.wrong=skip`"):
        check_labels(["a"], classify("a", None))
    with pytest.raises(UserError, match="f:1: no label"):
        labels_of(classify("a", None))
    with pytest.raises(UserError, match="f:0: no label"):
        labels_of([AnswerExample("1", "f:0", "t", "q")])
    assert labels_of([AnswerExample("1", "f:0", "t", "q", ())]) == []


def test_duplicates_share_text_and_question() -> None:
    train = [AnswerExample(n, n, "t", n, ()) for n in "ab"]
    assert duplicates(train, [AnswerExample(n, n, "t", n) for n in "bbc"]) == 2
    pair = [ClassifyExample("1", "f", "t", "s", "1")]
    assert duplicates(pair, [ClassifyExample("9", "f", "t", second) for second in ("s", "z", None)]) == 1
    words = [TagExample("1", "f", ("a", "b"), ("O", "O"))]
    assert duplicates(words, [TagExample("2", "g", ("a", "b")), TagExample("3", "g", ("ab",))]) == 1
