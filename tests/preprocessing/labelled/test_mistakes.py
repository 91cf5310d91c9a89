"""Each mistake in labelled data is one line with file and position; it is refused, or left out and counted."""

import itertools
import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.answer import MISPLACED, Answer
from tests.preprocessing.input.test_hostile_input import old_sparse
from tests.preprocessing.labelled.files import REVIEWS, squad, tar, write

GOOD: dict[str, dict[str, Any]] = {
    "classify": {"text": "好", "label": "1"},
    "tag": {"tokens": ["好"], "tags": ["O"]},
    "answer": {"text": "水在山下", "question": "何处？", "answers": [{"start": 2, "text": "山下"}]},
    "choose": {"text": "水", "question": "何处？", "options": ["a", "b"], "label": 1},
    "rank": {"query": "水", "passages": ["a", "b"], "grades": [0, 1]},
    "phrases": {"text": "水在山下", "phrases": ["山下"]},
    "generate": {"source": "水在山下", "target": "水"},
    "embed": {"text": "水", "positives": ["山"], "score": 4},
    "coreference": {"text": "水在山下", "clusters": [[[0, 1], [2, 4]]]},
}


@pytest.mark.parametrize(
    ("task", "change", "reason"),
    [
        ("classify", {"text": " \n"}, "text is empty"),
        ("classify", {"second": ""}, "second is empty"),
        ("classify", {"text": 5}, "input should be a valid string (got 5)"),
        ("classify", {"txet": "x"}, "unknown key `txet`; did you mean `text`?"),
        ("classify", {"text_b": "x"}, "unknown key `text_b`"),
        ("classify", {"label": ["a"]}, "did you mean `task.answer=set`?"),
        ("classify", {"label": 0.5}, "did you mean `task.answer=number`?"),
        ("classify", {"label": {"a": 1}}, "neither text nor a whole number"),
        ("tag", {"tags": ["O", "O"]}, "2 tags for 1 tokens"),
        ("tag", {"tokens": ["a", ""], "tags": ["O", "O"]}, "a token is empty"),
        ("tag", {"tokens": [], "tags": []}, "text is empty"),
        ("answer", {"question": ""}, "question is empty"),
        ("answer", {"answers": [{"start": 0, "text": ""}]}, "answer 1 of 1 is empty"),
        ("answer", {"answers": [{"strat": 0, "text": "水"}]}, "answers"),
        ("choose", {"label": 2}, "label 2 for 2 options; they are counted from 0 to 1"),
        ("choose", {"label": -1}, "label -1 for 2 options"),
        ("choose", {"options": ["a"], "label": 0}, "1 options"),
        ("choose", {"options": ["a", " "]}, "option 1 is empty"),
    ],
)
def test_a_wrong_example_is_refused_or_left_out(task: Any, change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [GOOD[task], GOOD[task] | change, GOOD[task]])
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{re.escape(reason)}.*`task.wrong=skip`"):
        read_examples(path, task, "jsonl")
    found = read_examples(path, task, "jsonl", wrong="skip")
    assert [example.id for example in found.examples] == ["1", "3"]
    assert found.skipped and all(line.startswith(f"{path}:2: ") for line in found.skipped)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["text"]', "a list; each line has to be one object"),
        ('{"text": "中"}'.encode("gb18030"), "not UTF-8 (byte 0xd6 after 10 bytes); convert it: iconv"),
        (rb'{"sentence": "\ud83d"}', "half of a surrogate pair"),
        (b'{"sentence": 3}', "`sentence` holds a number, not text"),
        (b'{"sentence": "x", "sentence2": [1]}', "`sentence2` holds a list, not text"),
        (b'{"label": 3}', "no column for the text among label"),
        (b'{"sentence": "x", "text": "y"}', "both `text` and `sentence` may be the text"),
    ],
)
def test_a_wrong_line_costs_no_other(line: bytes, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'{"sentence": "x"}\n' + line + b'\n{"sentence": "x"}\n')
    found = read_examples(path, "classify", "clue", wrong="skip")
    assert [example.id for example in found.examples] == ["1", "3"]
    assert len(found.skipped) == 1 and found.skipped[0].startswith(f"{path}:2: ") and reason in found.skipped[0]
    with pytest.raises(UserError, match=r"a\.json:2: "):
        read_examples(path, "classify", "clue")


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.tsv", "label\ttext\n1\tx\n0\tx\ty\n0\n1\t\udcd6\n", {3: "3 columns", 4: "1 columns", 5: "UTF-8"}),
        ("a.csv", 'label,text\n1,x\n1,x,y\n1,"a"b\n0,\udcd6\n0,"x\n', {3: "3 columns", 4: "CSV", 5: "UTF-8", 6: "CSV"}),
        ("a.txt", "x O\n\nx O\ny\n\nx y O\n\nx \n\n\udcd6 O\n", {4: "1 columns", 6: "3 col", 8: "empty", 10: "UTF-8"}),
    ],
)
def test_a_wrong_row_is_named_by_its_line(name: str, content: str, places: dict[int, str], tmp_path: Path) -> None:
    path = write(tmp_path / name, content.encode("utf-8", "surrogateescape"))
    found = read_examples(path, "tag" if name == "a.txt" else "classify", wrong="skip")
    assert len(found.examples) == 1
    for (line, reason), skipped in zip(places.items(), found.skipped, strict=True):
        assert skipped.startswith(f"{path}:{line}: ") and reason in skipped


