"""Input that changes, is no file or no text, or would fill the memory: one line, and nothing else is lost."""

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from reread.preprocessing.config import InputSettings, PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.preprocessing.input.read import Document, Problem, read
from reread.preprocessing.input.sources import Piece, find_files, plan_parts
from tests.conftest import ROOT
from tests.raw_text import values

LINES = "".join(f"{n} 天下大势，分久必合\n" for n in range(2000))


def read_all(path: Path | str, format: str = "auto", **settings: object) -> tuple[list[str], list[Problem]]:
    chosen = InputSettings.model_validate({"paths": [str(path)], "format": format, **settings})
    problems: list[Problem] = []
    parts = plan_parts(find_files([chosen]), 1 << 40)
    pieces = [piece for part in parts for piece in part]
    return [document.text for piece in pieces for document in read(piece, chosen, problems.append)], problems


# --- input that changes ---


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more\n")


def rewrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[::-1])


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"x")
    other.rename(path)


@pytest.fixture(params=["a.txt", "a.txt.gz", "a.txt.zst", "a.tar", "a.parquet"])
def text_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Some two megabytes, more than is read at once."""
    path = tmp_path / request.param
    data = os.urandom(1 << 20).hex().encode() + b"\n" + LINES.encode()
    if path.suffix == ".parquet":
        column = [f"{n} {os.urandom(9000).hex()}" for n in range(100)]
        pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, row_group_size=10)
    elif path.suffix == ".tar":
        path.write_bytes(make_tar({f"{n}": data for n in range(2)}))
    else:
        compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress, ".txt": bytes}[path.suffix]
        path.write_bytes(compress(data))
    return path


def settings_of(text_file: Path, bad_input: str) -> InputSettings:
    format_of_file = "parquet" if text_file.suffix == ".parquet" else "document-per-line"
    return InputSettings.model_validate({"paths": [str(text_file)], "format": format_of_file, "bad_input": bad_input})


@pytest.mark.parametrize("bad_input", ["report", "refuse"])
@pytest.mark.parametrize("change", [shrink, grow, rewrite, replace])
def test_a_file_that_changed_since_it_was_planned_is_refused(
    text_file: Path, change: Callable[[Path], None], bad_input: str
) -> None:
    settings = settings_of(text_file, bad_input)
    [[piece]] = plan_parts(find_files([settings]), 1 << 40)
    change(text_file)
    with pytest.raises(UserError, match=r"a\.[a-z.]+: changed since the work began"):
        list(read(piece, settings, lambda problem: None))


@pytest.mark.parametrize("bad_input", ["report", "refuse"])
@pytest.mark.parametrize("change", [shrink, grow])
def test_a_file_that_changes_while_it_is_read_is_refused(
    text_file: Path, change: Callable[[Path], None], bad_input: str
) -> None:
    settings = settings_of(text_file, bad_input)
    documents = read(Piece(str(text_file), find_files([settings])[0].format), settings, lambda problem: None)
    assert next(documents)
    change(text_file)
    with pytest.raises(UserError, match="changed since the work began"):
        list(documents)


def test_a_changed_file_ends_the_whole_work_with_one_line(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reread.preprocessing.execution import stages

    path = tmp_path / "novel.txt"
    path.write_text(LINES, encoding="utf-8")
    changed = values(raw, tmp_path / "corpus", input={"paths": [str(path)], "format": "document-per-line"})
    settings = PreprocessSettings.parse(changed, "test")
    original = stages.read

    def read_late(*arguments: object) -> Iterator[Document]:
        shrink(path)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "read", read_late)
    with pytest.raises(UserError, match="changed since the work began"):
        build(settings)
    assert not (tmp_path / "corpus" / "manifest.json").exists()


# --- what is no file, no text, or lies in the output ---


@contextmanager
def special(path: Path, kind: str) -> Iterator[Path]:
    if kind == "named pipe":
        os.mkfifo(path)
        yield path
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(path.parent)  # the address of a socket is short
            listener.bind(path.name)
            os.chdir(here)
            yield path
    else:
        yield Path("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["named pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    with special(tmp_path / "input", kind) as path:
        with pytest.raises(UserError, match=f"is a {kind}, which cannot be read twice"):
            read_all(path)
        # It has become one since: a socket cannot be opened, the others can.
        with pytest.raises(UserError, match="cannot be read" if kind == "socket" else "changed since"):
            list(read(Piece(str(path), "jsonl"), InputSettings(paths=["x"]), pytest.fail))


@pytest.mark.slow
def test_names_that_are_no_utf_8_come_through(raw: Path, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    odd = b"\xd0\xc2\xce\xc4.txt"  # 新文 in GBK, as many archives have it
    for name, data in ((odd, LINES[:300].encode()), (b"bad" + odd, b"\xff\xfe\xff"), (b"a.jsonl", b'{"\\ud800": 1}\n')):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    with open(os.path.join(folder, b"a.tar"), "wb") as file:
        file.write(make_tar({os.fsdecode(odd): b"\xff", "b.txt": LINES[300:600].encode()}))
    settings = values(raw, tmp_path / "corpus", input={"paths": [str(tmp_path / "in")]}, validation_share=0.0)
    for _ in range(2):  # the second time it is whole
        manifest = build(PreprocessSettings.parse(settings, "test"))
    assert manifest.statistics["documents"] == 2 and manifest.dropped["unreadable"] == 3
    assert Manifest.read(tmp_path / "corpus").fingerprint == manifest.fingerprint
    problems = [json.loads(line) for line in (tmp_path / "corpus" / "problems.jsonl").read_text("utf-8").splitlines()]
    assert {os.fsencode(os.path.basename(problem["path"])) for problem in problems} == {
        b"a.jsonl",
        b"a.tar",
        b"bad" + odd,
    }
    with pytest.raises(UserError, match=r"\\ud.*input\.bad_input=report") as raised:
        build(
            PreprocessSettings.parse(
                settings | {"output": str(tmp_path / "b"), "input": settings["input"] | {"bad_input": "refuse"}}, "test"
            )
        )
    assert str(raised.value).isprintable()


def test_json_text_with_half_a_surrogate_pair_is_read(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "我们\\ud800喜欢"}\n{"text": "研究\\udc00\\ud83d\\ude00"}\n')
    settings = values(raw, tmp_path / "corpus", input={"paths": [str(tmp_path / "a.jsonl")]})
    manifest = build(PreprocessSettings.parse(settings, "test"))
    assert manifest.statistics["documents"] == 2 and not manifest.dropped


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_wide_encoding_without_its_mark_is_bad_input(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("我们喜欢".encode(f"{encoding}-be"))
    (tmp_path / "b.txt").write_bytes("研究".encode(encoding))
    documents, problems = read_all(tmp_path, encoding=encoding)
    assert documents == ["研究"]
    assert [Path(problem.path).name for problem in problems] == ["a.txt"]


def test_half_a_surrogate_pair_in_utf_16_costs_its_line(tmp_path: Path) -> None:
    lines = ["我们\n".encode("utf-16-le"), b"\x00\xd8" + "\n".encode("utf-16-le"), "研究\n".encode("utf-16-le")]
    (tmp_path / "a.txt").write_bytes(b"".join(lines))
    documents, [problem] = read_all(tmp_path / "a.txt", "document-per-line", encoding="utf-16-le")
    assert documents == ["我们\n", "研究\n"]
    assert problem.position == "line 2" and "not utf-16-le" in problem.reason


def test_lines_in_ebcdic_end_where_its_lines_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\ntwo\n".encode("cp037"))
    assert read_all(tmp_path / "a.txt", "document-per-line", encoding="cp037") == (["one\n", "two\n"], [])


@pytest.mark.parametrize("encoding", ["gb18030", "base64", "no-such"])
def test_xml_in_an_encoding_that_cannot_be_read_is_bad_input(tmp_path: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><mediawiki><page><title>a</title></page></mediawiki>'
    (tmp_path / "a.xml").write_text(text)
    documents, [problem] = read_all(tmp_path)
    assert not documents and "states an encoding" in problem.reason


@pytest.mark.slow
def test_an_output_folder_inside_the_input_is_never_read(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(LINES, encoding="utf-8")
    settings = PreprocessSettings.parse(values(raw, folder / "corpus", input={"paths": [str(folder)]}), "test")
    first = build(settings)
    assert len((folder / "corpus" / "train-00000.tar").read_bytes()) > 0
    with caplog.at_level("INFO", "reread"):
        assert build(settings).fingerprint == first.fingerprint
    assert "which is not read as text" in caplog.text and "nothing to do" in caplog.text
    inside = settings.model_copy(update={"input": InputSettings(paths=[str(folder / "corpus" / "*.tar")])})
    with pytest.raises(UserError, match="all of the input lies in"):
        build(inside)


# --- archives ---


def make_tar(members: dict[str, bytes], **options: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def make_zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def member(
    name: str, size: int, data: bytes = b"", type: bytes = tarfile.REGTYPE, pax: dict[str, str] | None = None
) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.pax_headers = size, type, pax or {}
    return entry.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


def old_sparse(size: int) -> bytes:
    """A header of GNU's first sparse format: nothing stored, `size` bytes of zeros."""
    header = bytearray(member("sparse", 0, type=tarfile.GNUTYPE_SPARSE))
    header[257:265] = b"ustar  \0"
    header[386:398] = header[398:410] = b"00000000000\0"
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


