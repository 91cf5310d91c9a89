"""What a file is, by its name and its first bytes; and the readers of tables, JSON, zip, web pages and books."""

import gzip
import json
import logging
import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import get_args

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.config import InputSettings, PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.preprocessing.input import confined
from reread.preprocessing.input.formats.table import ARCHIVES, FORMATS
from reread.preprocessing.input.piece import Document, Problem
from reread.preprocessing.input.read import read
from reread.preprocessing.input.sources import entries_of, find_files, plan_parts
from tests.conftest import extra
from tests.preprocessing.input.test_damaged_input import damaged
from tests.preprocessing.input.test_hostile_input import make_tar, make_zip
from tests.raw_text import contents, make, values

MEGABYTE = 1 << 20


def read_all(
    path: Path, format: str = "auto", part_bytes: int = 1 << 40, counted: Counter[str] | None = None, **changes: object
) -> tuple[list[Document], list[Problem]]:
    chosen = InputSettings.model_validate({"paths": [str(path)], "format": format, **changes})
    problems: list[Problem] = []

    def count(name: str) -> None:
        if counted is not None:
            counted[name] += 1

    pieces = [piece for part in plan_parts(find_files([chosen]), part_bytes) for piece in part]
    return [one for piece in pieces for one in read(piece, chosen, problems.append, count)], problems


def texts(path: Path, format: str = "auto", **changes: object) -> list[str]:
    documents, problems = read_all(path, format, **changes)
    assert not problems
    return [document.text for document in documents]


def reason(path: Path, format: str = "auto", **changes: object) -> str:
    documents, [problem] = read_all(path, format, **changes)
    assert not documents
    return f"{problem.position}: {problem.reason}"


# --- what a file is ---

