"""WikiHop's files: questions with candidates over several supports."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from tests.conftest import shared
from tests.preprocessing.labelled.files import write


def asked(**more: Any) -> dict[str, Any]:
    values = {"id": "W", "query": "q of x", "candidates": ["a", "b"], "supports": ["One. ", "", "Two."], "answer": "b"}
    return {name: value for name, value in {**values, **more}.items() if value is not None}


def read(folder: Path, *questions: Any) -> list[Any]:
    return read_examples(write(folder / "dev.json", json.dumps(questions)), "choose").examples


def test_supports_are_documents_of_one_text_and_copies_are_left_out(tmp_path: Path) -> None:
    one, other = read(tmp_path, asked(candidates=["a", "a", "b"]), asked(id="V", answer=None))
    assert (one.text, one.documents) == ("One.\nTwo.", ["One.", "Two."])
    assert (one.question, one.options, one.label, other.label) == ("q of x", ("a", "b"), 1, None)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (asked(answer="c"), "question 1, W: the answer `c` is none of its 2 candidates"),
        (asked(candidates=None), "question 1: .*candidates"),
        (asked(candidates=["b"]), "question 1, W: 1 options; a choice needs two or more"),
        (asked(supports=[]), "question 1: .*supports"),
        (asked(supports=[" "]), "question 1, W: .*text"),
        (asked(query=None), "question 1: .*query"),
        (asked(candidates=["b", ""]), "question 1, W: .*option 1"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_question(tmp_path: Path, values: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as raised:
        read(tmp_path, values)
    assert "\n" not in str(raised.value)


def test_every_answer_of_the_real_file_is_a_candidate() -> None:
    found: list[Any] = read_examples(shared("en_wikihop/train-first.json.xz"), "choose").examples
    assert len(found) == 22 and all(one.label is not None for one in found)
    assert sum(len(one.documents) for one in found) == 331
