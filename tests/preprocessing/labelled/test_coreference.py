"""Documents with clusters of mentions: the forms that people have them in, and what can be wrong in them."""

import re
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.coreference import CoreferenceExample
from tests.conftest import shared
from tests.preprocessing.labelled.files import write

HEAD, END = "#begin document (a/b); part 001", "#end document"


def conll(*words: str, name: str = HEAD, end: str = END, joined: str = "\t") -> str:
    """A document of `word bracket` each; an empty word ends a sentence."""
    rows = [
        "" if not word else joined.join(["a/b", "1", "0", *word.split(" ")[:1], "-", *word.split(" ")[1:]])
        for word in words
    ]
    return "\n".join([name, *rows, "", end, ""])


def read(path: Path, **how: Any) -> list[CoreferenceExample]:
    found: list[Any] = read_examples(path, "coreference", **how).examples
    return found


def shown(example: CoreferenceExample) -> list[list[str]]:
    return [[example.text[start:end] for start, end in one] for one in example.clusters or ()]


ANN = ["Ann (3|(5", "Lee 3)", "'s -", "dog 5)", "", "saw -", "her (3)", ". _"]


@pytest.mark.parametrize("joined", ["\t", "    "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_documents_and_parts_of_a_file(joined: str, end: str, tmp_path: Path) -> None:
    """With a byte order mark, and nested mentions, of one cluster, too."""
    second = conll("It (0", "is (0)", "x 0)", name="#begin document (a/b); part 002", joined=joined)
    file = tmp_path / "a.conll"
    file.write_bytes(("\ufeff" + conll(*ANN, joined=joined) + second).replace("\n", end).encode())
    one, two = read(file)
    assert (one.id, two.id) == ("a/b part 001", "a/b part 002")
    assert one.text == "Ann Lee 's dog\nsaw her ." and one.words == tuple(one.text.split())
    assert shown(one) == [["Ann Lee", "her"], ["Ann Lee 's dog"]]
    assert one.linked == one.clusters[:1] if one.clusters else False
    assert shown(two) == [["It is x", "is"]]


def test_chinese_tokens_have_nothing_between_them(tmp_path: Path) -> None:
    """But words of letters a blank. Words are characters, as those of raw text."""
    (one,) = read(write(tmp_path / "a", conll("小王 (0)", "在 -", "IBM (1", "PC 1)", "上班 -", "，-x -", "他 (0)")))
    assert one.text == "小王在IBM PC上班，-x他"
    assert shown(one) == [["小王", "他"], ["IBM PC"]] and one.words[:3] == ("小", "王", "在")


def test_json_lines_have_characters_or_tokens(tmp_path: Path) -> None:
    lines = [
        {"text": "Ann saw her.", "clusters": [[[8, 11], [0, 3], [0, 3]], []], "id": "x"},
        {"tokens": ["Ann", "saw", "her", "."], "clusters": [[[0, 1], [2, 3]]]},
        {"text": "小王说他。", "clusters": [[[0, 2], [3, 4]]]},
        {"text": "nothing"},
    ]
    found = read(write(tmp_path / "a.jsonl", lines))
    assert [shown(one) for one in found] == [[["Ann", "her"]], [["Ann", "her"]], [["小王", "他"]], []]
    assert found[0].words == ("Ann", "saw", "her", ".") == found[1].words and found[1].text == "Ann saw her ."
    assert [one.target is None for one in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            {"text": "abc", "clusters": [[[0, 1], [2, 4]]]},
            "cluster 1: [2, 4] is outside the text, which has 3 characters",
        ),
        ({"text": "abc", "clusters": [[[-1, 1]]]}, "[-1, 1] is outside the text"),
        ({"text": "abc", "clusters": [[[2, 1]]]}, "[2, 1] is outside the text"),
        ({"text": "abc", "clusters": [[[0, 0]]]}, "[0, 0] is empty; a span ends behind its last unit"),
        ({"text": "abc", "clusters": [[[0, 1]], [[0, 1]]]}, "the mention [0, 1] is in two clusters"),
        ({"tokens": ["a", "b"], "clusters": [[[0, 3]]]}, "[0, 3] is outside the text, which has 2 tokens"),
        ({"tokens": ["a", "b c"]}, "token 2 is 'b c'"),
        ({"tokens": ["a"], "text": "a"}, "both `text` and `tokens`"),
        ({"clusters": []}, "neither `text` nor `tokens`"),
        ({"text": "abc", "clusters": [[0, 1]]}, "clusters.0.0"),
        ({"text": "abc", "clusters": [[["0", "x"]]]}, "clusters.0.0"),
        ({"text": "abc", "cluster": [[[0, 1]]]}, "unknown key `cluster`; did you mean `clusters`?"),
        ({"text": " ", "clusters": []}, "text is empty"),
        ({"tokens": [], "clusters": []}, "text is empty"),
    ],
)
def test_a_wrong_line_is_named(line: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "ok"}, line])
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{re.escape(reason)}.*`task.wrong=skip`"):
        read(path)
    assert len(read(path, wrong="skip")) == 1


