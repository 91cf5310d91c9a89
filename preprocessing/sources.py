"""Raw text in: finding files, cutting them into part tasks, and streaming documents out of them.

Bytes are split at "\\n" alone (JSON strings may hold U+2028) and decoded a line or a document at a time, so a bad byte
costs one line or document. Compressed and archived files are streamed; nothing is unpacked to disk.
"""

import codecs
import glob
import json
import logging
import lzma
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, cast
from xml.etree.ElementTree import ParseError

import pyarrow
import pyarrow.parquet
import zstandard

from preprocessing import mediawiki, wikiextractor
from preprocessing.config import InputSettings
from preprocessing.errors import UserError
from preprocessing.streams import BOMS, decompress, encoding_that_fits, is_wide, line_start, split_name, to_utf8

log = logging.getLogger("reread")


class Document(NamedTuple):
    text: str
    path: str
    position: str
    """`line 12`, `row 3`, `page 柏林`, `whole file`; in an archive the member's name stands before it."""


class Problem(NamedTuple):
    """Something that could not be read."""

    path: str
    position: str
    reason: str


class Source(NamedTuple):
    path: str
    format: str
    bytes: int
    """Size as stored."""


@dataclass(frozen=True)
class Piece:
    """A file, or the byte range [start, end) of an uncompressed line-based file."""

    path: str
    format: str
    start: int = 0
    end: int | None = None


_LINE_BASED = ("blank-line", "document-per-line", "jsonl")
_BY_NAME = (
    ("tar", re.compile(r"\.tar$"), "*.tar, an archive: each member is read by its own name"),
    ("jsonl", re.compile(r"\.(jsonl|ndjson)$"), "*.jsonl or *.ndjson"),
    ("parquet", re.compile(r"\.(parquet|pq)$"), "*.parquet"),
    ("mediawiki", re.compile(r"\.xml(-p\w+)?$"), "*.xml"),
    ("wikiextractor", re.compile(r"(^|[/_])wiki_\d+$"), "wiki_00, wiki_01, ..."),
)
_DAMAGE = (
    EOFError,
    OSError,
    ParseError,
    UnicodeDecodeError,
    lzma.LZMAError,
    pyarrow.ArrowException,
    tarfile.TarError,
    zlib.error,
    zstandard.ZstdError,
)


def find_files(settings: InputSettings) -> list[Source]:
    """Every input file once, in the order of `paths` and `validation_paths`, sorted within each, with its format.

    Folders are walked and hidden files in them skipped. Raises `UserError` for a path that matches nothing and for an
    unknown encoding.
    """
    try:
        codecs.lookup(settings.encoding)
    except LookupError:
        raise UserError(f"input.encoding: unknown encoding `{settings.encoding}`; try utf-8, gb18030 or big5") from None
    patterns = [*settings.paths, *settings.validation_paths]
    paths = list(dict.fromkeys(path for pattern in patterns for path in _expand(pattern)))
    sources = []
    for path in paths:
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); mend it or take it out of `paths`") from None
        sources.append(Source(path, _format(path, settings.format), size))
    if settings.format == "auto":
        reasons = {name: f"by the name {reason}" for name, _, reason in _BY_NAME}
        for name, count in Counter(source.format for source in sources).items():
            log.info("input: %d files read as %s (%s)", count, name, reasons.get(name, "no other format by the name"))
    return sources


def _expand(pattern: str) -> list[str]:
    pattern = os.path.expanduser(pattern)
    matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [file for path in matches for file in (_walk(path) if os.path.isdir(path) else [path])]
    if not files:
        raise UserError(f"input.paths: `{pattern}` matches no file; check the path (or glob) and the folder you run in")
    return files


def _walk(folder: str) -> list[str]:
    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror}); mend it or take it out of `paths`")

    files, seen = [], set()
    for here, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(here)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(".")]
        if real not in seen:  # a link back up would never end
            files += [os.path.join(here, name) for name in names if not name.startswith(".")]
        seen.add(real)
    return sorted(files)


def _format(path: str, stated: str) -> str:
    name, _ = split_name(path)
    if stated != "auto":
        return "tar" if name.endswith(".tar") else stated
    return next((known for known, pattern, _ in _BY_NAME if pattern.search(name)), "document-per-file")


