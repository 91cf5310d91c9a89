"""Reading raw text: every format, every compression, every cut, and what is said of bad input."""

import bz2
import gzip
import io
import itertools
import json
import logging
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from reread.preprocessing.config import InputSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.input.read import Document, Problem, read
from reread.preprocessing.input.sources import Piece, find_files, plan_parts
from tests.conftest import shared

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": lambda data: bz2.compress(data, 1),  # small blocks
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstandard.ZstdCompressor().compress,
}


def read_all(path: Path, format: str = "auto", **settings: object) -> tuple[list[Document], list[Problem]]:
    values = InputSettings.model_validate({"paths": [str(path)], "format": format, **settings})
    problems: list[Problem] = []
    files = find_files([values])
    documents = [
        document
        for part in plan_parts(files, 1 << 40)
        for piece in part
        for document in read(piece, values, problems.append)
    ]
    return documents, problems


def texts(path: Path, format: str = "auto", **settings: object) -> list[str]:
    documents, problems = read_all(path, format, **settings)
    assert not problems
    return [document.text for document in documents]


# --- finding and planning ---


def test_files_come_in_the_order_of_paths_and_sorted_within(tmp_path: Path) -> None:
    for name in (
        "b/2.txt",
        "b/10.txt",
        "b/a/z.txt",
        "b/.hidden",
        "b/.git/x.txt",
        "a.txt",
        "wiki_00",
        "c.jsonl.gz",
        "d.tgz",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "b" / "a" / "up").symlink_to(tmp_path / "b")
    patterns = [str(tmp_path / "b"), str(tmp_path / "*.txt"), str(tmp_path / "wiki_00"), str(tmp_path / "[cd].*")]
    found = find_files([InputSettings(paths=[*patterns, str(tmp_path / "b" / "2.txt")])])
    assert [(Path(file.path).relative_to(tmp_path).as_posix(), file.format) for file in found] == [
        ("b/10.txt", "document-per-file"),
        ("b/2.txt", "document-per-file"),
        ("b/a/z.txt", "document-per-file"),
        ("a.txt", "document-per-file"),
        ("wiki_00", "wikiextractor"),
        ("c.jsonl.gz", "jsonl"),
        ("d.tgz", "tar"),
    ]


def test_automatic_formats_say_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.parquet", "b.parquet", "zhwiki-pages-articles1.xml-p1p99.bz2"):
        (tmp_path / name).write_text("x")
    with caplog.at_level(logging.INFO, logger="reread"):
        find_files([InputSettings(paths=[str(tmp_path)])])
    assert caplog.messages == [
        "input: 2 files read as parquet (by the name *.parquet)",
        "input: 1 files read as mediawiki (by the name *.xml)",
    ]


def test_a_path_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no-such-\*.*matches no file"):
        find_files([InputSettings(paths=[str(tmp_path / "no-such-*")])])
    for given in ("a.txt,b.txt", "[chapter[0-9].txt]"):
        with pytest.raises(UserError, match=r"matches no file.*a list is \[one,two\]"):
            find_files([InputSettings(paths=[given])])


def test_a_corpus_in_a_folder_is_not_read_as_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "old/manifest.json", "old/index.npz", "old/report.md", "old/tokenizer/vocab.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with caplog.at_level(logging.INFO, logger="reread"):
        (found,) = find_files([InputSettings(paths=[str(tmp_path)])])
    assert found.path == str(tmp_path / "a.txt")
    assert caplog.messages[0].startswith(f"input: {tmp_path / 'old'}: a corpus")


def test_an_open_quote_in_csv_names_the_lines_that_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for last, found in (("z", ["a"]), ('"y"', ["a", "x"])):
        path.write_text(f'text,n\na,1\n"b,2\nc,3\n{last},4\nx,5\n')
        documents, (problem,) = read_all(path)
        assert [document.text for document in documents] == found
        assert problem.position == "line 3"
        assert problem.reason.startswith(f"lines 3 to {6 if last == 'z' else 5} are lost")


