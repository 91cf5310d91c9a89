"""`reread peek`: what would be read, cleaned, tokenised and dropped."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from reread.pipeline.commands.peek import peek
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes("我们  喜欢研究Ａ历史。\r\n\r\n明天".encode("gb18030"))
    lines = ["今天天气", "短", "今天天气", "老师喜欢Bach"]
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in [*lines]) + "[1]\n")
    (folder / "c.csv").write_text("label,review\n1,x\n")
    characters = sorted(set("我们喜欢研究历史今天天气明老师。") | {"a"})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]) + "\n")
    return folder


def rows(printed: str) -> dict[str, str]:
    cells = [line.strip("│ \n").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in cells}


def test_peek_shows_what_would_be_read_and_what_would_be_dropped_and_why(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peek(["texts", "tokenizer.path=vocab.txt", "input.encoding=auto", "clean.minimum_characters=2"], documents=2)
    printed = capsys.readouterr().out
    assert "texts/a.txt:whole file (14 characters)" in printed
    assert r"read: '我们  喜欢研究Ａ历史。\r\n\r\n明天'" in printed
    assert "我·们|喜·欢|研·究|a|历·史|。\n明·天" in printed
    assert "texts/b.jsonl:line 1 (4 characters)" in printed
    found = rows(printed)
    assert found["documents"] == "5" and found["kept"] == "60.00 %" and found["not read"] == "2"
    assert found["dropped: too short"] == found["dropped: duplicate documents"] == "1"
    assert found["encodings of files"] == "ascii 2, gb18030 1"
    assert found["tokens"] == "21" and found["most often unknown"] == "B"
    assert "dropped (too short): texts/b.jsonl:line 2: 短" in printed
    assert "not read: texts/c.csv:whole file: no column `text`; it has label, review" in printed
    assert "not read: texts/b.jsonl:line 5: a list, not an object" in printed
    assert sorted(path.name for path in texts.parent.iterdir()) == ["texts", "vocab.txt"]


def test_more_unread_lines_than_are_shown_are_counted_with_the_most_frequent_reason(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["[1]", *('{"body": "今天"}' for _ in range(9))]
    (texts / "d.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    peek(["texts/d.jsonl"])
    printed = capsys.readouterr().out
    assert printed.count("not read: texts/d.jsonl:") == 5
    assert "not read: and 5 more; most often: no field `text`; it has body" in printed


def test_a_file_without_documents_is_not_read_to_its_end(
    texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reread.pipeline.commands.peek.MOST_PROBLEMS", 30)
    (texts / "e.json").write_text(f"[{','.join(['{}'] * 50)}]")
    (texts / "f.jsonl").write_text('{"text": "今天"}\n' * 29 + "[1]\n" * 29)
    peek(["texts/e.json", "texts/f.jsonl"])
    printed = capsys.readouterr().out
    found = rows(printed)
    assert (found["documents"], found["not read"]) == ("29", "59")
    assert [line for line in printed.splitlines() if "the rest" in line] == [
        "not read: texts/e.json: the rest, after 30 of these"
    ]


def test_unknown_tokens_show_the_characters_they_stand_for(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peek(["texts/b.jsonl", "tokenizer.path=vocab.txt"], documents=4)
    printed = capsys.readouterr().out
    assert "老·师|喜·欢|Bach" in printed
    assert re.search("% of the tokens are unknown to the vocabulary, most often .*B.*: is it the right one", printed)


def test_a_recipe_is_looked_at_with_its_own_paths_or_others(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peek(["quickstart"], documents=1, megabytes=0.01)
    printed = capsys.readouterr().out
    assert "50 of 84 files" in printed and "set tokenizer.path=VOCABULARY" in printed
    peek(["quickstart", "texts/b.jsonl", "input.bad_input=refuse"], documents=1)
    assert "texts/b.jsonl:line 1" in capsys.readouterr().out


@pytest.mark.parametrize("width", [72, 36])
def test_files_of_wrapped_lines_are_named_with_the_setting_that_joins_them(
    width: int, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = {72: "en", 36: "zh"}[width]
    whole = [file.read_text("utf-8") for file in sorted((ROOT / "pipeline" / "sample" / folder).glob("*.txt"))[:8]]
    paragraphs = [line for text in whole for line in text.split("\n") if line.strip()]
    (texts / "long.txt").write_text("\n\n".join(paragraphs), "utf-8")
    (texts / "lines.txt").write_text("\n".join(paragraphs), "utf-8")
    (texts / "wrapped.txt").write_text("\n\n".join(textwrap.fill(one, width) for one in paragraphs), "utf-8")
    names = [f"texts/{name}.txt" for name in ("long", "lines", "wrapped")]
    peek(names)
    line = "lines are cut at an even length in 1 of 3 files, such as texts/wrapped.txt, "
    assert line in (printed := capsys.readouterr().out) and "clean.join_wrapped_lines=true" in printed
    peek([*names, "clean.join_wrapped_lines=true"])
    assert "even length" not in capsys.readouterr().out


def test_a_key_of_a_list_of_sections_names_the_way_out(texts: Path) -> None:
    recipe = {"base": "quickstart", "preprocess": {"input": [{"paths": ["texts"]}, {"paths": ["more"]}]}}
    (texts.parent / "two.yaml").write_text(json.dumps(recipe))
    line = r"`preprocess.input.paths=.*`input` is a list of sections here.*by preprocess.input='\[{paths: \[\"a\"\]}\]'"
    with pytest.raises(UserError, match=line):
        peek(["two.yaml", "a"])
    with pytest.raises(UserError, match=r"replace all of it by input='\[{paths: a/}\]', or"):
        peek(["two.yaml", "input.paths=a/"])


def test_mistakes_are_one_line(texts: Path) -> None:
    for arguments, message in (
        (["nowhere"], "`nowhere` matches no file"),
        (["texts", "input.encodign=auto"], "did you mean `preprocess.input.encoding`"),
        (["input.format=csv"], "input.paths"),
        (["texts", "preprocess=3"], r"peek: preprocess: a section; set one of its keys, .*\(got 3\)"),
        (["texts", "preprocess=null"], "peek: has no `preprocess` section"),
        (["texts", "preprocess={input: {paths: texts}}"], "peek: preprocess"),
    ):
        with pytest.raises(UserError, match=message):
            peek(arguments)
