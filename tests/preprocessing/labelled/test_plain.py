"""Texts that come alone become examples of every task, and no file is read as a format that it is not."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled import file
from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.tag import SplitExample, TagExample, split, split_of
from tests.preprocessing.labelled.files import squad, write

GIVEN = {
    "classify": Given(),
    "tag": Given(split="words"),
    "answer": Given(question="谁？"),
    "choose": Given(question="谁？", options=("甲", "乙")),
    "phrases": Given(split="blanks"),
    "coreference": Given(split="blanks"),
    "generate": Given(),
}
TEXTS = ["他在IBM上班，  don't go!", "第二行"]


def as_json(*lines: Any) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


@pytest.mark.parametrize("task", GIVEN)
def test_texts_alone_are_examples_of_every_task(task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write(tmp_path / "lines", "\n\n".join(TEXTS) + "\n")
    folder = tmp_path / "folder"
    write(folder / "b" / "2.txt", TEXTS[1])
    write(folder / "a.txt", TEXTS[0])
    write(folder / "b" / ".hidden", "nothing")
    as_lines = write(tmp_path / "a.jsonl", as_json(*({"text": text} for text in TEXTS)))
    standard_input = SimpleNamespace(buffer=io.BytesIO(lines.read_bytes()))
    monkeypatch.setattr(sys, "stdin", standard_input)
    for path, format, ids in (
        (lines, "document-per-line", ["1", "3"]),
        (Path("-"), "document-per-line", ["1", "3"]),
        (folder, "document-per-file", ["a.txt", "b/2.txt"]),
        (as_lines, None, ["1", "2"]),
    ):
        found: list[Any] = read_examples(path, task, format, given=GIVEN[task]).examples
        assert [(one.id, one.text) for one in found] == list(zip(ids, TEXTS, strict=True)), format
        if task in ("answer", "choose"):
            assert {one.question for one in found} == {"谁？"}
        if task == "choose":
            assert {one.options for one in found} == {("甲", "乙")}
        if task in ("phrases", "coreference"):
            assert list(found[0].words) == TEXTS[0].split()
        if task == "tag":
            words = ["他", "在", "IBM", "上", "班", "，", "don", "'", "t", "go", "!"]
            assert list(found[0].tokens) == words
            assert [found[0].text[begin:end] for begin, end in found[0].spans] == words


@pytest.mark.parametrize(
    ("task", "given", "line"),
    [
        ("tag", Given(), "1: a text without `tokens`; task.split=words, or characters, says"),
        ("answer", Given(), "1: a text without a question; give all such texts one by task.question='...'"),
        ("choose", Given(question=""), "1: a text without options; give all such texts the same by task.options="),
    ],
)
def test_what_a_text_alone_lacks_is_one_line(task: Any, given: Given, line: str, tmp_path: Path) -> None:
    for name, text, format in (("a.txt", "x\ny\n", "document-per-line"), ("a.jsonl", as_json({"text": "x"}), None)):
        path = write(tmp_path / name, text)
        with pytest.raises(UserError) as caught:
            read_examples(path, task, format, given=given)
        assert str(caught.value).startswith(f"{path}:{line}")
        assert "task.format" in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60), st.sampled_from(["words", "characters"]))
def test_tokens_are_the_text_but_for_blanks_at_their_places(text: str, into: Any) -> None:
    tokens, starts = split(text, into)
    example = SplitExample("1", "a:1", tokens, starts=starts, whole=text)
    assert [text[begin:end] for begin, end in example.spans] == list(tokens)
    assert "".join(tokens) == "".join(text.split())
    assert into == "words" or all(len(token) == 1 for token in tokens)


def test_the_spans_of_tokens_are_their_places_in_the_joined_text() -> None:
    for joiner in ("", " "):
        example = TagExample("1", "a:1", ("New", "York", "!"), joiner=joiner)
        assert [example.text[begin:end] for begin, end in example.spans] == ["New", "York", "!"]


def test_what_texts_are_split_into_follows_from_the_tokens_of_training() -> None:
    def of(*tokens: str) -> str | None:
        return split_of([TagExample("1", "a:1", tokens)])

    assert of(*"今天19日，IBM") == "characters"
    assert of(*"今天是", "19", "日", "，", "IBM") == "words"
    assert of("I", "am", "at", "IBM", ".") == "words"
    assert of("今天", "是", "星期一") is None


# --- what a file is not ---

ZH = "今天天气很好，我们去公园散步。\n他说明天要下雨，所以带了一把伞。\n\n第二段：北京是中国的首都。\n"
EN = "It was the best of times.\nIt was the worst of times, it was.\n\nThe end of it all.\n"
ANSWER = {"text": "a b", "question": "c", "answers": [{"start": 0, "text": "a"}]}
CHOICE = {"text": "a b", "question": "c", "options": ["x", "y"], "label": 0}
FILES: dict[str, str] = {
    "prose": ZH,
    "english": EN,
    "short": "你好\n吃饭了吗\n很好\n我爱北京\n",
    "brackets": "[Note] this is prose.\nAnother line of it.\n",
    "thai": "สวัสดีครับวันนี้อากาศดีมากเลย\nผมอยากไปเที่ยวทะเลกับเพื่อน\n",
    "texts": as_json({"text": "今天很好"}, {"text": "good"}),
    "dense": '{"text":"good"}\n{"text":"bad"}\n',
    "tags": as_json({"tokens": ["a", "b"], "tags": ["O", "B-x"]}),
    "answers": as_json(ANSWER),
    "choices": as_json(CHOICE),
    "clue": as_json({"sentence": "a b", "label": "1"}),
    "tsv": "label\ttext_a\n1\tgood\n0\tbad one\n1\tfine\n",
    "csv": "label,text\n1,good\n0,bad\n1,fine\n",
    "squad": as_json(*squad({"id": 1, "question": "q", "answers": [{"text": "水", "answer_start": 0}]})),
    "c3": as_json([[["a b"], [{"question": "q", "choice": ["x", "y"], "answer": "x"}], "1"]]),
    "cmrc2019": as_json({"data": [{"context_id": "1", "context": "a [BLANK1]", "choices": ["x", "y"]}]}),
    "conll": "当 O\n北 B-LOC\n京 I-LOC\n\n好 O\n",
    "tabs": "It\tO\nESB\tB-loc\n.\tO\n",
    "characters": "当\n北\n京\n\n好\n",
    "words": "It\nwas\ngood\n\nYes\n",
    "cail": as_json({"A": "a", "B": "b", "C": "c", "label": "B"}),
    "xml": '<?xml version="1.0"?><articles><article id="1" title="t"><p>x</p></article></articles>',
    "html": "<html><body>x</body></html>",
}
PROSE = {"prose", "english", "short", "brackets", "thai", "characters", "words"}
"""Lines of characters or words may be short texts."""
FITTING: dict[tuple[str, str], set[str]] = {
    ("classify", "jsonl"): {"texts", "dense"},
    ("classify", "clue"): {"texts", "dense", "clue", "answers", "choices"},
    ("classify", "tsv"): {"tsv"},
    ("classify", "csv"): {"csv"},
    ("classify", "semeval"): {"xml"},
    ("tag", "jsonl"): {"texts", "dense", "tags", "answers", "choices"},
    ("tag", "conll"): {"conll", "tabs", "characters", "words", "tsv"},  # `check_predicted` refuses the last one's tags
    ("tag", "conll-2012"): set(),
    ("answer", "jsonl"): {"texts", "dense", "answers", "choices"},
    ("answer", "squad"): {"squad"},
    ("answer", "triviaqa"): set(),
    ("answer", "hotpotqa"): set(),
    ("choose", "jsonl"): {"texts", "dense", "answers", "choices"},
    ("choose", "c3"): {"c3"},
    ("choose", "cmrc2019"): {"cmrc2019"},
    ("choose", "cail"): {"cail"},
    **{("choose", format): set() for format in ("clue-chid", "clue-c3")},
    ("classify", "clue-wsc"): set(),
    ("choose", "wikihop"): set(),
    ("phrases", "jsonl"): {"texts", "dense", "answers", "choices"},
    ("phrases", "tsv"): set(),
    ("phrases", "csv"): {"csv"},
    ("generate", "jsonl"): {"texts", "dense", "answers", "choices"},
    ("generate", "tsv"): set(),
    ("generate", "csv"): {"csv"},
    ("generate", "arxiv"): set(),
    ("coreference", "jsonl"): {"texts", "dense", "tags", "answers", "choices"},
    ("coreference", "conll-2012"): set(),
    **{(task, f"document-per-{what}"): PROSE for task in GIVEN for what in ("line", "file")},
}


@pytest.mark.parametrize("task", GIVEN)
def test_a_file_that_does_not_fit_the_stated_format_is_one_line(task: Any, tmp_path: Path) -> None:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    for format in FORMATS:
        if task not in FORMATS[format].tasks or format == "folders":
            continue
        read = set()
        for name in FILES:
            try:
                read_examples(tmp_path / name, task, format, given=GIVEN[task])
                read.add(name)
            except UserError as error:
                assert str(tmp_path / name) in str(error) and f"`task.format={format}`" in str(error), (name, error)
        assert read == FITTING[task, format], format


@pytest.mark.parametrize("into", [None, "words", "characters"])
@pytest.mark.parametrize("name", ["prose", "english", "short", "thai", "brackets", "csv", "html", "cail", "clue"])
def test_no_text_becomes_a_token_whether_the_format_is_stated_or_not(name: str, into: Any, tmp_path: Path) -> None:
    path = write(tmp_path / name, FILES[name])
    for format in (None, "conll"):
        with pytest.raises(UserError, match=r"task\.format"):
            read_examples(path, "tag", format, given=Given(split=into))


@pytest.mark.parametrize(
    ("rows", "line", "shown", "column"),
    [
        (["label\ttext_a", "1\tthe screen is bright", "0\tit broke on the way"], 2, "the screen is bright", "tags"),
        (["这部手机的屏幕很好\t1", "路上就坏了，不值这个价\t0"], 1, "这部手机的屏幕很好", "tokens"),
        (["1 这部手机的屏幕很好", "0 路上就坏了，不值这个价"], 1, "这部手机的屏幕很好", "tags"),
        (
            [f"text {number} {'word ' * 9}\t{number % 2}" for number in range(9)],
            1,
            "text 0 word word word word wor...",
            "tokens",
        ),
    ],
)
def test_a_table_of_labels_and_texts_is_no_conll(
    rows: list[str], line: int, shown: str, column: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.txt", "\n".join(rows) + "\n")
    for format in (None, "conll"):
        with pytest.raises(UserError) as caught:
            read_examples(path, "tag", format)
        expected = (
            f"{path}:{line}: `{shown}` is a text, as are most {column} here, but a line should be a word or a "
            "character, a tab or a blank, and its tag; tables of labels and texts are read by the recipe `classify`; it"
        )
        assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


def test_conll_may_have_blanks_for_tabs_in_some_lines_and_beside_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "EU B-ORG\nand\tO\nPeter \t B-PER\n\nNew York \t B-LOC\n \tO\n")
    found: list[Any] = read_examples(path, "tag", "conll").examples
    assert [(one.tokens, one.tags) for one in found] == [
        (("EU", "and", "Peter"), ("B-ORG", "O", "B-PER")),
        (("New York", " "), ("B-LOC", "O")),
    ]
    write(path, "EU\tB-ORG\nNew York\nin\tO\n")
    with pytest.raises(UserError, match=r"a.conll:2: 2 columns; a line is a word, a tab or a blank, and a tag"):
        read_examples(path, "tag", "conll")


def test_conll_may_have_tokens_with_blanks_and_long_tags(tmp_path: Path) -> None:
    features = "Case=Nom|Gender=Masc|Number=Sing|Person=3"
    for lines in (
        ["call\tO", "010 1234\tB-TEL", "now\tO"],
        ["Hà Nội\tB-LOC", "đẹp\tO", "và\tO", "Việt Nam\tB-LOC"],
        [f"he\t{features}", f"she\t{features.replace('Masc', 'Fem')}", "x\t_"],
        ["中华人民共和国\tNS", "成立\tV", "了\tU"],
        ["北京 B-地方名称", "中华人民共和国 B-国家和地区的名称", "天津 B-地方名称"],
    ):
        found: list[Any] = read_examples(write(tmp_path / "a.txt", "\n".join(lines) + "\n"), "tag").examples
        assert len(found) == 1 and len(found[0].tokens) == len(lines)


def test_lines_and_files_that_come_in_pieces_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut within characters and within CR LF, with a byte order mark and without, and wrong bytes named by place."""
    parts = ["中", "é", "😀", "a", "\t", "\r", "\n", "\r\n", " "]
    path = tmp_path / "a.txt"

    @given(
        st.lists(st.sampled_from([*(one.encode() for one in parts), b"\xff", b"\xe4"])),
        st.integers(1, 9),
        st.booleans(),
    )
    def holds(data: list[bytes], piece: int, marked: bool) -> None:
        whole = b"".join(data)
        path.write_bytes(b"\xef\xbb\xbf" * marked + whole)
        expected, mistakes = [], []
        for number, found in enumerate(whole.split(b"\n"), 1):
            line = found.removesuffix(b"\r") if number <= whole.count(b"\n") else found
            try:
                if line:
                    expected.append((number, line.decode().split("\t")))
            except UnicodeDecodeError as error:
                mistakes.append(
                    f"{path}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} after {error.start} bytes)"
                )
        for size in (piece, 1 << 20):
            monkeypatch.setattr(file, "_PIECE", size)
            source = file.LabelledFile(path, "classify")
            assert list(source.rows("\t")) == expected
            assert [one.partition(";")[0] for one in source.mistakes] == mistakes
            alone = file.LabelledFile(path, "classify")
            assert alone.text() == (None if mistakes else whole.decode()) and len(alone.mistakes) == bool(mistakes)

    holds()


def test_the_line_names_the_format_that_a_file_may_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a", FILES["texts"])
    with pytest.raises(UserError) as caught:
        read_examples(path, "tag", "conll", given=GIVEN["tag"])
    assert str(caught.value) == (
        f"{path}:1: looks like jsonl, not like a word or character and its tag a line, a blank line after each "
        "sentence; it is read as `task.format=conll`: it may be jsonl (its first line is a JSON object)"
    )


@pytest.mark.parametrize("labels", ["set", "number"])
@pytest.mark.parametrize("format", ["document-per-line", "document-per-file"])
def test_texts_alone_are_for_sets_of_labels_and_numbers_too(labels: Any, format: str, tmp_path: Path) -> None:
    path = write(tmp_path / "lines.txt", "x\n")
    (example,) = read_examples(path, "classify", format, labels=labels).examples
    assert example.target is None


def test_a_folder_and_a_task_without_plain_text_are_not_sent_to_plain_text(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read_examples(tmp_path, "tag", "conll")
    path = write(tmp_path / "a.jsonl", "no json\n")
    with pytest.raises(UserError, match=r"other formats are in docs/commands\.md") as refused:
        read_examples(path, "rank", "jsonl")
    assert "plain text" not in str(refused.value)