SPARSE_1_0 = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "1" * 30}
DAMAGED = {
    "a map that is none": member("s", 512, b"x" * 512, pax=SPARSE_1_0),
    "a map of letters": member("s", 512, b"1\nx\n".ljust(512, b"\0"), pax=SPARSE_1_0),
    "a map without end": member("s", 512, b"9" * 4000 + b"\n", pax=SPARSE_1_0),
    "a sparse map cut short": old_sparse(1 << 40)[:482] + b"\1" + old_sparse(1 << 40)[483:],
    "a header of gigabytes": member("x", 1 << 33, type=tarfile.XHDTYPE),
    "a name of gigabytes": member("x", 1 << 33, type=tarfile.GNUTYPE_LONGNAME),
    "a size of 1e30": member("x", 3, b"abc", pax={"size": "1" + "0" * 30}),
    "a size below zero": member("x", 3, b"abc", pax={"size": "-5000"}),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_headers_of_an_archive_are_bad_input(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar({"a.txt": b"first"})[:1024] + DAMAGED[damage])
    documents, problems = read_all(path)
    assert documents[0] == "first" and problems and all(problem.path == str(path) for problem in problems)
    with pytest.raises(UserError, match=r"a\.tar:"):
        read_all(path, bad_input="refuse")


def test_sparse_files_in_an_archive_are_told_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(old_sparse(1 << 40) + make_tar({"b.txt": b"second"}))
    documents, [problem] = read_all(path)
    assert documents == ["second"] and "sparse" in problem.reason


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_damaged_member_of_an_archive_costs_that_member(tmp_path: Path, suffix: str) -> None:
    packed = {"a.txt": b"1", "b.txt.gz": gzip.compress(LINES.encode())[:500], "c.txt.xz": b"none", "d.txt": b"2"}
    data = make_tar({**packed, "e.xml": b"<mediawiki><page>", "f.txt": b"3"})
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data))
    documents, problems = read_all(path)
    assert documents == ["1", "2", "3"]
    assert [problem.position for problem in problems] == [
        "b.txt.gz, after the start",
        "c.txt.xz, after the start",
        "e.xml, after the start",
    ]


