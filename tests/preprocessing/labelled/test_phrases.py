"""Documents with key phrases: the forms that people have them in, and what can be wrong in them."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.phrases import ABSENT, PhrasesExample, phrases_example, places_of

OPENKP = Path(str(files("reread.pipeline"))) / "sample" / "tasks" / "openkp"


def read(path: Path, **how: Any) -> list[PhrasesExample]:
    found: list[Any] = read_examples(path, "phrases", **how).examples
    assert all(isinstance(one, PhrasesExample) for one in found)
    return found


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_ten_documents_in_openkps_form(caplog: pytest.LogCaptureFixture) -> None:
    found = [one for name in ("train", "dev") for one in read(OPENKP / f"{name}.jsonl", given=Given(split="blanks"))]
    assert len(found) == 10 and "VDOM" in caplog.text
    first = found[0]
    assert first.id == "http://brenmouth.example/ferry/timetable"
    assert first.phrases == ("river ferry", "winter timetable")
    assert first.keys == (("river", "ferry"), ("winter", "timetable")) and first.places == (5, 2)
    assert [len(one.phrases or ()) for one in found] == [2, 2, 2, 3, 2, 2, 2, 2, 2, 3]  # empty lists are none
    for one in found:
        lines = (OPENKP / "train.jsonl").read_text() + (OPENKP / "dev.jsonl").read_text()
        (given,) = [line for line in map(json.loads, lines.splitlines()) if line["url"] == one.id]
        assert list(one.words) == given["text"].split(" ")
        assert [one.text[begin:end] for begin, end in (one.span(n, 1) for n in range(len(one.words)))] == list(
            one.words
        )
        assert [" ".join(phrase) for phrase in given["KeyPhrases"] if phrase] == list(one.phrases or ())


@pytest.mark.parametrize(
    "line",
    [
        {"text": "神经网络 learns, x", "phrases": ["神经网络", "Learns", "learns"]},
        {"text": "神经网络 learns, x", "keywords": "神经网络； learns"},
        {"document": "神经网络 learns, x", "keyphrases": [["神经", "网络"], ["LEARNS"], [""]]},
    ],
)
def test_phrases_are_texts_lists_of_words_or_one_text(line: dict[str, Any], tmp_path: Path) -> None:
    """Chinese characters and punctuation marks are words; case makes no difference."""
    (one,) = read(write(tmp_path / "a.jsonl", line))
    assert one.words == ("神", "经", "网", "络", "learns", ",", "x")
    assert one.keys == (("神", "经", "网", "络"), ("learns",)) and one.places == (0, 4)
    assert one.text[slice(*one.span(0, 4))] == "神经网络"


def test_a_table_has_phrases_between_semicolons(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("url\ttext\tkeywords\nx\tA b c b c\tb c; A\ny\td e\t\n")
    labelled, without = read(tmp_path / "a.tsv")
    assert (labelled.id, labelled.phrases, labelled.places) == ("x", ("b c", "A"), (1, 0))
    assert (without.id, without.phrases, without.can_be_learned) == ("y", None, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"phrases": ["b", "c b"]}, "a.jsonl:2: key phrase 2 of 2, `c b`, is not in the text"),
        ({"phrases": ["b", "x " * 60]}, "a.jsonl:2: key phrase 2 of 2, `x x "),
        ({"phrases": []}, "a.jsonl:2: no key phrases"),
        ({"phrases": [[], " "]}, "a.jsonl:2: no key phrases"),
        ({"phrases": {"b": 1}}, "a.jsonl:2: phrases: input should be"),
        ({"phrases": ["b", 3]}, "a.jsonl:2: phrases.1: input should be a valid string (got 3)"),
        ({"phrases": [["b", 3]]}, "a.jsonl:2: phrases.0: input should be a valid string"),
        ({"text": " "}, "a.jsonl:2: text is empty"),
        ({"phrase": ["b"]}, "a.jsonl:2: unknown key `phrase`"),
        ({"id": "1"}, "a.jsonl:2: id `1` stands already"),
    ],
)
def test_each_mistake_is_one_line_with_file_and_record(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    line: dict[str, Any] = {"text": "a b c", "phrases": ["b"]} if "phrase" not in change else {"text": "a b c"}
    path = write(tmp_path / "a.jsonl", {"id": "1", "text": "a b c", "phrases": ["b c"]}, line | change)
    with pytest.raises(UserError) as caught:
        read_examples(path, "phrases")
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_phrase_that_the_text_lacks_is_scored_and_not_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"text": "a b c", "phrases": ["b", "x y"]},
        {"text": "a b c", "phrases": ["c a"]},
        {"text": "a b c", "phrases": ["c"]},
    )
    with pytest.raises(UserError, match=r"2 of 3 texts \(66.67%\) have a key phrase that they do not hold, where"):
        read_examples(path, "phrases", misplaced=0.5)
    found = read(path, misplaced=0.7)
    assert [one.places for one in found] == [(1, ABSENT), (ABSENT,), (2,)]
    assert [one.can_be_learned for one in found] == [True, False, True]
    assert "such phrases are scored and not learned, nor are 1 texts without another one; the first: " in caplog.text


def test_places_are_all_occurrences_also_those_that_overlap() -> None:
    words = tuple("aabaaba")
    for size in (1, 2, 3, 8):
        for begin in range(len(words)):
            phrase = words[begin : begin + size]
            expected = [at for at in range(len(words)) if words[at : at + len(phrase)] == phrase]
            assert list(places_of(phrase, words)) == expected
    assert phrases_example("1", "a:1", "\u200b", ["x"], "words").places == (ABSENT,)
