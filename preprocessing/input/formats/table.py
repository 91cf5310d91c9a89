"""The table of input formats, with the names, first bytes and reader of each; also reads the members of archives."""

import codecs
import csv
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from typing import BinaryIO, NamedTuple

from reread.preprocessing.input.archives import ArchiveFile, entries, zip_entries
from reread.preprocessing.input.encodings import encoding_that_fits
from reread.preprocessing.input.formats import mediawiki, wikiextractor, wikitext
from reread.preprocessing.input.formats.columns import read_arrow, read_parquet
from reread.preprocessing.input.formats.delimited import read_csv, read_tsv
from reread.preprocessing.input.formats.html_text import read_epub, read_html
from reread.preprocessing.input.formats.json_files import json_file
from reread.preprocessing.input.formats.text_files import blank_line, document_per_file, document_per_line, jsonl
from reread.preprocessing.input.piece import DAMAGE, Document, PieceReader
from reread.preprocessing.input.streams import (
    BOMS,
    ExpansionError,
    decompress,
    is_wide,
    read_at_most,
    split_name,
    to_utf8,
)

Read = Callable[[PieceReader, BinaryIO], Iterator[Document]]
PROSE = "document-per-file"
"""The format of files whose name and first bytes imply no other."""


class InputFormat(NamedTuple):
    """A format of input files; one row of the table below."""

    read: Read
    name: str = ""
    """A regular expression that finds the ending of such file names, or the whole name if there is no ending."""
    shown: str = ""
    """The file names as the log shows them."""
    begins: tuple[str, ...] = ()
    """Keys of `_LOOKS` that such files may match."""
    is_lines: bool = False
    """Whether documents begin at lines or blank lines, so that a byte range of a file can be read by itself."""
    states_encoding: bool = False
    """Whether a file states its own encoding, so that its reader gets undecoded bytes."""
    needs_file: bool = False
    """Whether the reader needs a seekable file, and not only a stream."""