@pytest.mark.parametrize("name", ["utf-9", "base64", "rot13", "hex", "undefined", "a\0b", "\udcff"])
def test_an_encoding_that_is_none_of_text_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="encoding: "):
        InputSettings.parse({"paths": ["x"], "encoding": name}, "input")


def test_parts_group_small_files_and_cut_large_ones(tmp_path: Path) -> None:
    sizes = {"a.txt": 30, "b.txt": 30, "c.txt": 50, "d.jsonl": 250, "e.jsonl.gz": 250, "f.txt": 10}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    files = find_files([InputSettings(paths=[str(tmp_path)])])
    parts = plan_parts(files, 100)
    shape = [[(Path(piece.path).name, piece.start, piece.end) for piece in part] for part in parts]
    assert shape == [
        [("a.txt", 0, None), ("b.txt", 0, None)],
        [("c.txt", 0, None)],
        [("d.jsonl", 0, 83)],
        [("d.jsonl", 83, 166)],
        [("d.jsonl", 166, None)],
        [("e.jsonl.gz", 0, None)],
        [("f.txt", 0, None)],
    ]
    piece = parts[3][0]
    assert Piece(**json.loads(json.dumps(asdict(piece)))) == piece


# --- line-based formats and byte ranges ---


@pytest.mark.parametrize("format", ["blank-line", "document-per-line", "jsonl"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", "  \n"])
@pytest.mark.parametrize("end", ["", "\n", "\n \n\n"])
def test_byte_ranges_give_the_documents_of_the_file(
    tmp_path: Path, format: str, newline: str, start: str, end: str
) -> None:
    path = tmp_path / "file"
    lines = ["一二", "三", "", "", "a\u2028b", "\u3000 ", "𠀀x", " y", " ", "z"]
    if format == "jsonl":
        lines = [
            json.dumps({"text": line}, ensure_ascii=False) if line.strip() else line
            for line in lines
            if line != "\u3000 "
        ]
    data = (start + "\n".join(lines) + end).replace("\n", newline).encode()
    path.write_bytes(data)
    whole = texts(path, format)
    assert len(whole) == {"blank-line": 4, "document-per-line": 7, "jsonl": 6}[format]
    settings = InputSettings(paths=[str(path)], bad_input="refuse")

    def pieces(*bounds: int | None) -> list[str]:
        ranges = [Piece(str(path), format, a or 0, b) for a, b in itertools.pairwise(bounds)]
        return [document.text for piece in ranges for document in read(piece, settings, pytest.fail)]

    for cut in range(len(data) + 1):
        assert pieces(0, cut, None) == whole, cut
    for width in (1, 2, 3, 5):
        assert pieces(*range(0, len(data), width), None) == whole, width


def test_blank_line_documents(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("甲\n乙\n\n\n丙\n\u3000\n丁", encoding="utf-8")
    documents, _ = read_all(path, "blank-line")
    assert [(text, position) for text, _, position in documents] == [
        ("甲\n乙\n", "line 1"),
        ("丙\n", "line 5"),
        ("丁", "line 7"),
    ]


def test_json_lines_are_split_at_newlines_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a\u2028b\x85c"}\n\n{"body": "\\ud800x"}\n', encoding="utf-8")
    assert texts(path, text_field="body") == ["a\u2028b\x85c", "\ud800x"]


def test_a_bad_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "a"}',
        b'{"text": ',
        b"[1]",
        b'{"txt": 1}',
        b'{"text": 3}',
        b'{"text": "\xb0\xa1"}',
        b"[" * 99999,
    ]
    path.write_bytes(b"\n".join([*lines, b'{"text": "z"}']))
    documents, problems = read_all(path)
    assert [document.text for document in documents] == ["a", "z"]
    assert [problem.position for problem in problems] == [f"line {number}" for number in range(2, 8)]
    for problem, said in zip(
        problems, ("not JSON", "list", "it has txt", "holds a number", "not utf-8", "not JSON"), strict=True
    ):
        assert said in problem.reason
    with pytest.raises(UserError, match=r"a\.jsonl:line 2: not JSON .*input\.bad_input=report"):
        read_all(path, bad_input="refuse")


# --- encodings ---

NOVEL = "第一回　宴桃園豪傑三結義\n话说天下大势，分久必合，合久必分。“周末七国分争”\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_byte_order_marks_overrule_the_encoding(tmp_path: Path, encoding: str, suffix: str) -> None:
    data = NOVEL.encode(encoding)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    assert texts(path, encoding="gb18030") == [NOVEL]
    lines = NOVEL.splitlines(keepends=True)
    assert texts(path, "document-per-line") == lines
    if not suffix:
        settings = InputSettings(paths=[str(path)])
        ranges = [Piece(str(path), "document-per-line", *bounds) for bounds in ((0, 31), (31, None))]
        assert [document.text for piece in ranges for document in read(piece, settings, pytest.fail)] == lines


@pytest.mark.parametrize("encoding", ["gb18030", "big5hkscs", "utf-16-le"])
def test_stated_encodings(tmp_path: Path, encoding: str) -> None:
    text = "話說天下大勢，分久必合。\n" * 3
    (tmp_path / "file").write_bytes(text.encode(encoding))
    assert texts(tmp_path / "file", encoding=encoding) == [text]
    assert len(texts(tmp_path / "file", "document-per-line", encoding=encoding)) == 3


@pytest.mark.parametrize(
    ("text", "stored", "stated"),
    [
        ("话说天下大势，分久必合。" * 99, "gb18030", "utf-8"),
        ("話說天下大勢，分久必合。" * 99, "big5", "utf-8"),
        ("话说天下大势，分久必合。" * 99, "utf-16-le", "utf-8"),
        ("滚滚长江东逝水，浪花淘尽英雄。" * 99, "utf-8", "gb2312"),
        ("It is a truth universally acknowledged — “café”. " * 99, "cp1252", "utf-8"),
    ],
)
def test_a_wrong_encoding_is_named_with_the_one_that_fits(tmp_path: Path, text: str, stored: str, stated: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(("\n" + text).encode(stored))
    documents, [problem] = read_all(path, encoding=stated)
    assert not documents and problem.path == str(path) and f"not {stated} (byte" in problem.reason
    assert f"`input.encoding={stored}` would fit" in problem.reason


@pytest.mark.parametrize("stated", ["utf-8", "gb18030"])
def test_a_cut_text_is_not_taken_for_one_in_another_encoding(tmp_path: Path, stated: str) -> None:
    path, text = tmp_path / "a.txt", "话说天下大势，分久必合。\n" * 2999
    path.write_bytes(text.encode(stated)[:-2])  # as `head -c` cuts
    documents, [problem] = read_all(path, encoding=stated)
    assert not documents and f"`iconv -c -f {stated} -t {stated}`" in problem.reason
    path.write_bytes(b"preface\n" * 2999 + text.encode("utf-16-le" if stated == "gb18030" else "gb18030"))
    documents, [problem] = read_all(path, encoding=stated)
    assert not documents and "iconv" not in problem.reason


def test_a_short_table_in_another_encoding_says_what_to_set(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,score\n很好的酒店,1\n不好,0\n".encode("gb18030"))
    for encoding in ("utf-8", "auto"):  # too little to tell GB18030 from Big5
        for problem in read_all(path, encoding=encoding)[1]:
            assert "such as gb18030, set `input.encoding`" in problem.reason
    lines = ["滚滚长江", "东逝水", "浪花淘尽", "英雄", "是非成败", "转头空", "青山依旧在", "几度夕阳红"]
    path.write_bytes(("text\n" + "\n".join(lines)).encode("gb18030"))
    reasons = [problem.reason for problem in read_all(path)[1]]
    assert len(reasons) == 8 and "`input.encoding=gb18030` would fit" in reasons[-1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("null", "null"), ("true", "true"), ("1.5", "a number"), ("{}", "an object"), ("[]", "a list")],
)
def test_types_are_called_as_in_json(tmp_path: Path, value: str, shown: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": {value}}}')
    assert read_all(path)[1][0].reason.startswith(f"field `text` holds {shown}, not text")


# --- compression and archives ---


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_streams_of_several_parts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"".join(COMPRESSIONS[suffix](f'{{"text": "{n}"}}\n'.encode()) for n in range(5)))
    assert texts(path) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_cut_archive_gives_what_stands_before_the_cut(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    lines = [f"{n * 7919 % 10007} 天下大势 {n}\n" for n in range(50_000)]
    data = COMPRESSIONS[suffix]("".join(lines).encode())
    path.write_bytes(data[: len(data) * 3 // 4])
    documents, [problem] = read_all(path, "document-per-line")
    assert 0.3 < len(documents) / len(lines) < 0.8
    assert [document.text for document in documents] == lines[: len(documents)]
    assert "cut short" in problem.reason and f"after line {len(documents)}" == problem.position
    with pytest.raises(UserError, match="cut short"):
        read_all(path, "document-per-line", bad_input="refuse")
    assert read_all(path)[0] == []  # half a document is none


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst", "a.tar", "a.tgz", "a.parquet", "a.xml", "wiki_00"])
def test_files_that_are_not_what_they_are_called(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"never a %s" % name.encode() * 99)
    documents, problems = read_all(tmp_path / name)
    assert documents == [] and len(problems) == 1
    (tmp_path / name).write_bytes(b"")
    assert read_all(tmp_path / name) == ([], [Problem(str(tmp_path / name), "whole file", "empty file")])


def make_tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def test_archive_members_are_read_by_their_names(tmp_path: Path) -> None:
    members = {
        "./甲/text.txt": "天\n地".encode(),
        "b.jsonl.gz": gzip.compress(b'{"text": "x"}\n{"text": "y"}'),
        "._b": b"\xff",
        "c.txt": b"",
    }
    path = tmp_path / "a.tar.xz"
    path.write_bytes(lzma.compress(make_tar(members)))
    documents, problems = read_all(path)
    assert [(document.text, document.position) for document in documents] == [
        ("天\n地", "./甲/text.txt, whole file"),
        ("x", "b.jsonl.gz, line 1"),
        ("y", "b.jsonl.gz, line 2"),
    ]
    assert problems == [Problem(str(path), "c.txt, whole file", "empty file")]
    path.write_bytes(lzma.compress(make_tar({"a.txt": b"1\n2", "b": b"3"})))
    assert [position for _, _, position in read_all(path, "document-per-line")[0]] == [
        "a.txt, line 1",
        "a.txt, line 2",
        "b, line 1",
    ]


def test_a_cut_tar_is_noticed_wherever_it_is_cut(tmp_path: Path) -> None:
    data = make_tar({f"{n}.txt": b"%d" % n * 600 for n in range(3)})
    path = tmp_path / "a.tar"
    ends = 512 + 1024, 2 * (512 + 1024), 3 * (512 + 1024)
    for cut in (100, 511, 512, 700, ends[0], ends[0] + 100, ends[1], ends[1] + 512, ends[2] - 1, ends[2]):
        path.write_bytes(data[:cut])
        documents, problems = read_all(path)
        assert len(documents) == sum(end <= cut for end in ends) or cut == ends[2] - 1, cut
        assert len(problems) == 1 and problems[0].path == str(path), cut
    path.write_bytes(data[: ends[0]] + b"\x01" * 512 + data[ends[0] + 512 :])
    assert len(read_all(path)[1]) == 1


def test_reading_holds_little_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    data = b"".join(b'{"text": "%d"}\n' % 7**n for n in range(2000))
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    settings = InputSettings(paths=[str(path)])
    tracemalloc.start()
    count = sum(1 for _ in read(Piece(str(path), "jsonl"), settings, pytest.fail))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2000 and peak < len(data) / 2


# --- parquet ---


def write_parquet(path: Path, values: list[object], field: str = "text", **options: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table({field: values, "n": list(range(len(values)))}), path, **options)


def test_parquet_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, ["甲", None, "乙"], row_group_size=2)
    documents, problems = read_all(path)
    assert [(document.text, document.position) for document in documents] == [("甲", "row 1"), ("乙", "row 3")]
    assert [problem.position for problem in problems] == ["row 2"]
    assert "it has text, n" in read_all(path, text_field="body")[1][0].reason
    write_parquet(path, [1, 2])
    assert "holds a number" in read_all(path)[1][0].reason


def test_a_damaged_row_group_costs_that_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [f"{n}" * 50 for n in range(300)]
    write_parquet(path, values, row_group_size=100, use_dictionary=False, compression="gzip")
    data = bytearray(path.read_bytes())
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0)
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 20] = b"\xff" * 20
    path.write_bytes(data)
    documents, [problem] = read_all(path)
    assert [document.text for document in documents] == values[:100] + values[200:]
    assert documents[-1].position == "row 300" and "row group 1" in problem.reason
    path.write_bytes(data[: len(data) // 2])
    assert len(read_all(path)[1]) == 1


# --- Wikipedia ---

WIKI = """<doc id="1" url="u?curid=1" title="A &amp; B">
A & B

First line &lt;x&gt;.
Second.
</doc>
<doc id="2" url="u?curid=2" title="柏林">
别的
</doc>
"""


def test_wikiextractor_output_loses_tags_and_repeated_titles(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(WIKI, encoding="utf-8")
    assert texts(path) == ["First line <x>.\nSecond.\n", "\n".join(["别的", ""])]
    path.write_text(WIKI[:-7], encoding="utf-8")
    documents, problems = read_all(path)
    assert len(documents) == 1 and problems[0].position == "line 7"
    path.write_text('{"id": "1", "title": "A", "text": "B"}\n')
    assert texts(path) == ["B"]


DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/"><siteinfo><namespaces>
<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace></namespaces></siteinfo>
{}</mediawiki>"""


def page(title: str, text: str, extra: str = "", namespace: int = 0) -> str:
    body = f"<revision><model>wikitext</model><text>{text}</text></revision>"
    return f"<page><title>{title}</title><ns>{namespace}</ns>{extra}{body}</page>\n"


def test_mediawiki_articles(tmp_path: Path) -> None:
    pages = [
        page("甲", "'''甲'''是[[乙|丙]]。[[Datei:x.jpg|thumb|[[丁]]的图]][[Kategorie:戊]]"),
        page("己", "#重定向 [[甲]]"),
        page("庚", "x", extra='<redirect title="甲" />'),
        page("Talk:甲", "讨论", namespace=1),
        page("辛", "壬"),
    ]
    data = DUMP.format("".join(pages)).encode()
    path = tmp_path / "zhwiki-pages-articles.xml.bz2"
    half = len(data) // 2
    path.write_bytes(bz2.compress(data[:half]) + bz2.compress(data[half:]))  # a multistream dump
    documents, problems = read_all(path)
    assert [(document.text, document.position) for document in documents] == [
        ("甲是丙。", "page 甲"),
        ("壬", "page 辛"),
    ]
    assert not problems
    path.write_bytes(bz2.compress(data[: data.rindex(b"<title>")]))
    documents, [problem] = read_all(path)
    assert [document.text for document in documents] == ["甲是丙。"] and problem.position == "after page 甲"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format", "field", "count"),
    [
        ("zh_novels", "auto", "text", 3),
        ("zh_classics_niutrans/论语.tar.xz", "auto", "text", 20),
        ("en_wiki_xml", "auto", "text", 106),
        ("en_wikiextractor", "auto", "text", 80),
        ("zh_wiki_xml", "auto", "text", 1),
        ("zh_wiki_bertformat", "blank-line", "text", 59),
        ("zh_cail2019_scm", "auto", "A", 500),
        ("zh_iflytek_fewclue", "jsonl", "sentence", 4397),
        ("zh_iflytek_fewclue", "auto", "{label_des}: {sentence}", 4397),
        ("zh_c3", "auto", "{[0][]}", 8023),
        ("zh_cmrc2018", "auto", "data[].paragraphs[].context", 848),
        ("zh_chnsenticorp", "auto", "text_a", 10800),
    ],
)
def test_real_files(name: str, format: str, field: str, count: int) -> None:
    found = texts(shared(name), format, text_field=field)
    assert len(found) == count and all(found)