# --- bounds ---


@pytest.mark.parametrize("format", ["document-per-file", "document-per-line", "blank-line", "jsonl", "wikiextractor"])
@pytest.mark.parametrize("part_bytes", [1 << 40, 1000, 137])
def test_a_document_above_the_bound_costs_that_document(tmp_path: Path, format: str, part_bytes: int) -> None:
    wraps = {
        "blank-line": "{}\n\n",
        "jsonl": '{{"text": "{}"}}\n',
        "wikiextractor": '<doc title="t">\nt\n\n{}\n</doc>\n',
    }
    texts = ["短", "长" * 200, "也短", "还短"]
    pieces = [wraps.get(format, "{}\n").format(text) for text in texts]
    if format == "document-per-file":
        for number, text in enumerate(texts):
            (tmp_path / f"{number}").write_text(text, encoding="utf-8")
    else:
        (tmp_path / "0").write_text("".join(pieces), encoding="utf-8")
    settings = InputSettings.model_validate({"paths": [str(tmp_path)], "format": format, "maximum_document_bytes": 500})
    problems: list[Problem] = []
    parts = plan_parts(find_files([settings]), part_bytes)
    documents = [
        found.text.strip() for part in parts for piece in part for found in read(piece, settings, problems.append)
    ]
    assert documents == ["短", "也短", "还短"]
    assert [problem.reason[:21] for problem in problems] == ["longer than 500 bytes"]