_LOOKS = {
    "html": re.compile(rb"(?:<\?xml[^>]*>\s*)?(?:<!--[^>]*>\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE),
    "mediawiki": re.compile(rb"(?:<\?xml[^>]*>\s*)?<mediawiki\b"),
    "xml": re.compile(rb"<\?xml\s"),
    "wikiextractor": re.compile(rb"<doc (?:id|url|title)="),
    "jsonl": re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:'),
    "json": re.compile(rb'\[\s*(?:\{\s*"|\[\s*["\[{\d]|"(?:[^"\\]|\\.)*"\s*[,\]])'),
}
"""The first characters of text that is not prose."""
_BINARY = (
    ("a zip archive (or a document of an office program)", rb"PK(?:\x03\x04|\x05\x06)"),
    ("a PDF", rb"%PDF-"),
    ("RTF", rb"\{\\rtf"),
    ("an old document of an office program", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    ("a book for Kindle", rb"(?s:.{60}BOOKMOBI)"),
    ("gzip", rb"\x1f\x8b\x08"),
    ("bzip2", rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    ("xz", rb"\xfd7zXZ\0"),
    ("Zstandard", rb"\x28\xb5\x2f\xfd"),
    ("a 7z or rar archive", rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07"),
    ("a tar archive", rb"(?s:.{257}ustar[\0 ])"),
    ("parquet", rb"PAR1"),
    ("Arrow", rb"ARROW1\0\0|\xff\xff\xff\xff.{3}\0\x10\0\0\0"),
    ("an image", rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|II\*\0|MM\0\*|(?s:RIFF.{4}WEBP)|AT&TFORM"),
    ("sound or film", rb"(?s:RIFF.{4}(?:WAVE|AVI ))|OggS\0|fLaC|ID3[\x02-\x04]\0|(?s:.{4}ftyp)"),
    ("a program", rb"\x7fELF|MZ[\x80-\xff\0\x01]|\xca\xfe\xba\xbe|\0asm"),
    ("data of a program", rb"SQLite format 3\0|\x89HDF|\x93NUMPY|\x80[\x02-\x05][\x95}\]cK(]|Obj\x01"),
)
_SIGNATURES = [(what, re.compile(pattern)) for what, pattern in _BINARY]
_ANY_SIGNATURE = re.compile(b"|".join(pattern for _, pattern in _BINARY))
_CONTROLS = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32))
_MOST_CONTROLS = 0.1
_HEAD = 1 << 13
_FEWEST_ROWS = 3
_CSV_HEADER = re.compile(rb'"?[\w\x80-\xff-]+"?(?:,"?[\w\x80-\xff-]+"?)+')


def format_of(path: str, stated: str) -> str:
    """The stated format; if it is `auto`, the format that the name of the file or archive member implies."""
    name, _ = split_name(path)
    implied = next((format for format, pattern in _NAMES if pattern.search(name)), PROSE)
    return stated if stated != "auto" and implied not in ARCHIVES else implied


def read_file(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    """The documents of a file, which may be compressed or an archive."""
    format, path = reader.piece.format, reader.piece.path
    if not FORMATS[format].needs_file:
        yield from _read_stream(reader, format, decompress(file, path, reader.spend))
    elif split_name(path)[1] is None:
        yield from FORMATS[format].read(reader, file)
    else:
        reader.problem("whole file", f"{format} that is compressed as a whole is not read; decompress it")


def _read_stream(reader: PieceReader, format: str, stream: BinaryIO) -> Iterator[Document]:
    if format in ARCHIVES:
        yield from FORMATS[format].read(reader, stream)
        return
    # The encoding: of the byte order mark, of the settings, or chosen among the candidates
    marked = next((name for mark, name in BOMS if stream.peek().startswith(mark)), None)  # type: ignore[attr-defined]
    reader.begin(marked or reader.settings.encoding)
    reason = _binary(stream.peek(), reader.encoding)  # type: ignore[attr-defined]
    if reason is None and not FORMATS[format].states_encoding:
        if reader.encoding == "auto" and not reader.choose_encoding(stream.peek()):  # type: ignore[attr-defined]
            return
        if is_wide(reader.encoding):  # "\n" has several bytes there: the file is read whole, by the piece with byte 0
            if reader.piece.start > 0:
                return
            stream, reader.encoding = to_utf8(stream, reader.encoding), "utf-8"
            reader.piece = replace(reader.piece, end=None)
    if reason is None and reader.settings.format == "auto":
        reason = _contradiction(format, stream.peek())  # type: ignore[attr-defined]
    # Read the file, unless its first bytes contradict its name
    if reason is None:
        try:
            yield from FORMATS[format].read(reader, stream)
        finally:  # the caller may stop before the end
            if reader.settings.encoding == "auto" and reader.piece.start == 0:
                reader.count_encoding("ascii" if reader.is_undecided else reader.stated)
    elif reader.piece.start == 0:
        reader.problem("whole file", reason)


def _binary(head: bytes, encoding: str) -> str | None:
    """The reason why a file that begins with `head` is not text; None if it may be."""
    if _ANY_SIGNATURE.match(head):
        what = next(what for what, pattern in _SIGNATURES if pattern.match(head))
        return f"begins like {what}, so it is not text; take it out of `paths`, or convert it"
    head = head[:_HEAD]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if encoding != "auto" and is_wide(encoding):
        return None
    if controls <= _MOST_CONTROLS * len(head) or (encoding_that_fits(head) or "").startswith("utf-16"):
        return None
    return "begins like binary data; take it out of `paths`, or set `input.encoding=utf-16-le` if it is UTF-16"


def _contradiction(format: str, head: bytes) -> str | None:
    """The reason why a file whose first bytes `head` contradict `format` is not read; None if they agree."""
    looks = looks_like(head) or (table_like(head) if format == PROSE else None)
    if looks is None or looks in FORMATS[format].begins:
        return None
    looks = "json" if looks == "jsonl" else looks  # the format `json` reads both
    wanted = "text" if format == PROSE else format
    way = f"set `input.format={looks}`" if looks in FORMATS else "convert it"
    return f"looks like {looks}, not {wanted}; {way}, or set `input.format={format}` if it is {wanted}"


def looks_like(head: bytes) -> str | None:
    """The key of `_LOOKS` that the first bytes of a file match; None if they may be prose."""
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if text[:1] not in (b"<", b"{", b"["):
        return None
    return next((name for name, pattern in _LOOKS.items() if pattern.match(text)), None)


def table_like(head: bytes) -> str | None:
    """`tsv` or `csv` if all lines of a text have that form (CSV below a line of names), else None."""
    first = head.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
    tabs = first.count(b"\t")
    if not tabs and not _CSV_HEADER.fullmatch(first):
        return None
    lines = [line.rstrip(b"\r") for line in head.split(b"\n")[:-1] if line.strip()]  # the last one may be cut
    if len(lines) < _FEWEST_ROWS:
        return None
    if tabs:
        same = all(line.count(b"\t") == tabs and line[:1] != b"\t" for line in lines)
        return "tsv" if same else None
    try:
        rows = list(csv.reader((line.decode("latin-1") + "\n" for line in lines), strict=True))
    except csv.Error:
        return None
    return "csv" if len(rows) >= _FEWEST_ROWS and len(set(map(len, rows))) == 1 else None


def _wikiextractor(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    if stream.peek(1)[:1] == b"{":  # type: ignore[attr-defined] # WikiExtractor --json
        yield from jsonl(reader, stream)
        return

    def problem(number: int, reason: str | None) -> None:
        reader.problem(f"line {number}", reason) if reason else reader.too_long(f"line {number}")

    for number, page in wikiextractor.pages(stream, reader.limit, problem):
        text = reader.decode(page, f"line {number}")
        if text is not None:
            yield reader.document(wikiextractor.body(text), f"line {number}")


def _mediawiki(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    found = False
    for page in mediawiki.pages(stream, reader.limit):
        found = True
        if page.is_too_long:
            reader.too_long(f"page {page.title}")
        elif page.wikitext is not None:
            yield reader.document(wikitext.plain_text(page.wikitext, page.dropped_namespaces), f"page {page.title}")
    if not found:
        reader.problem("whole file", "XML without a <page>; is it a MediaWiki pages-articles dump?")


def _tar(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    return _members(reader, entries(stream, DAMAGE))


def _zip(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    return _members(reader, zip_entries(file, reader.spend))


def _members(reader: PieceReader, found: Iterator[ArchiveFile]) -> Iterator[Document]:
    """The documents of an archive, whose members are read according to their names."""
    for name, file, reason in found:
        reader.member, reader.last = f"{name}, ", "the start"
        format = format_of(name, reader.settings.format)
        if file is None:
            reader.problem("whole file", reason)
            continue
        if format in (*ARCHIVES, "parquet", "arrow"):
            reader.problem("whole file", f"{format} inside an archive is not read; unpack it")
            continue
        try:
            if not FORMATS[format].needs_file:
                yield from _read_stream(reader, format, decompress(file, name, reader.spend))
            elif len(data := read_at_most(file, reader.limit)) > reader.limit:
                reader.too_long("whole file")
            else:
                yield from FORMATS[format].read(reader, BytesIO(data))
        except (tarfile.TarError, ExpansionError):
            raise
        except DAMAGE as error:  # of this member alone
            reader.damaged(error)
    reader.member = ""


ARCHIVES = ("tar", "zip")
"""Each member is read by its own name; an archive inside another is not read."""
FORMATS: dict[str, InputFormat] = {
    PROSE: InputFormat(document_per_file, shown="no other format by the name"),
    "blank-line": InputFormat(blank_line, is_lines=True),
    "document-per-line": InputFormat(document_per_line, is_lines=True),
    "jsonl": InputFormat(jsonl, r"\.(jsonl|ndjson)$", "*.jsonl or *.ndjson", ("jsonl",), is_lines=True),
    "json": InputFormat(json_file, r"\.json$", "*.json", ("json", "jsonl")),
    "csv": InputFormat(read_csv, r"\.csv$", "*.csv"),
    "tsv": InputFormat(read_tsv, r"\.(tsv|tab)$", "*.tsv"),
    "html": InputFormat(read_html, r"\.(html?|xhtml)$", "*.html", ("html", "xml"), states_encoding=True),
    "epub": InputFormat(read_epub, r"\.epub$", "*.epub", needs_file=True),
    "parquet": InputFormat(read_parquet, r"\.(parquet|pq)$", "*.parquet", needs_file=True),
    "arrow": InputFormat(read_arrow, r"\.(arrow|feather)$", "*.arrow", needs_file=True),
    "mediawiki": InputFormat(_mediawiki, r"\.xml(-p\w+)?$", "*.xml", ("mediawiki", "xml"), states_encoding=True),
    "wikiextractor": InputFormat(
        _wikiextractor, r"(^|[/_])wiki_\d+$", "wiki_00, wiki_01, ...", ("wikiextractor", "jsonl")
    ),
    "tar": InputFormat(_tar, r"\.tar$", "*.tar, an archive: each member is read by its own name"),
    "zip": InputFormat(_zip, r"\.zip$", "*.zip, an archive: each member is read by its own name", needs_file=True),
}
_NAMES = [(name, re.compile(format.name)) for name, format in FORMATS.items() if format.name]