def test_an_id_stands_once_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": name, "text": name} for name in "abca"])
    with pytest.raises(UserError, match=r"a\.jsonl:4: id `a` stands already at .*a\.jsonl:1; give it another"):
        read_examples(path, "classify")
    assert [example.id for example in read_examples(path, "classify", wrong="skip").examples] == ["a", "b", "c"]


def test_the_first_of_many_mistakes_is_printed_with_their_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "x"}, {"text": ""}, {"text": ""}, {"text": ""}])
    with pytest.raises(UserError, match=r"a\.jsonl:2: text is empty.* \(the first of 3 mistakes\)"):
        read_examples(path, "classify")


@pytest.mark.parametrize(
    ("start", "text", "hint"),
    [
        (1, "山下", "`山下`, does not stand at character 1; it stands at 2"),
        (-2, "山下", "does not stand at character -2; it stands at 2"),
        (3, "下。", "does not stand at character 3; the text does not hold it"),
    ],
)
def test_more_misplaced_answers_than_stated_stop_with_the_way_out(
    start: int, text: str, hint: str, tmp_path: Path
) -> None:
    """A quarter of the questions has one: it may be a stated share, or what the user has decided to skip."""
    misplaced = GOOD["answer"] | {"answers": [{"start": start, "text": text}]}
    path = write(tmp_path / "a.jsonl", [GOOD["answer"], misplaced, GOOD["answer"], GOOD["answer"]])
    for allowed in (0.0, 0.24):
        with pytest.raises(UserError) as caught:
            read_examples(path, "answer", misplaced=allowed)
        assert str(caught.value).startswith(f"{path}: 1 of 4 questions (25.00%) have an answer that is not where the ")
        assert "by `task.wrong=skip`; the first: " in str(caught.value) and "\n" not in str(caught.value)
        assert f"a.jsonl:2: answer 1 of 1, {hint}" in str(caught.value) or hint.startswith("does")
        assert hint in str(caught.value) and ("task.misplaced allows 24.00%" in str(caught.value)) == bool(allowed)
    for way in ({"misplaced": 0.25}, {"wrong": "skip"}):
        found: Any = read_examples(path, "answer", **way)  # type: ignore[arg-type]
        assert [one.answers for one in found.examples] == [
            (Answer(2, "山下"),),
            (Answer(MISPLACED, text),),
            *[(Answer(2, "山下"),)] * 2,
        ]
        assert len(found.misplaced) == 1 and not found.skipped
    with pytest.raises(UserError, match=r"a\.jsonl:1: question is empty.*`task.wrong=skip`"):  # another mistake
        read_examples(write(path, [GOOD["answer"] | {"question": ""}, *[GOOD["answer"]] * 99]), "answer", misplaced=0.5)


