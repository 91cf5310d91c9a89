"""Labels of training and held-out examples, and what stands in both."""

import pytest

from preprocessing.errors import UserError
from preprocessing.labelled.examples import AnswerExample, ChooseExample, ClassifyExample, TagExample
from preprocessing.labelled.splits import check_labels, duplicates, labels_of


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
    check_labels(classify("a", "b"), classify("b"))
    with pytest.raises(UserError, match="f:1: label `c` is in no training example"):
        check_labels(classify("a", "b"), classify("a", "c"))
    tags = [TagExample(str(n), f"f:{n}", ("a",), (tag,)) for n, tag in enumerate(("O", "B-X"))]
    with pytest.raises(UserError, match="f:1: label `B-X`"):
        check_labels(tags[:1], tags)


def test_an_example_without_label_is_refused_where_labels_are_needed() -> None:
    for train, dev in ((classify("a", None), classify("a")), (classify("a", "b"), classify("a", None))):
        with pytest.raises(UserError, match="f:1: no label"):
            check_labels(train, dev)
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
