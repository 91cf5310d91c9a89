"""HotpotQA's files: questions over paragraphs, to answer or to rank the paragraphs."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, NOWHERE
from tests.conftest import shared
from tests.preprocessing.labelled.files import write

PARAGRAPHS = [["Rome", ["Rome is a city.", " It is old."]], ["Emma", ["Emma is a novel.", " It is by Rome Austen."]]]


def asked(**more: Any) -> dict[str, Any]:
    facts = [["Emma", 1], ["Rome", 0]]
    values = {"_id": "q", "question": "?", "answer": "Rome", "supporting_facts": facts, "context": PARAGRAPHS}
    return {name: value for name, value in {**values, "type": "bridge", **more}.items() if value is not None}


def read(folder: Path, task: str, *questions: Any) -> list[Any]:
    return read_examples(write(folder / "dev.json", json.dumps(questions)), task).examples


def test_an_answer_stands_in_supporting_sentences_first(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "answer", asked())
    assert one.text == "Rome\nRome is a city. It is old.\nEmma\nEmma is a novel. It is by Rome Austen."
    assert [one.text[at:][:9] for at, _ in one.answers] == ["Rome is a", "Rome Aust", "Rome\nRome"]
    assert {text for _, text in one.answers} == {"Rome"}


@pytest.mark.parametrize(
    ("answer", "found"),
    [("yes", ((NOWHERE, "YES"),)), ("no", ((NOWHERE, "NO"),)), ("Bath", ((ELSEWHERE, "Bath"),)), (None, None)],
)
def test_yes_no_and_what_no_paragraph_holds(tmp_path: Path, answer: str | None, found: Any) -> None:
    (one,) = read(tmp_path, "answer", asked(answer=answer))
    assert one.answers == found


def test_paragraphs_with_a_supporting_sentence_are_relevant(tmp_path: Path) -> None:
    """Even if the sentence's number is past the paragraph's end, as in some of the owner's facts."""
    one, other = read(tmp_path, "rank", asked(supporting_facts=[["Emma", 9]]), asked(_id="r", supporting_facts=None))
    assert one.passages[0] == "Rome\nRome is a city. It is old."
    assert (one.grades, other.grades) == ((0.0, 1.0), None)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            asked(supporting_facts=[["Bath", 0]]),
            "question 1, q: supporting_facts: no paragraph has the title `Bath`; the file",
        ),
        (asked(context=[]), "question 1: .*context"),
        (asked(context=[["Rome"]]), "question 1: .*context"),
        ({"context": [], "question": "?"}, "question 1: .*_id"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_question(tmp_path: Path, values: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        read(tmp_path, "answer", values)


def test_sentences_are_passages_after_their_titles(tmp_path: Path) -> None:
    blank = [["Rome", ["Rome is a city.", " ", " It is old."]], PARAGRAPHS[1]]
    path = write(tmp_path / "dev.json", json.dumps([asked(context=blank), asked(_id="r", supporting_facts=None)]))
    one, other = (found for found in read_examples(path, "rank", "hotpotqa-sentences").examples)
    assert one.passages[:2] == ("Rome\nRome is a city.", "Rome\nIt is old.")
    assert (one.grades, other.grades) == ((1.0, 0.0, 0.0, 1.0), None)


def test_the_file_of_fullwiki_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json", json.dumps([asked(supporting_facts=[["Rome", 0], ["Bath", 0]])]))
    for task, format in (("answer", "hotpotqa"), ("rank", "hotpotqa"), ("rank", "hotpotqa-sentences")):
        with pytest.raises(UserError, match=r"question 1, q: .* no paragraph has the title `Bath`; .* of fullwiki not"):
            read_examples(path, task, format)


def test_every_answer_of_the_real_file_is_found() -> None:
    path = shared("en_hotpotqa/distractor-dev-first70.json.xz")
    found: list[Any] = read_examples(path, "answer").examples
    assert len(found) == 70 and all(one.answers[0].start != ELSEWHERE for one in found)
    assert sum(one.answers[0].start == NOWHERE for one in found) == 10
    ranked: list[Any] = read_examples(path, "rank").examples
    assert all(sum(one.grades) == 2 for one in ranked)