def test_a_question_keeps_all_answers_for_its_score(tmp_path: Path) -> None:
    right, wrong = {"text": "山下", "answer_start": 2}, {"text": "山下", "answer_start": 3}
    questions = [
        {"id": "some", "question": "?", "answers": [wrong, right, wrong]},
        {"id": "none", "question": "?", "answers": [wrong, wrong]},
        {"id": "both", "question": "?", "answers": [right], "is_impossible": True},
        {"id": "lost", "question": "?", "answers": [{"text": "山下"}]},
    ]
    path = write(tmp_path / "a.json", squad(*questions))
    found = read_examples(path, "answer", wrong="skip")
    kept: list[Any] = list(found.examples)
    nowhere = Answer(MISPLACED, "山下")
    assert [(example.id, example.answers) for example in kept] == [
        ("some", (nowhere, Answer(2, "山下"), nowhere)),
        ("none", (nowhere, nowhere)),
    ]
    assert [example.learnable for example in kept] == [(Answer(2, "山下"),), ()]
    for lines, wanted in ((found.skipped, ["both", "lost"]), (found.misplaced, ["some", "none"])):
        assert [line.removeprefix(f"{path}: ").split(": ")[0].rpartition(" ")[2] for line in lines] == wanted


def test_wrong_parts_of_nested_files_cost_no_others(tmp_path: Path) -> None:
    question = {"question": "?", "choice": ["a", "b"], "answer": "a"}
    data = [[["x"], [question | {"answer": "c"}, question, 5], "d1"], [["x"], question], 7, [["x"], [question], "d2"]]
    found = read_examples(write(tmp_path / "a.json", json.dumps(data)), "choose", wrong="skip")
    assert [example.id for example in found.examples] == ["d1-2", "d2-1"]
    assert "`c` is none of its options" in found.skipped[0] and len(found.skipped) == 4
    article = {"context_id": 1, "context": "[BLANK1] [BLANK2]", "choices": ["a", "b"], "answers": [0, 1]}
    changes: list[dict[str, Any]] = [{}, {"answers": [0]}, {"context": "x"}, {"context": "[BLANK1] [BLANK1]"}]
    changes += [{"context_id": 2, "answers": [0, 2]}, {"choices": 5}]
    path = write(tmp_path / "b.json", [{"data": [article | change for change in changes]}])
    found = read_examples(path, "choose", wrong="skip")
    assert [example.id for example in found.examples] == ["1-BLANK1", "1-BLANK2", "2-BLANK1"]
    places = [line.removeprefix(f"{path}: ").split(": ")[0] for line in found.skipped]
    assert places == ["article 2", "article 3", "article 4", "article 5, BLANK2", "article 6"]


