"""Predictions as the owners of tasks take them, and HotpotQA's two stages, from perfect predictions."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.commands.submit import narrow, submit
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from tests.conftest import shared
from tests.tasks import write_lines

PARAGRAPHS = [["Rome", ["It is old.", "Big."]], ["Emma", ["A novel.", "By Austen."]], ["Bath", ["A city."]]]
QUESTION = {
    "_id": "q",
    "question": "?",
    "answer": "Austen",
    "supporting_facts": [["Emma", 1], ["Rome", 0]],
    "context": PARAGRAPHS,
}


def ranking(*scores: float) -> list[dict[str, Any]]:
    return [{"passage": number, "score": score} for number, score in enumerate(scores)]


def written(path: Path) -> Any:
    return json.loads(path.read_text())


def test_answers_and_options_by_their_ids(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "answer": "x", "score": 1.0},
        {"id": "b", "option": 1, "text": "y"},
        {"id": "c", "answer": "NO"},
    ]
    submit(write_lines(tmp_path / "found.jsonl", lines), tmp_path / "out.json", None, None, 0.0)
    assert written(tmp_path / "out.json") == {"a": "x", "b": "y", "c": "no"}


def test_answers_and_evidence_have_joint_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, out = write_lines(tmp_path / "dev.json", [[QUESTION]]), tmp_path / "out.json"
    answers = write_lines(tmp_path / "answers.jsonl", [{"id": "q", "answer": "Jane Austen"}])
    sentences = write_lines(tmp_path / "sentences.jsonl", [{"id": "q", "ranking": ranking(2.0, -1.0, 1.0, 3.0, 0.5)}])
    submit(answers, out, sentences, questions, 0.0)
    assert written(out) == {"answer": {"q": "Jane Austen"}, "sp": {"q": [["Rome", 0], ["Emma", 0], ["Emma", 1]]}}
    rows = [line.split()[1::2] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row for row in rows if "joint" in row] == [["joint", "0.00", "50.00", "33.33", "100.00"]]


def test_evidence_of_the_model_that_answers_needs_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, out = write_lines(tmp_path / "dev.json", [[QUESTION]]), tmp_path / "out.json"
    facts = [{"title": "Emma", "sentence": 1, "text": "By Austen."}, {"title": "Rome", "sentence": 0}] * 2
    line = {"id": "q", "answer": "Austen", "evidence": facts, "ranking": ranking(1.0, 3.0, -4.0)}
    lines = write_lines(tmp_path / "lines.jsonl", [line])
    submit(lines, out, None, None, 0.0)
    assert written(out) == {"answer": {"q": "Austen"}, "sp": {"q": [["Emma", 1], ["Rome", 0]]}}
    submit(lines, out, None, questions, 0.0)
    assert capsys.readouterr().out.count("100.00") == 12
    narrow(questions, lines, out, 5, -3.0)
    assert [title for title, _ in written(out)[0]["context"]] == ["Rome", "Emma"]
    for evidence, reason in (([{"title": "Emma"}], "`evidence` is no list of titles and sentences"), (3, "`evidence`")):
        with pytest.raises(UserError, match=f"lines.jsonl:1: {reason}"):
            submit(write_lines(tmp_path / "lines.jsonl", [{**line, "evidence": evidence}]), out, None, None, 0.0)
    with pytest.raises(UserError, match="has evidence of its own; leave --sentences out"):
        submit(write_lines(tmp_path / "lines.jsonl", [line]), out, lines, questions, 0.0)
    with pytest.raises(UserError, match="has no evidence to score"):
        submit(write_lines(tmp_path / "lines.jsonl", [{"id": "q", "answer": "x"}]), out, None, questions, 0.0)


def test_a_ranking_leaves_paragraphs_for_the_second_stage(tmp_path: Path) -> None:
    questions, out = write_lines(tmp_path / "dev.json", [[QUESTION]]), tmp_path / "out.json"
    paragraphs = write_lines(tmp_path / "found.jsonl", [{"id": "q", "ranking": ranking(-4.0, -5.0, 2.0)}])
    narrow(questions, paragraphs, out, 5, -3.0)
    assert written(out) == [{**QUESTION, "context": [PARAGRAPHS[0], PARAGRAPHS[2]], "supporting_facts": [["Rome", 0]]}]
    assert len(read_examples(out, "answer").examples) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"id": "q"}, r"found.jsonl:1: no `ranking` of passages"),
        ({"ranking": []}, r"found.jsonl:1: no `id`"),
        ({"id": "r", "ranking": []}, r"found.jsonl:1: id `r` is not in .*dev.json"),
        ({"id": "q", "ranking": ranking(1.0)}, r"found.jsonl:1: 1 scores for 3 passages in .*dev.json"),
    ],
)
def test_a_ranking_that_does_not_fit_is_one_line(tmp_path: Path, line: dict[str, Any], reason: str) -> None:
    questions = write_lines(tmp_path / "dev.json", [[QUESTION]])
    with pytest.raises(UserError, match=reason):
        narrow(questions, write_lines(tmp_path / "found.jsonl", [line]), tmp_path / "out.json", 5, -3.0)
    assert not (tmp_path / "out.json").exists()


def test_what_is_no_answer_or_stands_twice_is_one_line(tmp_path: Path) -> None:
    for lines, reason in (
        ([{"id": "a"}], "found.jsonl:1: neither an `answer`"),
        ([{"id": "a", "answer": "x"}] * 2, "found.jsonl:2: id `a` stands there twice"),
    ):
        with pytest.raises(UserError, match=reason):
            submit(write_lines(tmp_path / "found.jsonl", lines), tmp_path / "out.json", None, None, 0.0)
    with pytest.raises(UserError, match="belong together"):
        submit(tmp_path / "found.jsonl", tmp_path / "out.json", tmp_path / "x", None, 0.0)


def test_perfect_predictions_of_the_real_file_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reread")
    path = shared("en_hotpotqa/distractor-dev-first70.json.xz")
    lines: dict[str, list[dict[str, Any]]] = {}
    for format in ("hotpotqa", "hotpotqa-sentences"):
        found: list[Any] = read_examples(path, "rank", format).examples
        lines[format] = [{"id": one.id, "ranking": ranking(*(2 * g - 1 for g in one.grades))} for one in found]
    asked: list[Any] = read_examples(path, "answer").examples
    answers = [{"id": one.id, "answer": one.answers[0].text} for one in asked]
    files = {name: write_lines(tmp_path / f"{name}.jsonl", one) for name, one in {**lines, "answers": answers}.items()}
    submit(files["answers"], tmp_path / "out.json", files["hotpotqa-sentences"], path, 0.0)
    assert capsys.readouterr().out.count("100.00") == 12
    narrow(path, files["hotpotqa"], tmp_path / "kept.json", 5, -3.0)
    assert "; 0 of " in caplog.text  # supporting facts are left out