def plan_parts(files: list[Source], part_bytes: int) -> list[list[Piece]]:
    """Part tasks in source order: small files together, large uncompressed line-based files cut into byte ranges.

    A function of names, formats, sizes and `part_bytes` alone.
    """
    parts: list[list[Piece]] = []
    room = -1
    for file in files:
        cuts = 1
        if file.format in _LINE_BASED and split_name(file.path)[1] is None:
            cuts = max(1, -(-file.bytes // part_bytes))
        if cuts > 1:
            bounds = [file.bytes * index // cuts for index in range(cuts)]
            ends = [*bounds[1:], None]
            parts += [[Piece(file.path, file.format, *bound)] for bound in zip(bounds, ends, strict=True)]
            room = -1
            continue
        if file.bytes > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(Piece(file.path, file.format))
        room -= file.bytes
    return parts


def read(piece: Piece, settings: InputSettings, report: Callable[[Problem], None]) -> Iterator[Document]:
    """The documents of `piece`, streamed; a document belongs to the byte range in which it begins.

    What cannot be read goes to `report` and the rest is still read, or raises `UserError` where
    `bad_input: refuse`. An error of the system (permission, disk) always raises: it may be gone tomorrow, and the
    corpus would be another one.
    """
    reader = _Reader(piece, settings, report)
    try:
        with open(piece.path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                reader.problem("whole file", "empty file")
            elif piece.format == "parquet":
                yield from reader.parquet(file)
            else:
                yield from reader.documents(piece.format, decompress(file, piece.path))
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise UserError(f"{piece.path}: cannot be read ({error.strerror}); mend it and start again") from None
        reader.problem(f"after {reader.last}", f"damaged or cut short ({str(error) or type(error).__name__})")


class _Reader:
    def __init__(self, piece: Piece, settings: InputSettings, report: Callable[[Problem], None]) -> None:
        self.piece, self.settings, self.report = piece, settings, report
        self.encoding = settings.encoding
        self.member = ""
        self.last = "the start"
        self.fits: str | None = None
        self.guesses = 0

    def problem(self, position: str, reason: str) -> None:
        if self.settings.bad_input == "refuse":
            way_out = "mend it, or set `input.bad_input=report` to skip it"
            raise UserError(f"{self.piece.path}:{self.member}{position}: {reason}; {way_out}")
        self.report(Problem(self.piece.path, self.member + position, reason))

    def document(self, text: str, position: str) -> Document:
        self.last = self.member + position
        return Document(text, self.piece.path, self.last)

    def decode(self, data: bytes, position: str) -> str | None:
        """`data` as text; None, after a problem is told, where it is not in the encoding."""
        try:
            return data.decode(self.encoding).removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            if not self.fits and self.guesses < 10:  # guessing at every line of a large file would take days
                self.fits, self.guesses = encoding_that_fits(data), self.guesses + 1
            hint = f"; `input.encoding={self.fits}` would fit" if self.fits and self.fits != self.encoding else ""
            line = data.count(b"\n", 0, error.start) + 1
            where = f"byte {error.start}" + (f", line {line}" if line > 1 else "")
            self.problem(position, f"not {self.encoding} ({where} of it){hint}")
            return None

    def documents(self, format: str, stream: BinaryIO) -> Iterator[Document]:
        if format == "tar":
            yield from self.tar(stream)
        elif format == "mediawiki":
            yield from self.mediawiki(stream)
        else:
            head = stream.peek(4)[:4]  # type: ignore[attr-defined]
            marked = next((name for mark, name in BOMS if head.startswith(mark)), None)
            self.encoding = marked or self.settings.encoding
            if is_wide(self.encoding):  # "\n" is no single byte there: read whole, by the piece that holds byte 0
                if self.piece.start > 0:
                    return
                stream, self.encoding = to_utf8(stream, self.encoding), "utf-8"
                self.piece = Piece(self.piece.path, self.piece.format)
            self.wide_space = "\u3000".encode(self.encoding, "ignore")
            yield from getattr(self, format.replace("-", "_"))(stream)

    def lines(self, stream: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        """Byte offset, number and bytes of each line, from the one that holds byte `start - 1` on."""
        offset = 0
        if self.piece.start > 0:
            offset = line_start(stream, self.piece.start - 1)
            stream.seek(offset)
        for number, line in enumerate(stream, 1):
            yield offset, number, line
            offset += len(line)

    def place(self, offset: int, number: int) -> str:
        # Counting the lines before a range would mean reading them.
        return f"byte {offset}" if self.piece.start else f"line {number}"

    def own_lines(self, stream: BinaryIO) -> Iterator[tuple[str, str]]:
        """Position and text of each non-blank line that begins in the piece."""
        for offset, number, line in self.lines(stream):
            if self.piece.end is not None and offset >= self.piece.end:
                return
            if offset >= self.piece.start and line.strip():
                position = self.place(offset, number)
                text = self.decode(line, position)
                if text is not None:
                    yield position, text

    def document_per_file(self, stream: BinaryIO) -> Iterator[Document]:
        data = stream.read()
        if not data:
            self.problem("whole file", "empty file")
            return
        text = self.decode(data, "whole file")
        if text is not None:
            yield self.document(text, "whole file")

    def document_per_line(self, stream: BinaryIO) -> Iterator[Document]:
        for position, text in self.own_lines(stream):
            yield self.document(text, position)

    def jsonl(self, stream: BinaryIO) -> Iterator[Document]:
        field = self.settings.text_field
        for position, line in self.own_lines(stream):
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                self.problem(position, f"not JSON ({error.msg}, character {error.pos + 1} of it)")
                continue
            except (ValueError, RecursionError) as error:  # a number of too many digits, too many brackets
                self.problem(position, f"not JSON ({error})")
                continue
            if not isinstance(values, dict):
                self.problem(position, f"a JSON {type(values).__name__}, not an object with the field `{field}`")
            elif field not in values:
                self.problem(
                    position,
                    f"no field `{field}`; it has {', '.join(values) or 'none'} (`input.text_field` says which)",
                )
            elif not isinstance(values[field], str):
                self.problem(position, f"field `{field}` holds {type(values[field]).__name__}, not text")
            else:
                yield self.document(values[field], position)

    def blank_line(self, stream: BinaryIO) -> Iterator[Document]:
        start, end = self.piece.start, self.piece.end
        parts: list[bytes] = []  # the lines of the document being read, if it is ours
        after_blank, position = start == 0, ""
        for offset, number, line in self.lines(stream):
            if end is not None and offset >= end and not parts:
                return
            if self._blank(line):
                yield from self._joined(parts, position)
                parts, after_blank = [], True
            elif parts:
                parts.append(line)
            elif after_blank and offset >= start:
                parts, position = [line], self.place(offset, number)
            else:  # a document that began before the piece
                after_blank = False
        yield from self._joined(parts, position)

    def _blank(self, line: bytes) -> bool:
        visible = line.strip()
        # Ideographic spaces are several bytes long, and a line of them is blank all the same.
        short = len(visible) < 64 and visible.startswith(self.wide_space)
        return not visible or (short and not visible.decode(self.encoding, "replace").strip())

    def _joined(self, parts: list[bytes], position: str) -> Iterator[Document]:
        text = self.decode(b"".join(parts), position) if parts else None
        if text is not None:
            yield self.document(text, position)

    def wikiextractor(self, stream: BinaryIO) -> Iterator[Document]:
        if stream.peek(1)[:1] == b"{":  # type: ignore[attr-defined] # WikiExtractor --json
            yield from self.jsonl(stream)
            return
        for number, page in wikiextractor.pages(stream, lambda number, reason: self.problem(f"line {number}", reason)):
            text = self.decode(page, f"line {number}")
            if text is not None:
                yield self.document(wikiextractor.body(text), f"line {number}")

    def mediawiki(self, stream: BinaryIO) -> Iterator[Document]:
        found = False
        for title, namespaces, wikitext in mediawiki.pages(stream):
            found = True
            if wikitext is not None:
                yield self.document(mediawiki.plain_text(wikitext, namespaces), f"page {title}")
        if not found:
            self.problem("whole file", "XML without a <page>; is it a MediaWiki pages-articles dump?")

    def parquet(self, file: BinaryIO) -> Iterator[Document]:
        field = self.settings.text_field
        table = pyarrow.parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if field not in names:
            self.problem(
                "whole file", f"no column `{field}`; it has {', '.join(names)} (`input.text_field` says which)"
            )
            return
        row = 0
        for group in range(table.num_row_groups):
            following = row + table.metadata.row_group(group).num_rows
            try:
                for batch in table.iter_batches(1024, row_groups=[group], columns=[field], use_threads=False):
                    for value in batch.column(0):
                        row += 1
                        yield from self._cell(value, f"row {row}")
            except (OSError, pyarrow.ArrowException) as error:  # the other row groups may be whole
                self.problem(f"after row {row}", f"damaged row group {group} ({error})")
            row = following

    def _cell(self, value: pyarrow.Scalar, position: str) -> Iterator[Document]:
        try:
            text = value.as_py()
        except UnicodeDecodeError as error:  # pyarrow does not look into strings when it reads them
            self.problem(position, f"not utf-8 (byte {error.start} of it)")
            return
        if isinstance(text, str):
            yield self.document(text, position)
        else:
            self.problem(position, f"column `{self.settings.text_field}` holds {type(text).__name__}, not text")

    def tar(self, stream: BinaryIO) -> Iterator[Document]:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # tarfile would remember every one
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or any(part.startswith(".") and part != "." for part in member.name.split("/")):
                    continue
                self.member = f"{member.name}, "
                format = _format(member.name, self.settings.format)
                if format in ("tar", "parquet"):
                    self.problem("whole file", f"{format} inside an archive is not read; unpack it")
                else:
                    yield from self.documents(format, decompress(cast(BinaryIO, file), member.name))
        self.member = ""


class _Member(tarfile.TarInfo):
    """Tells a cut archive from a finished one: tarfile takes a damaged header, after the first, for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(tarfile_)  # type: ignore[return-value]
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}, where a member or the end of the archive should be") from None