WRONG = {
    ("a (0",): "3: the mention `(0` does not end in its document",
    ("b 0)",): "3: `0)` ends a mention that has not begun",
    ("a (PER*",): "3: `(PER*` in the last column is not coreference",
    ("a 7",): "3: `7` in the last column is not coreference",
    ("a (0)|",): "3: `(0)|` in the last column is not coreference",
    ("a (0)|(1)",): "1: the mention [1, 2] is in two clusters",
}


@pytest.mark.parametrize("words", WRONG)
def test_brackets_that_do_not_fit_are_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """Of a document with a mistake nothing is read; the next one is."""
    at, reason = WRONG[words].split(": ", 1)
    path = write(tmp_path / "a.conll", conll("x -", *words, "z -") + conll("y (1)", name="#begin document (c); part 0"))
    with pytest.raises(UserError, match=rf"a\.conll:{at}: {re.escape(reason)}"):
        read(path)
    assert [one.id for one in read(path, wrong="skip")] == ["c part 0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It was late.\nShe left.\n", r":1: a line outside of a document; one is between `#begin document"),
        ("当 O\n北 B-LOC\n\n好 O\n", r":1: a line outside of a document"),
        (f"{HEAD}\nEU B-ORG\nrejects O\n{END}\n", r":2: 2 columns, not 5 or more, the last that of coreference"),
        (conll("a (0)", end=""), r":1: no `#end document` follows; the file is cut short"),
        (conll("a (0)", end="") + conll("a (0)"), r":1: no `#end document` before the document of line 5"),
        (f"{HEAD}\n{END}\n", r":1: text is empty; delete the example or fill it in"),
        ("", r"no examples in it"),
        (conll("a (0)") * 2, r":5: id `a/b part 001` stands already at .*:1"),
    ],
)
def test_a_file_in_another_form_is_one_line(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        read(write(tmp_path / "a.conll", text), format="conll-2012")


def test_a_file_without_brackets_is_unlabelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = read(write(tmp_path / "a", conll("Ann -", "left -") + conll("x -", name="#begin document (c)")))
    assert (one.target, two.target, two.id) == (None, None, "c")
    assert "no mention in the last column, so its documents are unlabelled" in caplog.text
    one, two = read(write(tmp_path / "b", conll("Ann (0)") + conll("x -", name="#begin document (c)")))
    assert two.target == ()


def test_litbank_is_read_whole() -> None:
    found = read(shared("en_litbank_coref/80-documents.conll.xz"))
    assert len(found) == 80 and sum(len(one.words) for one in found) == 167_931
    assert sum(len(cluster) for one in found for cluster in one.clusters or ()) == 23_122
    assert sum(len(one.clusters or ()) - len(one.linked) for one in found) == 4_558