HTML = "<!DOCTYPE html>\n<html><head><title>甲</title></head><body><p>乙</p></body></html>"
CONTRADICTIONS = {
    "a.txt": (b"%PDF-1.7\n1 0 obj", "a PDF"),
    "b.txt": (make_zip({"word/document.xml": b"<w/>"}), "a zip archive"),
    "c.txt": (gzip.compress(b"text"), "gzip"),
    "d.txt": (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "an image"),
    "e.txt": (bytes(range(64)) * 9, "binary data"),
    "f.txt": (HTML.encode(), "`input.format=html`"),
    "g.txt": (b'\xef\xbb\xbf{"text": "x"}\n', "`input.format=json`"),
    "h.txt": (b'[\n {"text": "x"}]', "`input.format=json`"),
    "i.txt": (b"<mediawiki>", "`input.format=mediawiki`"),
    "j": (b'<?xml version="1.0"?><articles>', "convert it"),
    "k.txt": (b"<doc id='1' url=''>\n".replace(b"'", b'"'), "`input.format=wikiextractor`"),
    "l.txt": ("1\t好\n0\t坏\n1\t很好\n".encode(), "`input.format=tsv`"),
    "m.txt": (b'label,text\n1,"good, really"\n0,bad\n', "`input.format=csv`"),
    "n.csv": (HTML.encode(), "looks like html, not csv"),
    "o.jsonl": (b'[{"text": "x"},\n{"text": "y"}]', "looks like json, not jsonl"),
    "p.xml": (HTML.encode(), "looks like html, not mediawiki"),
    "q.html": (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_is_never_read_as_what_it_is_not(tmp_path: Path, name: str) -> None:
    data, hint = CONTRADICTIONS[name]
    (tmp_path / name).write_bytes(data)
    assert hint in reason(tmp_path / name) and reason(tmp_path / name).startswith("whole file: ")
    with pytest.raises(UserError, match=r"input\.bad_input=report"):
        read_all(tmp_path / name, bad_input="refuse")


PROSE = [
    "MZ\n",
    '[Illustration: "x"]\nChapter 1',
    "[[A]] note\n",
    "“你好”，他说。\n",
    "\t第一段\n\t第二段\n\t第三段\n\t第四段\n",
    "第一回\t宴桃园\n第二回\t怒鞭督邮\n第三回\t议温明\n话说天下大势，分久必合。\n",
    "Hello, world\nHello, you\nHello, me\n",
    "{ braces }\n",
    "< less\n",
    "a\0b\n",
]


@pytest.mark.parametrize("text", PROSE)
def test_prose_that_resembles_something_else_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert texts(tmp_path / "a.txt") == [text]


def test_a_stated_format_is_contradicted_by_binary_data_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a\n2,b\n3,c\n")
    (tmp_path / "b.txt").write_bytes(b"%PDF-1.7\nx\n" * 99)
    assert texts(tmp_path / "a.csv", "document-per-line") == ["1,a\n", "2,b\n", "3,c\n"]
    documents, problems = read_all(tmp_path / "b.txt", "document-per-line", part_bytes=100)
    assert not documents and len(problems) == 1  # once for all byte ranges


def test_settings_name_the_formats_that_there_are() -> None:
    stated = get_args(InputSettings.model_fields["format"].annotation)
    assert set(stated) == {"auto", *FORMATS} - set(ARCHIVES)


# --- CSV and TSV ---


def test_csv_is_read_with_its_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffid,text\r\n1,"甲, ""乙""\n丙"\r\n\r\n2,丁\r\n'.encode())
    documents, problems = read_all(path)
    assert not problems
    assert [(one.text, one.position) for one in documents] == [('甲, "乙"\n丙', "line 2"), ("丁", "line 5")]
    path.write_text("id;body\n1;a, b\n")
    assert texts(path, text_field="body") == ["a, b"]
    path.write_bytes("id\ttext\n1\t甲\n".encode("utf-16"))  # as spreadsheets write "Unicode text"
    assert texts(path) == ["甲"]


def test_a_column_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\n1,a\n")
    assert reason(tmp_path / "a.csv") == (
        "whole file: no column `text`; it has label, review (`input.text_field` says which); `[1]` is the second "
        "column of a table without header"
    )
    assert texts(tmp_path / "a.csv", text_field="review") == ["a"]
    (tmp_path / "b.tsv").write_text('3\t"title\tbody\n')
    assert texts(tmp_path / "b.tsv", text_field="{[1]}: {[2]}") == ['"title: body']  # no header, no quotes
    assert texts(tmp_path / "b.tsv", text_field=[2]) == ["body"]  # as YAML reads `[2]` on the command line
    (tmp_path / "c.csv").write_text("text,text\na,b\n")
    assert "two columns are called `text`" in reason(tmp_path / "c.csv")


def test_texts_that_a_path_finds_are_joined_to_one_document(tmp_path: Path) -> None:
    talks = [{"turns": [{"text": "a"}, {"text": "b"}]}, {"turns": [{"text": "c"}]}, {"turns": [{"text": 3}]}]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    path = {"text_field": "turns[].text", "join": r"\n"}
    assert texts(lines, **path) == ["a\nb", "c", "3"]
    assert texts(lines, text_field="{turns[].text}!", join=" ") == ["a b!", "c!", "3!"]
    assert [one.text for one in read_all(lines, text_field="turns[].text")[0]] == ["a", "b", "c"]
    (tmp_path / "a.json").write_text(json.dumps(talks))
    assert texts(tmp_path / "a.json", **path) == ["a\nb", "c", "3"]
    (tmp_path / "b.json").write_text(json.dumps({"talks": talks}))
    assert texts(tmp_path / "b.json", text_field="talks[].turns[].text", join=" ") == ["a b", "c", "3"]
    (tmp_path / "c.json").write_text(json.dumps(talks[0]))
    assert texts(tmp_path / "c.json", **path) == ["a\nb"]
    (tmp_path / "d.json").write_text(json.dumps(talks[0]["turns"]))
    assert texts(tmp_path / "d.json", text_field="[].text", join="") == ["ab"]
    pyarrow.parquet.write_table(pyarrow.table({"turns": [talk["turns"] for talk in talks[:2]]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", **path) == ["a\nb", "c"]
    lines.write_text('{"turns": [{"text": "a"}, {"txet": "b"}]}\n')
    assert "no field `text`; it has txet" in reason(lines, **path)


def test_a_row_without_the_column_costs_that_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text,n\na,1\nb\nc,2,3\n"d" x,4\n\xff,5\ne,6\n' + b"f" * 99 + b",7\ng,8\n")
    documents, problems = read_all(tmp_path / "a.csv", maximum_document_bytes=50)
    assert [one.text for one in documents] == ["a", "e", "g"]
    assert [one.position for one in problems] == [f"line {number}" for number in (3, 4, 5, 6, 8)]


def test_a_quote_that_is_never_closed_fills_no_memory(tmp_path: Path) -> None:
    rows = "".join(f"{number},x\n" for number in range(1000))
    (tmp_path / "a.csv").write_text('n,text\n1,"never closed\n' + rows)
    documents, [problem] = read_all(tmp_path / "a.csv", maximum_document_bytes=500)
    assert len(documents) > 900 and problem.position == "line 2" and "longer than 500 bytes" in problem.reason


# --- JSON ---

PARAGRAPHS = [{"context": "甲"}, {"context": "乙"}]
SQUAD = {"version": 1, "data": [{"title": "t", "paragraphs": PARAGRAPHS}, {"paragraphs": []}]}


def test_json_is_read_by_a_path_and_by_a_template(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(SQUAD, indent=1))
    documents, _ = read_all(path, text_field="data[].paragraphs[].context")
    assert [(one.text, one.position) for one in documents] == [("甲", "item 1, value 1"), ("乙", "item 1, value 2")]
    assert texts(path, text_field="{version}: {data[].paragraphs[].context}") == ["1: 甲\n乙"]
    path.write_text(json.dumps([{"text": "甲", "a.b": "乙"}, {"text": "丙", "a.b": None}]))
    assert texts(path) == ["甲", "丙"]
    assert texts(path, text_field="{a.b}\\n{text}") == ["乙\n甲", "\n丙"]
    path.write_text(json.dumps([[["a", "b"], 1], [["c"], 2]]))
    assert texts(path, text_field="[][0][]") == texts(path, text_field="[0][]") == ["a", "b", "c"]
    assert texts(path, text_field="{[0][]}") == ["a\nb", "c"]
    path.write_text('["甲", "乙"]')
    assert texts(path) == ["甲", "乙"]
    path.write_text('{"text": "甲"}')
    assert texts(path) == ["甲"]


def test_paths_and_templates_of_lines_and_columns(tmp_path: Path) -> None:
    record = {"meeting": [{"content": "甲"}, {"content": "乙"}], "title": "会"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    table = pyarrow.table({name: [value] for name, value in record.items()})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        assert texts(tmp_path / name, text_field="meeting[].content") == ["甲", "乙"]
        assert texts(tmp_path / name, text_field="{title}: {meeting[].content}") == ["会: 甲\n乙"]
    (tmp_path / "c.csv").write_text("title,body\nA,b\n")
    assert texts(tmp_path / "c.csv", text_field="{title}\n{body}") == ["A\nb"]
    assert "no column `year`; it has title, body" in reason(tmp_path / "c.csv", text_field="{title} ({year})")


def test_json_lines_in_a_json_file_are_found_by_looking(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"text": "甲"}\n\n{"text": "乙"}\n', encoding="utf-8")
    documents, _ = read_all(path)
    assert [(one.text, one.position) for one in documents] == [("甲", "line 1"), ("乙", "line 3")]


def test_a_json_file_larger_than_a_document_is_read_by_records(tmp_path: Path) -> None:
    records = [{"n": number, "text": f"{number}" * 40} for number in range(3000)]
    (tmp_path / "a.json").write_text(json.dumps({"other": [1, {"data": []}], "data": records}, indent=0))
    found = texts(tmp_path / "a.json", text_field="data[].text", maximum_document_bytes=1000)
    assert found == [record["text"] for record in records]
    records[1500]["text"] = "x" * (1 << 19)
    (tmp_path / "a.json").write_text(json.dumps(records))
    documents, [problem] = read_all(tmp_path / "a.json", maximum_document_bytes=1000)
    assert len(documents) >= 1500 and problem.position == "item 1501" and "longer than" in problem.reason


@pytest.mark.parametrize(
    ("data", "said", "count"),
    [
        (b"[" * 10**6, "too deeply|recursion", 0),
        (b'{"a":' * 10**6, "no field|recursion", 0),
        (b'[{"text": "x"}, {"text": "y"', "after item 1", 1),
        (b'[{"text": "x"}, nope, {"text": "y"}]', "Expecting value, after item 1", 1),
        (b'[{"text": "x"}] {"text": "y"}', "follows the end", 1),
        (b'[{"text": "x"}, {"text": "\xff"}]', "damaged", 0),
        (b'{"version": 1, "data": []}', "no field `text`; it has version, data", 0),
        (b'[{"text": "x"}, 7, {"txt": ""}]', "a number, not an object", 1),
        (b"[" + b"9" * 5000 + b"]", "digits", 0),
        (b"nothing", "Expecting value", 0),
    ],
)
def test_damaged_json_is_bad_input(tmp_path: Path, data: bytes, said: str, count: int) -> None:
    (tmp_path / "a.json").write_bytes(data)
    documents, problems = read_all(tmp_path / "a.json")
    assert len(documents) == count
    assert any(word in problems[0].reason for word in said.split("|")), problems[0]


# --- zip ---


def test_members_of_a_zip_archive_are_read_by_their_names(tmp_path: Path) -> None:
    inner = make_zip({"x.txt": b"x"})
    members = {
        "a/甲.txt": "天".encode(),
        "b.jsonl.gz": gzip.compress(b'{"text": "x"}\n{"text": "y"}\n'),
        "__MACOSX/._a": b"\xff",
        "c.csv": b"text\nz\n",
        "d.zip": inner,
        "e.tar": make_tar({"a.txt": b"a"}),
        "f.txt": inner,
        "../g.txt": b"last",
        "../.h.txt": b"hidden",
    }
    path = tmp_path / "a.zip"
    path.write_bytes(make_zip(members))
    documents, problems = read_all(path)
    assert [(one.text, one.position) for one in documents] == [
        ("天", "a/甲.txt, whole file"),
        ("x", "b.jsonl.gz, line 1"),
        ("y", "b.jsonl.gz, line 2"),
        ("z", "c.csv, line 2"),
        ("last", "../g.txt, whole file"),
    ]
    assert [one.position.partition(",")[0] for one in problems] == ["d.zip", "e.tar", "f.txt"]
    assert all("unpack it" in one.reason for one in problems[:2]) and "a zip archive" in problems[2].reason


def test_damaged_and_encrypted_zip_archives_are_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    data = make_zip({"a.txt": b"first" * 99, "b.txt": os.urandom(99).hex().encode(), "c.txt": b"third"})
    path.write_bytes(data[:-30])
    assert "damaged" in reason(path)
    broken = bytearray(data)
    place = data.index(b"b.txt") + 20
    broken[place : place + 9] = bytes(9)
    path.write_bytes(broken)
    documents, [problem] = read_all(path)
    assert [one.text[:5] for one in documents] == ["first", "third"] and problem.position.startswith("b.txt, ")
    locked = bytearray(make_zip({"a.txt": b"x"}))
    for header, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(header) + offset] |= 1
    path.write_bytes(locked)
    assert reason(path) == "a.txt, whole file: encrypted; unpack it with its password"


def test_what_a_zip_archive_expands_to_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(make_zip({f"{number}.txt": b"\n" * MEGABYTE for number in range(4)}))
    documents, [problem] = read_all(path, "document-per-line", maximum_document_bytes=1000, maximum_expansion=100)
    assert not documents and "expands to more than" in problem.reason


# --- web pages and books ---

PAGE = """<html><head><meta charset="gbk"><title>题</title><style>p {{}}</style></head><body>
<nav><a href="/">首页</a><a href="/b">下一页</a></nav><main><h1>渡口</h1>
<p>{}</p><p>第二段，写得长一些，好让人看出这是正文。</p></main><footer>版权所有</footer></body></html>"""
SENTENCE = "天还没有亮透，东渡口的灯先亮了，船工老周提着一只旧水壶从坡上走下来。"


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_the_main_text_of_a_page_is_read(tmp_path: Path, encoding: str) -> None:
    extra("html", "resiliparse")
    (tmp_path / "a.html").write_bytes(PAGE.format(SENTENCE).encode(encoding))
    [text] = texts(tmp_path / "a.html")
    assert text.startswith("渡口") and SENTENCE in text and "第二段" in text
    assert not any(word in text for word in ("首页", "版权", "<", "{", "题"))


def test_pages_that_cannot_be_read_are_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra("html", "resiliparse")
    path = tmp_path / "a.html"
    path.write_text("<html><body><nav><a href='/'>x</a></nav></body></html>")
    assert "no main text" in reason(path)
    path.write_text("<div>" * 10**5 + "x")
    assert "deep" in reason(path)
    path.write_bytes(b"<html><p>\xff\xfe\xfd")
    assert "not utf-8" in reason(path)
    (tmp_path / "resiliparse.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    confined.end_all()  # the next child sees it
    path.write_text("<p>x</p>")
    with pytest.raises(UserError, match=r"pip install 'reread\[html\]'"):
        read_all(path)
    confined.end_all()


CONTAINER = '<container xmlns="urn:c"><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf"><manifest><item id="b" href="text/2%20.xhtml"/>
<item id="a" href="text/1.xhtml"/><item id="c" href="cover.png"/></manifest>
<spine><itemref idref="a"/><itemref idref="b"/></spine></package>"""
CHAPTER = '<?xml version="1.0"?><html xmlns="urn:x"><head><title/></head><body><a id="x"/>{}</body></html>'
BOOK = {
    "mimetype": b"application/epub+zip",
    "META-INF/container.xml": CONTAINER.encode(),
    "OPS/book.opf": PACKAGE.encode(),
    "OPS/text/2 .xhtml": CHAPTER.format("<p>第二章</p>").encode(),
    "OPS/text/1.xhtml": CHAPTER.format("<h1>第一章</h1><p>A&nbsp;b</p>").encode(),
}


def test_a_book_is_one_document_in_the_order_of_its_spine(tmp_path: Path) -> None:
    extra("html", "resiliparse")
    (tmp_path / "a.epub").write_bytes(make_zip(BOOK))
    (tmp_path / "b.zip").write_bytes(make_zip({"x.epub": make_zip(BOOK)}))
    for name in ("a.epub", "b.zip"):
        [text] = texts(tmp_path / name)
        assert [line for line in text.split("\n") if line] == ["第一章", "A\xa0b", "第二章"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"META-INF/rights.xml": b"<r/>"}, "DRM"),
        ({"META-INF/encryption.xml": b'<e xmlns="urn:x"><EncryptionMethod Algorithm="aes256"/></e>'}, "DRM"),
        ({"META-INF/container.xml": b"<container/>"}, "no package file"),
        ({"META-INF/container.xml": b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}, "entities"),
        ({"OPS/book.opf": PACKAGE.replace("1.xhtml", "9.xhtml").encode()}, "damaged"),
    ],
)
def test_books_that_cannot_be_read_are_bad_input(tmp_path: Path, change: dict[str, bytes], said: str) -> None:
    (tmp_path / "a.epub").write_bytes(make_zip(BOOK | change))
    assert said in reason(tmp_path / "a.epub")


# --- folders of Hugging Face datasets ---


def write_arrow(path: Path, column: list[str]) -> None:
    table = pyarrow.table({"text": column, "n": list(range(len(column)))})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def test_a_folder_of_datasets_is_read_by_its_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split, column in (("train", ["甲", "乙", "丙"]), ("test", ["丁"])):
        folder = tmp_path / split
        folder.mkdir()
        write_arrow(folder / "data-00000-of-00001.arrow", column)
        write_arrow(folder / "cache-1234.arrow", ["left over"])
        files = [{"filename": "data-00000-of-00001.arrow"}]
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
        (folder / "dataset_info.json").write_text('{"description": ""}')
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with caplog.at_level(logging.INFO, "reread"):
        documents, problems = read_all(tmp_path)
    assert [(one.text, one.position) for one in documents] == [
        ("丁", "row 1"),
        ("甲", "row 1"),
        ("乙", "row 2"),
        ("丙", "row 3"),
    ]
    assert not problems and "all splits of which are read (train, test)" in caplog.text
    (tmp_path / "train" / "state.json").unlink()  # as a cache
    assert texts(tmp_path / "train") == ["甲", "乙", "丙"]
    assert "no column `body`; it has text, n" in reason(tmp_path / "train", text_field="body")


@pytest.mark.parametrize("state", ["[]", "{", '{"_data_files": 3}', '{"_data_files": null}', '{"_data_files": ["a"]}'])
def test_a_state_that_does_not_list_a_datasets_files_is_one_line(tmp_path: Path, state: str) -> None:
    write_arrow(tmp_path / "data-00000-of-00001.arrow", ["甲"])
    (tmp_path / "state.json").write_text(state)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match=r"state\.json: does not list the dataset's files \(`_data_files`\); save"):
        read_all(tmp_path)


def test_damaged_arrow_files_are_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, ["甲" * 50] * 50)
    data = path.read_bytes()
    for cut in (9, 400, len(data) // 2):
        path.write_bytes(data[:cut])
        assert read_all(path)[1]
    path.write_bytes(data.replace("甲".encode() * 100, b"\xff" * 300, 1))
    documents, [problem] = read_all(path)
    assert len(documents) == 48 and problem.position == "after row 0" and "damaged batch of 2 rows" in problem.reason
    generator = random.Random(2)
    for _ in range(200):  # a wrong offset that is followed ends the process
        broken = bytearray(data)
        for place in generator.sample(range(len(data)), 4):
            broken[place] = generator.randrange(256)
        path.write_bytes(broken)
        read_all(path)


# --- whatever is in a file ---


def arrow_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_arrow(Path(folder) / "a", ["甲乙", "丙"] * 9)
        return (Path(folder) / "a").read_bytes()


WHOLE = {
    ".csv": 'id,text\n1,"甲, ""乙""\n丙"\n2,丁\n'.encode(),
    ".tsv": "id\ttext\n1\t甲\n2\t丁\n".encode(),
    ".json": b'[{"text": "a"}, {"text": "b\\ud800"}, "c"]',
    ".html": PAGE.format(SENTENCE).encode(),
    ".epub": make_zip(BOOK),
    ".zip": make_zip({"a.txt": b"a" * 99, "b.csv": b"text\nx\n", "c.jsonl.gz": gzip.compress(b'{"text": "x"}')}),
    ".arrow": arrow_bytes(),
    ".txt": SENTENCE.encode("gb18030"),
}


@given(st.sampled_from([*WHOLE]), st.data())
def test_whatever_a_file_holds_it_is_documents_and_problems(suffix: str, chosen: st.DataObject) -> None:
    data = chosen.draw(damaged(WHOLE[suffix]))
    path = chosen.draw(st.sampled_from(["text", "data[].text", "{text}{[0]}", "[1]"]))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"a{suffix}").write_bytes(data)
        (Path(folder) / "z.txt").write_text("last")
        documents, problems = read_all(Path(folder), text_field=path, encoding="auto", maximum_document_bytes=1000)
        assert documents[-1].text == "last" and len(problems) < 50
        assert all(len(one.text.encode("utf-8", "surrogatepass")) <= 1000 for one in documents)


# --- encodings ---

SIMPLIFIED = "话说天下大势，分久必合，合久必分。周末七国分争，并入于秦。\n" * 40
TRADITIONAL = "話說天下大勢，分久必合，合久必分。周末七國分爭，並入於秦。\n" * 40


def test_encodings_are_chosen_file_by_file(tmp_path: Path) -> None:
    stored = {
        "a.txt": SIMPLIFIED.encode(),
        "b.txt": SIMPLIFIED.encode("gb18030"),
        "c.txt": TRADITIONAL.encode("big5"),
        "d.txt": TRADITIONAL.encode("gb18030"),
        "e.txt": SIMPLIFIED.encode("utf-16"),
        "f.txt": b"plain",
        "g.txt": "Voilà un café.".encode(),
    }
    for name, data in stored.items():
        (tmp_path / name).write_bytes(data)
    counted = Counter[str]()
    documents, problems = read_all(tmp_path, encoding="auto", counted=counted)
    assert not problems
    expected = [SIMPLIFIED, SIMPLIFIED, TRADITIONAL, TRADITIONAL, SIMPLIFIED, "plain", "Voilà un café."]
    assert [one.text for one in documents] == expected
    assert counted == {"utf-8": 2, "gb18030": 2, "big5": 1, "utf-16": 1, "ascii": 1}


JAPANESE = "これは日本語の文章です。東京へ行きました。経済政策の発展と国際関係について議論が行われている。"
KOREAN = "한국어 문장입니다. 대한민국의 수도는 서울이며 경제와 문화의 중심지이다. 오늘 날씨가 매우 좋습니다. "


@pytest.mark.parametrize(
    "data",
    [
        "Привет, как дела?".encode("koi8-r") * 20,
        JAPANESE.encode("euc_jp") * 20,
        JAPANESE.encode("shift_jis") * 20,
        KOREAN.encode("euc_kr") * 20,
        "Voilà un café".encode("cp1252") * 20,
        bytes(range(128, 256)) * 9,
    ],
)
def test_a_file_in_no_encoding_of_the_list_is_bad_input(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    for format in ("auto", "document-per-line"):
        assert "not clearly one of utf-8, gb18030, big5" in reason(tmp_path / "a.txt", format, encoding="auto")


def test_a_damaged_byte_costs_its_line_and_not_the_choice(tmp_path: Path) -> None:
    lines = SIMPLIFIED.encode("gb18030").splitlines(keepends=True)
    lines[5] = b"\xff" + lines[5]
    (tmp_path / "a.txt").write_bytes(b"".join(lines))
    for part_bytes in (1 << 40, 300):
        documents, [problem] = read_all(tmp_path / "a.txt", "document-per-line", part_bytes, encoding="auto")
        assert len(documents) == len(lines) - 1 and "not gb18030" in problem.reason


def test_the_choice_waits_until_the_text_is_more_than_ascii(tmp_path: Path) -> None:
    data = b"preface\n" * 40_000 + SIMPLIFIED.encode("gb18030")
    (tmp_path / "a.txt").write_bytes(data)
    assert texts(tmp_path / "a.txt", encoding="auto") == [data.decode("gb18030")]
    whole = texts(tmp_path / "a.txt", "document-per-line", encoding="auto")
    assert whole == texts(tmp_path / "a.txt", "document-per-line", part_bytes=7000, encoding="auto")
    assert "".join(whole) == data.decode("gb18030")


# --- sections ---


def test_sections_are_read_each_in_its_own_way(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "novel.txt").write_bytes("我们喜欢研究历史。\n".encode("gb18030") * 3)
    (tmp_path / "b.csv").write_text("review\n今天天气\n明天\n", encoding="utf-8")
    (tmp_path / "c.txt").write_text("城市\n火车\n", encoding="utf-8")
    sections = [
        {"paths": [str(tmp_path / "a")], "encoding": "auto"},
        {"paths": str(tmp_path / "b.csv"), "text_field": "review"},
        {"paths": str(tmp_path / "*.*"), "format": "document-per-line", "validation_paths": str(tmp_path / "c.txt")},
    ]
    manifest = make(raw, tmp_path / "corpus", input=sections, validation_share=0)
    found = [(Path(source["path"]).name, source["documents"]) for source in manifest.sources]
    assert found == [("a", 1), ("b.csv", 2), ("*.*", 0), ("c.txt", 2)]
    assert manifest.sources[0]["encodings"] == {"gb18030": 1} and manifest.statistics["validation_documents"] == 2
    assert "gb18030 1." in (tmp_path / "corpus" / "report.md").read_text(encoding="utf-8")
    parsed = PreprocessSettings.parse(values(raw, tmp_path / "corpus", input=sections), "test")
    assert [entry.section for entry in entries_of(parsed.inputs)] == [0, 1, 2, 2]
    sections[1]["text_field"] = "body"
    with pytest.raises(UserError, match=r"input\.1\.text_field was \"review\", is \"body\""):
        build(PreprocessSettings.parse(values(raw, tmp_path / "corpus", input=sections, validation_share=0), "test"))


def test_one_section_in_a_list_is_that_section(raw: Path, tmp_path: Path) -> None:
    one = {"paths": [str(raw / "texts")]}
    first, second = tmp_path / "one", tmp_path / "list"
    make(raw, first, input=one)
    make(raw, second, input=[one])
    differ = {name for name, data in contents(first).items() if contents(second)[name] != data}
    assert differ <= {"preprocess.json"}


def test_mistakes_in_a_section_name_it(raw: Path, tmp_path: Path) -> None:
    def error(section: object) -> str:
        with pytest.raises(UserError) as raised:
            PreprocessSettings.parse(values(raw, tmp_path, input=section), "test")
        return str(raised.value)

    assert "unknown key `input.pahts`; did you mean `input.paths`?" in error({"pahts": ["x"], "paths": "x"})
    assert "unknown key `input.1.encodign`; did you mean `input.1.encoding`?" in error(
        [{"paths": "x"}, {"paths": "y", "encodign": "utf-8"}]
    )
    assert "input" in error([])