@pytest.mark.parametrize(
    ("name", "content", "task", "reason"),
    [
        ("a.json", b"{", "answer", "not JSON"),
        ("a.tsv", b"1\tgood\n0\tbad\n", "classify", r"a\.tsv:1: no column for the text among 1, good.*header"),
        ("a.tsv", b"text\ttext\nx\ty\n", "classify", "two columns have the same name"),
        ("a.tsv", b"text\tlabel\n", "classify", "no examples in it; it should hold a header"),
        ("a.tsv", b"", "classify", "no column for the text"),
        ("a.tsv", "text\tlabel\nx\t1\n".encode("utf-16"), "classify", "not UTF-8 but utf-16; convert it"),
        ("a.tsv.xz", lzma.compress(b"text\nx\n" * 9999)[:-20], "classify", "damaged or cut short"),
        ("a.jsonl", b" \n", "classify", r"a\.jsonl: is empty; give a file with examples"),
        ("a.txt", b"hello", "classify", "of no known format; name it by `task.format` .*tsv: a header"),
        ("a.xml", b"<articles><article id='1'>x", "classify", "not XML"),
        ("ground-truth.xml", b"<articles/>", "classify", "give the file of the articles"),
        (
            "a.tsv",
            b"text\nx\n",
            "tag",
            r"tsv \(by the name .*\) is for classify, rank, phrases, generate, embed, not for tag, .* jsonl, conll",
        ),
        ("a.tar", b"text", "classify", "damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    name: str, content: bytes, task: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        read_examples(write(tmp_path / name, content), task, wrong="skip")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_json_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"a": 1}')
    for task, format in (("answer", "squad"), ("choose", "cmrc2019"), ("choose", "c3")):
        with pytest.raises(UserError, match="is it another format"):
            read_examples(path, task, format)  # type: ignore[arg-type]


def test_wrong_settings_name_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\ttext\tbody\n1\tx\ty\n")
    with pytest.raises(UserError, match="`tvs` is unknown; did you mean `tsv`"):
        read_examples(path, "classify", "tvs")
    with pytest.raises(UserError, match="`txt` is unknown to format tsv; did you mean `text`"):
        read_examples(path, "classify", columns={"txt": "body"})
    with pytest.raises(UserError, match="no column `bdoy` for `text`; did you mean `body`"):
        read_examples(path, "classify", columns={"text": "bdoy"})
    lines = write(tmp_path / "a.json", [{"text": "x", "labell": 1}])
    with pytest.raises(UserError, match="unknown key `labell`; did you mean `label`"):
        read_examples(lines, "classify")
    assert read_examples(lines, "classify", columns={"label": "labell"}).examples[0].id == "1"
    with pytest.raises(UserError, match="`text` is unknown to format conll; this format names no columns"):
        read_examples(path, "tag", "conll", columns={"text": "body"})
    with pytest.raises(UserError, match=r"task\.answer: format folders gives each text one label, not `number`"):
        read_examples(tmp_path, "classify", labels="number")
    with pytest.raises(FileNotFoundError):
        read_examples(tmp_path / "missing.tsv", "classify")


def test_folders_of_two_splits_are_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.xz", REVIEWS | {"test/pos/0_9.txt": "x"})
    with pytest.raises(UserError, match=r"folders of classes in aclImdb/test and in aclImdb/train; give one of them"):
        read_examples(path, "classify")
    with pytest.raises(UserError, match=r"no file CLASS/NAME\.txt in it"):
        read_examples(write(tmp_path / "flat" / "a.txt", "x").parent, "classify")


@pytest.mark.parametrize("archive", [False, True])
def test_more_than_a_few_files_in_no_class_stop(archive: bool, tmp_path: Path) -> None:
    """Above the classes or with another suffix; a README, hidden files and aclImdb's texts without a label are none."""

    def data(texts: int, others: dict[str, str]) -> Path:
        files = {f"pos/{number}.txt": "x" for number in range(texts)} | others
        if archive:
            return tar(tmp_path / f"{texts}.tgz", files, "w:gz")
        for name, text in files.items():
            write(tmp_path / str(texts) / "aclImdb" / name, text)
        return tmp_path / str(texts)

    about = {"README.md": "x", "LICENSE": "x", ".hidden/a.md": "x", "pos/.b.md": "x", "unsup/1.txt": "x", "unsup/2": ""}
    assert len(read_examples(data(20, about), "classify").examples) == 20
    above, named = "it is above the folders of classes", "a text is *.txt or without a suffix"
    for texts, others, first, found in (
        (21, {**about, "urls.txt": "x"}, "urls.txt", f"{above}; 1 of 26 files (3.85%) are in none"),
        (
            22,
            {"pos/a.md": "x", "pos/b": "y", "pos/c.md": "x"},
            "pos/a.md",
            f"{named}; 2 of 25 files (8.00%) are in none",
        ),
    ):
        path = data(texts, others)
        with pytest.raises(UserError) as caught:
            read_examples(path, "classify")
        count = " (the first of 2 mistakes)" if found.startswith(named) else ""
        way_out = f"{count}; correct it, or leave such examples out by `task.wrong=skip`"
        assert str(caught.value) == f"{path}: aclImdb/{first}: in no class, since {found}{way_out}"
        kept = read_examples(path, "classify", wrong="skip")
        assert {one.id for one in kept.examples} == {name for name in others if name == "pos/b"} | {
            f"pos/{number}.txt" for number in range(texts)
        }
    assert len(read_examples(data(300, {"urls.txt": "x", "a.feat": "x", "pos/b.md": "x"}), "classify").examples) == 300
    with pytest.raises(UserError, match=r"4 of 304 files \(1\.32%\) are in none \(the first of 4 mistakes\)"):
        read_examples(data(300, {"urls.txt": "x", "a.feat": "x", "pos/b.md": "x", "pos/c.md": "x"}), "classify")


def test_a_member_of_an_archive_that_is_not_read_is_a_mistake(tmp_path: Path) -> None:
    texts = tar(tmp_path / "b.tar", {"pos/1.txt": "x"}, "w").read_bytes()
    path = write(tmp_path / "a.tar", old_sparse(1 << 40) + texts)
    with pytest.raises(UserError, match=r"a\.tar: sparse: a sparse file inside an archive is not read; unpack it"):
        read_examples(path, "classify")
    assert [one.id for one in read_examples(path, "classify", wrong="skip").examples] == ["pos/1.txt"]


def test_an_article_without_truth_is_a_mistake(tmp_path: Path) -> None:
    body = "".join(f'<article id="{name}" title="t"><p>x</p></article>' for name in (1, 2))
    path = write(tmp_path / "articles-a.xml", f"<articles>{body}</articles>")
    write(tmp_path / "ground-truth-a.xml", '<articles><article id="1" hyperpartisan="true"/></articles>')
    with pytest.raises(UserError, match="article 2, id 2: the ground truth has no such id"):
        read_examples(path, "classify")
    write(tmp_path / "ground-truth-a.xml", '<articles><article id="1"/></articles>')
    with pytest.raises(UserError, match=r"ground-truth-a\.xml: article 1 has no attribute `hyperpartisan`"):
        read_examples(path, "classify")


@pytest.mark.parametrize("task", GOOD)
def test_other_fields_are_left_out_by_name_and_misspelt_ones_are_not(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.jsonl", [GOOD[task], GOOD[task] | {"link": "x", "date": 3, "type": None}])
    assert len(read_examples(path, task).examples) == 2
    (line,) = [message for message in caplog.messages if "are left out" in message]
    assert line.endswith("are left out: link, date, type")
    for field in GOOD[task]:
        other = {f"{name}s" if name == field else name: value for name, value in GOOD[task].items()}
        with pytest.raises(UserError, match=f"unknown key `{field}s`"):
            read_examples(write(path, [other]), task, "jsonl")


def test_plain_text_is_read_by_line_or_as_a_whole_as_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "今天\n\n 明天\n".encode())
    with pytest.raises(UserError, match=r"a\.txt: of no known format; name it by `task\.format` .*document-per-line: "):
        read_examples(path, "classify")
    examples = read_examples(path, "classify", "document-per-line").examples
    assert [(one.id, one.location, one.text) for one in examples] == [
        ("1", f"{path}:1", "今天"),
        ("3", f"{path}:3", " 明天"),
    ]  # type: ignore[union-attr]
    examples = read_examples(path, "classify", "document-per-file").examples
    assert [(one.id, one.text) for one in examples] == [("a.txt", "今天\n\n 明天\n")]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("task", "format", "content"),
    [
        ("classify", "clue", "text\tlabel\nx\t1\n"),
        ("classify", "folders", "text\tlabel\nx\t1\n"),
        ("classify", "tsv", '{"text": "x", "label": 1}\n'),
        ("answer", "squad", '{"text": "x", "question": "?"}\n'),
        ("choose", "c3", '{"text": "x", "question": "?", "options": ["a", "b"]}\n'),
        ("tag", "conll", '{"tokens": ["a", "b"], "tags": ["O", "O"]}\n'),
        ("classify", "clue", ""),
    ],
)
def test_a_stated_format_that_does_not_fit_is_named(task: Any, format: str, content: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=rf"it is read as `task\.format={format}`: "):
        read_examples(path, task, format)


@pytest.mark.parametrize("character", ["\ud83d", "\0", "\x85"])
@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("classify", {"id": "a?"}),
        ("classify", {"label": "a?"}),
        ("classify", {"text": "a?"}),
        ("classify", {"second": "a?"}),
        ("tag", {"id": "a?"}),
        ("tag", {"tags": ["B-?"]}),
        ("tag", {"tokens": ["a?"]}),
        ("answer", {"id": "a?"}),
        ("answer", {"question": "a?"}),
        ("answer", {"text": "水在山下?"}),
        ("answer", {"answers": [{"start": 2, "text": "山下"}, {"start": 0, "text": "a?"}]}),
        ("choose", {"question": "a?"}),
        ("choose", {"text": "a?"}),
        ("choose", {"options": ["a", "a?"]}),
        ("choose", {"group": "a?"}),
        ("rank", {"id": "a?"}),
        ("rank", {"query": "a?"}),
        ("rank", {"passages": ["a", "b?"]}),
        ("rank", {"passage_ids": ["a", "b?"]}),
        ("phrases", {"id": "a?"}),
        ("phrases", {"text": "水在山下?"}),
        ("phrases", {"phrases": ["山下", "水?"]}),
        ("generate", {"source": "a?"}),
        ("generate", {"target": "a?"}),
        ("coreference", {"id": "a?"}),
        ("coreference", {"text": "水在山下?"}),
    ],
)
def test_characters_that_break_files_are_refused_in_every_column(
    task: Any, change: dict[str, Any], character: str, tmp_path: Path
) -> None:
    """U+0085 ends a line only in a name: texts hold it, as those of IMDB, and it is read as any character."""
    line = json.dumps(GOOD[task] | change).replace("?", json.dumps(character)[1:-1])
    path = write(tmp_path / "a.jsonl", json.dumps(GOOD[task]) + "\n" + line + "\n")
    (field,) = change
    misplaced = {"misplaced": 1.0} if field in ("answers", "phrases") else {}
    if character == "\x85" and field not in ("id", "label", "tags", "group", "passage_ids"):
        assert len(read_examples(path, task, "jsonl", **misplaced).examples) == 2
        return
    with pytest.raises(UserError, match=r"a\.jsonl:2: .*(half of a surrogate pair|NUL|control character)") as caught:
        read_examples(path, task, "jsonl", **misplaced)
    assert str(caught.value).isprintable()
    assert [one.id for one in read_examples(path, task, "jsonl", wrong="skip").examples] == ["1"]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.json"])