def test_a_page_and_a_cell_above_the_bound_cost_themselves(tmp_path: Path) -> None:
    page = "<page><title>{}</title><revision><text>{}</text></revision></page>"
    dump = "".join(page.format(*page_) for page_ in (("a", "短"), ("b", "长" * 200), ("c", "也短")))
    (tmp_path / "a.xml").write_text(f"<mediawiki>{dump}</mediawiki>", encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["短", "长" * 200, "也短"]}), tmp_path / "a.parquet")
    for name, position in (("a.xml", "page b"), ("a.parquet", "row 2")):
        documents, [problem] = read_all(tmp_path / name, maximum_document_bytes=500)
        assert documents == ["短", "也短"] and problem.position == position
        with pytest.raises(UserError, match="longer than 500 bytes"):
            read_all(tmp_path / name, maximum_document_bytes=500, bad_input="refuse")


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE m [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><m><page><title>&b;</title></page></m>',
        "<a>" * 200,
        "<m><!--" + "x" * (3 << 20),
        "<m>" + "".join(f"<a{n}/>" for n in range(2000)),
    ],
)
def test_xml_as_no_dump_has_it_is_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    documents, [problem] = read_all(tmp_path)
    assert not documents and "damaged" in problem.reason


_READ = """
import json, resource, sys
from reread.preprocessing.config import InputSettings
from reread.preprocessing.input.read import read
from reread.preprocessing.input.sources import Piece, find_files
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = {}
for path in sys.argv[2:]:
    for format in ("auto", "blank-line"):
        settings = InputSettings(paths=[path], format=format, maximum_document_bytes=int(sys.argv[1]))
        [file] = find_files([settings])
        problems = []
        count = sum(1 for _ in read(Piece(file.path, file.format), settings, problems.append))
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
        found[f"{path} {format}"] = count, len(problems), grown
print(json.dumps(found))
"""
MEGABYTE = 1 << 20


def zeros(compress: Callable[[], object], count: int) -> bytes:
    """`count` megabytes of zeros, compressed."""
    packer = compress()
    parts = [packer.compress(bytes(MEGABYTE)) for _ in range(count)]  # type: ignore[attr-defined]
    return b"".join([*parts, packer.flush()])  # type: ignore[attr-defined]


def zstd_window() -> bytes:
    """A frame that asks for a window of 2 GiB, and blocks of 128 KiB of one byte each."""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"x"
    return b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + block * 8000


