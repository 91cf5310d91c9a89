"""CLUE's files of forms of their own: the two spans of WSC, the blanks of ChID, the two files of C3."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def spans(one: str, at: int, other: str, second: int) -> dict[str, Any]:
    return {"span1_text": one, "span1_index": at, "span2_text": other, "span2_index": second}


def test_the_spans_of_wsc_are_marked_whichever_comes_first(tmp_path: Path) -> None:
    text = "船工等渔夫，因为他要收网。"
    lines = [
        {"text": text, "target": spans("渔夫", 3, "他", 8), "label": "true", "idx": 7},
        {"text": "他来了，船工笑了。", "target": spans("船工", 4, "他", 0), "label": "false"},
    ]
    found = read_examples(write(tmp_path / "a.json", lines), "classify").examples
    assert [one.text for one in found] == ["船工等_渔夫_，因为[他]要收网。", "[他]来了，_船工_笑了。"]
    assert [(one.id, one.label, one.second) for one in found] == [("1", "true", None), ("2", "false", None)]
    wrong = [{"text": text, "target": spans("渔夫", 2, "他", 8), "label": "true"}]
    with pytest.raises(UserError, match=r"a\.json:1: `渔夫` is not at character 2 of its text"):
        read_examples(write(tmp_path / "a.json", wrong), "classify")
    with pytest.raises(UserError, match=r"a\.json:1: target: span2_index: field required"):
        lines = [{"text": text, "target": {"span1_text": "渔夫", "span1_index": 3, "span2_text": "他"}}]
        read_examples(write(tmp_path / "a.json", lines), "classify")


CLOZE = {"content": ["说#idiom000007#也说#idiom000008#。", "再说#idiom000009#。"], "candidates": ["甲", "乙", "丙"]}


def test_each_blank_of_chid_is_an_example_whose_answer_is_in_the_other_file(tmp_path: Path) -> None:
    file = write(tmp_path / "dev.json", [CLOZE])
    (tmp_path / "dev_answer.json").write_text(json.dumps({f"#idiom00000{n}#": n - 7 for n in (7, 8, 9)}))
    found = read_examples(file, "choose").examples
    assert [(one.id, one.text, one.question, one.label) for one in found] == [
        ("idiom000007", "说[BLANK1]也说[BLANK2]。", "[BLANK1]", 0),
        ("idiom000008", "说[BLANK1]也说[BLANK2]。", "[BLANK2]", 1),
        ("idiom000009", "再说[BLANK1]。", "[BLANK1]", 2),
    ]
    assert {one.options for one in found} == {("甲", "乙", "丙")}
    (tmp_path / "dev_answer.json").write_text('{"#idiom000007#": 0, "#idiom000008#": 3}')
    with pytest.raises(UserError, match=r"#idiom000008# has no answer among its 3 candidates \(the first of 2"):
        read_examples(file, "choose")
    (tmp_path / "dev_answer.json").write_text("[]")
    with pytest.raises(UserError, match=r"dev_answer\.json: has to be one object"):
        read_examples(file, "choose")


def test_chid_without_the_file_of_answers_is_unlabelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "reread"):
        found = read_examples(write(tmp_path / "test.json", [CLOZE]), "choose").examples
    assert {one.label for one in found} == {None}
    assert "test_answer.json: not there, so" in caplog.text


def test_both_files_of_c3_are_read_of_either(tmp_path: Path) -> None:
    for kind in "md":
        question = {"question": kind, "choice": ["a", "b"], "answer": "b"}
        (tmp_path / f"{kind}-train.json").write_text(json.dumps([[["line"], [question], "same"]]))
    for kind in "md":
        found = read_examples(tmp_path / f"{kind}-train.json", "choose", "clue-c3").examples
        assert [(one.id, one.question, one.group, one.label) for one in found] == [
            ("m-same-1", "m", "m-same", 1),
            ("d-same-1", "d", "d-same", 1),
        ]
    (tmp_path / "d-train.json").unlink()
    for name, message in (("m-train.json", "d-train.json: not there"), ("train.json", "reads m-NAME.json and d-NAME")):
        with pytest.raises(UserError, match=re.escape(message)):
            read_examples(tmp_path / name, "choose", "clue-c3")
