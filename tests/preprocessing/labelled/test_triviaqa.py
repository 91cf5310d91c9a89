"""TriviaQA's files: questions whose documents lie in files of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, AnswerExample
from tests.preprocessing.labelled.files import question, write

EMMA = "Emma is by JANE Austen. Austen, not Austenite, wrote it; ask Jane\u00a0Austen."


def written(folder: Path, *questions: Any, **more: Any) -> Path:
    write(folder / "evidence/wikipedia/Emma.txt", EMMA)
    write(folder / "evidence/wikipedia/a/Bath.txt", "A city.")
    write(folder / "evidence/web/1/1_2.txt", "austen")
    return write(folder / "qa/dev.json", json.dumps({"Data": questions, "Domain": "Wikipedia", **more}))


def read(path: Path, **how: Any) -> list[AnswerExample]:
    found: list[Any] = read_examples(path, "answer", **how).examples
    return found


def test_all_places_of_all_aliases_are_answers_of_each_document(tmp_path: Path) -> None:
    """Whole words in any case; the longest alias that begins at a place. All aliases are right in the scores."""
    emma, bath = read(written(tmp_path, question("q", "Emma.txt", "a/Bath.txt")))
    assert [(one.id, one.question_id, one.text) for one in (emma, bath)] == [
        ("q--Emma.txt", "q", EMMA),
        ("q--a/Bath.txt", "q", "A city."),
    ]
    everywhere = [(ELSEWHERE, "austen"), (ELSEWHERE, "jane austen")]
    assert emma.answers is not None and bath.answers is not None
    assert [*emma.answers] == [(11, "JANE Austen"), (24, "Austen"), (66, "Austen"), *everywhere]
    assert [*bath.answers] == everywhere
    assert (len(emma.learnable), bath.learnable) == (3, ())
    assert emma.can_be_learned and not bath.can_be_learned


def test_documents_of_the_web_have_answers_of_their_own(tmp_path: Path) -> None:
    asked = {**question("q", "Emma.txt"), "SearchResults": [{"Filename": "1/1_2.txt"}]}
    assert [(one.id, one.question_id) for one in read(written(tmp_path, asked, Domain="Web"))] == [
        ("q--Emma.txt", None),
        ("q--1/1_2.txt", None),
    ]
    assert len(read(written(tmp_path, asked))) == 1


def test_a_question_without_an_answer_is_unlabelled(tmp_path: Path) -> None:
    path = written(tmp_path, {**question("q", "Emma.txt"), "Answer": None})
    assert [one.answers for one in read(path)] == [None]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (question("q", "No.txt"), "question 1, No.txt: cannot be read in .*wikipedia .No such file"),
        (question("q", "../../secret"), "question 1, ../../secret: leads out of the folder of documents"),
        (question("q"), "question 1: q names no document"),
        ({**question("q", "Emma.txt"), "Answer": {"Aliases": ["x"]}}, "question 1: .*NormalizedAliases.*required"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_question(tmp_path: Path, asked: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        read(written(tmp_path, asked))


def test_without_its_documents_the_line_says_where_they_belong(tmp_path: Path) -> None:
    path = write(tmp_path / "x/qa/dev.json", json.dumps({"Data": [question("q", "Emma.txt")]}))
    with pytest.raises(UserError, match=r"put TriviaQA's folder evidence/ at .*x/evidence"):
        read(path)