@pytest.mark.slow
def test_small_hostile_files_fill_neither_memory_nor_time(tmp_path: Path) -> None:
    gzipped = zeros(lambda: zlib.compressobj(9, zlib.DEFLATED, 31), 150)
    bombs = {
        "a.txt.gz": gzipped,
        "a.txt.bz2": zeros(bz2.BZ2Compressor, 80),
        "a.txt.xz": zeros(lambda: lzma.LZMACompressor(preset=0), 100),
        "a.txt.zst": zstd_window(),
        "a.tar.gz": gzip.compress(make_tar({"a.jsonl.gz": gzipped})),
        "b.tar": old_sparse(1 << 40),
        "a.xml.gz": gzip.compress(b"<mediawiki>" + b"<a>" * 10**7),
        "b.xml.gz": gzip.compress(b"<mediawiki><page><title>" + b"a" * 10**8),
        "c.xml.gz": gzip.compress(b"<mediawiki a='" + b"a" * 10**8),
        "wiki_00.gz": gzipped,
        "a.csv.gz": gzip.compress(b'text\n"' + b"a" * 3 * 10**7),
        "a.json.gz": gzip.compress(b'[{"text": "' + b"a" * 3 * 10**7),
        "b.json.gz": gzip.compress(b"[" * 3 * 10**7),
        "c.json.gz": gzip.compress(b"[[" + b"{}," * 3 * 10**6 + b"{}]]"),
        "d.json.gz": gzip.compress(b'{"text": "a", "b": [' + b"[]," * 3 * 10**6 + b"{}]}"),
        "a.html.gz": gzip.compress(b"<div>" * 2 * 10**6),
        "a.zip": make_zip({f"{number}.txt": b"a" * 3 * 10**7 for number in range(2)}),
        "a.epub": make_zip({"META-INF/container.xml": b" " * 3 * 10**7}),
    }
    for name, data in bombs.items():
        assert len(data) < MEGABYTE
        (tmp_path / name).write_bytes(data)
    found = subprocess.run(
        [sys.executable, "-c", _READ, str(8 * MEGABYTE), *(str(tmp_path / name) for name in bombs)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    for what, (documents, problems, grown) in json.loads(found.stdout).items():
        assert documents == 0 and 1 <= problems <= 3, what
        assert grown < 60 * MEGABYTE, what


@pytest.mark.slow
def test_what_a_file_expands_to_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\n" * 10**6 + b"a\n"))
    assert read_all(tmp_path, "document-per-line")[0] == ["a\n"]
    bounds = {"maximum_document_bytes": 1000, "maximum_expansion": 100}
    documents, [problem] = read_all(tmp_path, "document-per-line", **bounds)
    assert not documents and "expands to more than" in problem.reason and "input.maximum_expansion" in problem.reason
    with pytest.raises(UserError, match="expands to more than"):
        read_all(tmp_path, "document-per-line", bad_input="refuse", **bounds)


def test_a_parquet_file_of_one_text_in_many_rows_is_bounded(tmp_path: Path) -> None:
    once = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 300, pyarrow.int32()), ["x" * 10**6])
    pyarrow.parquet.write_table(pyarrow.table({"text": once}), tmp_path / "a.parquet", store_schema=False)
    documents, [problem] = read_all(tmp_path, maximum_document_bytes=10**7)
    assert 10 <= len(documents) < 60 and "expands to more than" in problem.reason


def test_many_small_values_cost_their_record_and_commas_of_prose_none(tmp_path: Path) -> None:
    prose = json.dumps({"text": 'so, "he", \\, said, ' * 40_000})
    many = '{"text": "a", "b": [' + "{}," * 40_000 + "{}]}"
    (tmp_path / "a.json").write_text(f"[{prose}, {many}, {prose}]")
    (tmp_path / "a.jsonl").write_text(f"{prose}\n{many}\n{prose}\n")
    for name in ("a.json", "a.jsonl"):
        documents, problems = read_all(tmp_path / name, maximum_document_bytes=MEGABYTE)
        assert documents[0] == json.loads(prose)["text"]
        assert [problem.reason for problem in problems] == ["more values than 1,048,576 bytes of memory can hold"]
        assert len(documents) == (2 if name == "a.jsonl" else 1)


def test_bad_lines_without_number_are_counted_and_some_are_listed(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "我们喜欢"}\n' + "x\n" * 1500)
    settings = values(raw, tmp_path / "corpus", input={"paths": [str(tmp_path / "a.jsonl")]}, part_bytes=1 << 20)
    manifest = build(PreprocessSettings.parse(settings, "test"))
    assert manifest.dropped["unreadable"] == 1500
    assert len((tmp_path / "corpus" / "problems.jsonl").read_text().splitlines()) == 1000


def test_the_pieces_of_a_file_of_one_line_do_not_all_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (4 * MEGABYTE))
    for format in ("document-per-line", "jsonl", "blank-line"):
        settings = InputSettings.model_validate({"paths": [str(path)], "format": format, "bad_input": "report"})
        pieces = [piece for part in plan_parts(find_files([settings]), MEGABYTE // 4) for piece in part]
        assert len(pieces) == 16 and Piece(**json.loads(json.dumps(asdict(pieces[3])))) == pieces[3]
        read_bytes: list[int] = []
        for piece in pieces[1:]:
            before = bytes_read()
            assert not list(read(piece, settings, pytest.fail))
            read_bytes.append(bytes_read() - before)
        assert max(read_bytes) < MEGABYTE, format


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))