def test_a_label_or_id_of_a_table_with_such_a_character_is_refused(name: str, tmp_path: Path) -> None:
    for field, character in itertools.product(("id", "label"), ("\x85", "\0", "\u2028")):
        row = {"id": "1", "sentence": "x", "label": "y"}
        row[field] += character
        mark = "\t" if name == "a.tsv" else ","
        lines = "\n".join([mark.join(row), mark.join(row.values())]) + "\n"
        path = write(tmp_path / name, [row] if name == "a.json" else lines)
        with pytest.raises(UserError, match=f"({field} .*|a field of the line) holds the control character"):
            read_examples(path, "classify")


@pytest.mark.parametrize("encoding", ["klingon", "gb18030", "utf-7"])
def test_xml_in_an_encoding_that_cannot_be_read_is_one_line(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "articles.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?>\n<articles><article id="1">a</article></articles>')
    with pytest.raises(UserError, match=r"articles\.xml: its first line states an encoding that cannot be read"):
        read_examples(path, "classify", "semeval")


def test_a_field_without_a_name_is_no_id_label_or_second_text(tmp_path: Path) -> None:
    lines = [{"": "same", "sentence": "a", "label": "x"}, {"": "same", "sentence": "b"}]
    found = read_examples(write(tmp_path / "a.jsonl", lines), "classify", "clue").examples
    assert [(one.id, one.second, one.label) for one in found] == [("1", None, "x"), ("2", None, None)]
