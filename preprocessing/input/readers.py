"""Raw text in: streaming documents out of the files of a part.

Bytes are split at "\\n" alone (JSON strings may hold U+2028) and decoded a line or a document at a time, so a bad byte
costs one line or document. Compressed and archived files are streamed; nothing is unpacked to disk. No file can make
more be held than `input.maximum_document_bytes`, a few times over, nor come out of it more than
`input.maximum_expansion` says.
"""

import errno
import json
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple
from xml.parsers.expat import ExpatError

import pyarrow
import pyarrow.parquet
import zstandard

from preprocessing.config import InputSettings
from preprocessing.errors import UserError
from preprocessing.input import archives, mediawiki, wikiextractor, wikitext
from preprocessing.input.sources import Piece, format_of
from preprocessing.input.streams import (
    BOMS,
    ExpansionError,
    decompress,
    encoding_that_fits,
    is_wide,
    line_start,
    lines,
    read_at_most,
    skip_line,
    to_utf8,
)


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


_DAMAGE = (
    EOFError,
    ExpansionError,
    ExpatError,
    OSError,
    UnicodeError,
    lzma.LZMAError,
    pyarrow.ArrowException,
    tarfile.TarError,
    zlib.error,
    zstandard.ZstdError,
)
_OF_CONTENT = (None, errno.EINVAL, errno.EOVERFLOW)
"""What an OSError's number says where a library, not the system, raised it, or went where a damaged file sent it."""
_LONGEST_BLANK = 1 << 16
_BATCH_BYTES = 1 << 24


def read(piece: Piece, settings: InputSettings, report: Callable[[Problem], None]) -> Iterator[Document]:
    """The documents of `piece`, streamed; a document belongs to the byte range in which it begins.

    What cannot be read goes to `report` and the rest is still read, or raises `UserError` where
    `bad_input: refuse`. An error of the system (permission, disk) and a file that changes always raise: the corpus
    would be another one tomorrow.
    """
    try:
        with open(piece.path, "rb", opener=_open) as file:
            before = os.fstat(file.fileno())

            def check() -> None:
                _check_unchanged(piece, before, os.fstat(file.fileno()))

            check()
            reader = _Reader(piece, settings, report, check)
            try:
                if before.st_size == 0:
                    reader.problem("whole file", "empty file")
                else:
                    yield from reader.file(file, before.st_size)
            except _DAMAGE as error:
                reader.damaged(error)
            check()
    except OSError as error:
        raise UserError(f"{piece.path}: cannot be read ({error.strerror}); repair it and start again") from None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # what has become a pipe since would wait for its writer


def _check_unchanged(piece: Piece, before: os.stat_result, now: os.stat_result) -> None:
    size = before.st_size if piece.bytes is None else piece.bytes
    changed = before.st_mtime_ns if piece.changed is None else piece.changed
    if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (size, changed):
        what = f"from {size:,} to {now.st_size:,} bytes" if now.st_size != size else "though not in size"
        raise UserError(
            f"{piece.path}: changed since the work began ({what}); once nothing writes to it, begin again in another "
            "output folder, or delete this one"
        )


class _Reader:
    def __init__(
        self,
        piece: Piece,
        settings: InputSettings,
        report: Callable[[Problem], None],
        check_unchanged: Callable[[], None],
    ) -> None:
        self.piece, self.settings, self.report = piece, settings, report
        self.check_unchanged = check_unchanged
        self.limit = settings.maximum_document_bytes
        self.encoding = self.stated = settings.encoding
        self.member = ""
        self.last = "the start"
        self.fits: str | None = None
        self.guesses = 0

    def problem(self, position: str, reason: str) -> None:
        if self.settings.bad_input == "refuse":
            self.check_unchanged()  # a file that is being written looks damaged
            way_out = "repair it, or set `input.bad_input=report` to skip it"
            raise UserError(f"{self.piece.path}:{self.member}{position}: {reason}; {way_out}")
        self.report(Problem(self.piece.path, self.member + position, reason))

    def too_long(self, position: str) -> None:
        self.problem(
            position, f"longer than {self.limit:,} bytes (`input.maximum_document_bytes`); is it one document?"
        )

    def damaged(self, error: Exception, what: str = "damaged or cut short") -> None:
        """Report one of `_DAMAGE` as a problem; an error of the system is raised again."""
        if isinstance(error, OSError) and error.errno not in _OF_CONTENT:
            raise error
        self.problem(f"after {self.last}", f"{what} ({str(error) or type(error).__name__})")

    def document(self, text: str, position: str) -> Document:
        self.last = position
        return Document(text, self.piece.path, self.member + position)

    def decode(self, data: bytes | bytearray, position: str) -> str | None:
        """`data` as text; None, after a problem is told, where it is not in the encoding."""
        try:
            return data.decode(self.encoding).removeprefix("\ufeff")
        except UnicodeError as error:
            if not self.fits and self.guesses < 10:  # guessing at every line of a large file would take days
                self.fits, self.guesses = encoding_that_fits(data), self.guesses + 1
            hint = f"; `input.encoding={self.fits}` would fit" if self.fits and self.fits != self.encoding else ""
            where = str(error)
            if isinstance(error, UnicodeDecodeError):
                line = data.count(b"\n", 0, error.start) + 1
                where = f"byte {error.start}" + (f", line {line}" if line > 1 else "")
            self.problem(position, f"not {self.stated} ({where} of it){hint}")
            return None

    def file(self, file: BinaryIO, size: int) -> Iterator[Document]:
        left = most = self.limit + self.settings.maximum_expansion * size

        def spend(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise ExpansionError(
                    f"expands to more than {most:,} bytes, {self.settings.maximum_expansion} times its size and one "
                    "document of the greatest length: see `input.maximum_expansion`"
                )

        if self.piece.format == "parquet":
            yield from self.parquet(file, spend)
        elif self.piece.format == "tar":
            yield from self.tar(decompress(file, self.piece.path, spend), spend)
        else:
            yield from self.documents(self.piece.format, decompress(file, self.piece.path, spend))

    def documents(self, format: str, stream: BinaryIO) -> Iterator[Document]:
        if format == "mediawiki":
            yield from self.mediawiki(stream)
            return
        head = stream.peek(4)[:4]  # type: ignore[attr-defined]
        marked = next((name for mark, name in BOMS if head.startswith(mark)), None)
        self.encoding = self.stated = marked or self.settings.encoding
        if is_wide(self.encoding):  # "\n" is no single byte there: read whole, by the piece that holds byte 0
            if self.piece.start > 0:
                return
            stream, self.encoding = to_utf8(stream, self.encoding), "utf-8"
            self.piece = Piece(self.piece.path, self.piece.format)
        self.wide_space = "\u3000".encode(self.encoding, "ignore")
        yield from getattr(self, format.replace("-", "_"))(stream)

    def lines(self, stream: BinaryIO, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Byte offset, number and bytes (None: too long) of each line of `stream`, which stands at `offset`."""
        if self.piece.end is not None and offset >= self.piece.end:
            return
        for number, (line, size) in enumerate(lines(stream, self.limit), 1):
            yield offset, number, line if size <= self.limit else None
            offset += size

    def next_line(self, stream: BinaryIO) -> int:
        """Where the first line that begins in the piece does, or the end of the piece."""
        before, end = self.piece.start - 1, self.piece.end
        stream.seek(before)
        return before + skip_line(stream, at_least=None if end is None else end - before)

    def place(self, offset: int, number: int) -> str:
        # Counting the lines before a range would mean reading them.
        return f"byte {offset}" if self.piece.start else f"line {number}"

    def own_lines(self, stream: BinaryIO) -> Iterator[tuple[str, str]]:
        """Position and text of each non-blank line that begins in the piece."""
        for offset, number, line in self.lines(stream, self.next_line(stream) if self.piece.start else 0):
            if self.piece.end is not None and offset >= self.piece.end:
                return
            position = self.place(offset, number)
            if line is None:
                self.too_long(position)
            elif line.strip():
                text = self.decode(line, position)
                if text is not None:
                    yield position, text

    def document_per_file(self, stream: BinaryIO) -> Iterator[Document]:
        data = read_at_most(stream, self.limit)
        if not data:
            self.problem("whole file", "empty file")
        elif len(data) > self.limit:
            self.too_long("whole file")
        else:
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
                self.problem(position, f"no field `{field}`; it has {_listed(values)} (`input.text_field` says which)")
            elif not isinstance(values[field], str):
                self.problem(position, f"field `{field}` holds {type(values[field]).__name__}, not text")
            else:
                yield self.document(values[field], position)

    def blank_line(self, stream: BinaryIO) -> Iterator[Document]:
        start, end = self.piece.start, self.piece.end
        offset = 0
        if start > 0:
            found = line_start(stream, start - 1, _LONGEST_BLANK)
            if found is not None:
                stream.seek(found)
            offset = self.next_line(stream) if found is None else found  # None: a line too long to be blank
        after_blank = start == 0
        parts: list[bytes] = []  # the lines of the document being read, if it is ours
        position, room = "", self.limit
        for at, number, line in self.lines(stream, offset):
            if end is not None and at >= end and not parts:
                return
            if line is not None and self._blank(line):
                yield from self._joined(parts, position)
                parts, after_blank = [], True
                continue
            if after_blank and at >= start:
                position, room = self.place(at, number), self.limit
            elif not parts:  # a document that began before the piece, or is too long
                after_blank = False
                continue
            after_blank = False
            room -= self.limit + 1 if line is None else len(line)
            if line is None or room < 0:
                self.too_long(position)
                parts = []
            else:
                parts.append(line)
        yield from self._joined(parts, position)

    def _blank(self, line: bytes) -> bool:
        if len(line) > _LONGEST_BLANK:
            return False
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

        def problem(number: int, reason: str | None) -> None:
            self.problem(f"line {number}", reason) if reason else self.too_long(f"line {number}")

        for number, page in wikiextractor.pages(stream, self.limit, problem):
            text = self.decode(page, f"line {number}")
            if text is not None:
                yield self.document(wikiextractor.body(text), f"line {number}")

    def mediawiki(self, stream: BinaryIO) -> Iterator[Document]:
        found = False
        for page in mediawiki.pages(stream, self.limit):
            found = True
            if page.is_too_long:
                self.too_long(f"page {page.title}")
            elif page.wikitext is not None:
                yield self.document(wikitext.plain_text(page.wikitext, page.dropped_namespaces), f"page {page.title}")
        if not found:
            self.problem("whole file", "XML without a <page>; is it a MediaWiki pages-articles dump?")

    def parquet(self, file: BinaryIO, spend: Callable[[int], None]) -> Iterator[Document]:
        field = self.settings.text_field
        table = pyarrow.parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if field not in names:
            self.problem("whole file", f"no column `{field}`; it has {_listed(names)} (`input.text_field` says which)")
            return
        if field in (table.schema.column(index).path for index in range(len(table.schema))):  # no list, no struct
            # A value that stands in a million rows is held once.
            table = pyarrow.parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=[field])
        row = 0
        for number in range(table.num_row_groups):
            group = table.metadata.row_group(number)
            following = row + group.num_rows
            rows = _BATCH_BYTES * max(1, group.num_rows) // max(1, group.total_byte_size)
            try:
                batches = table.iter_batches(
                    min(max(1, rows), 1024), row_groups=[number], columns=[field], use_threads=False
                )
                for batch in batches:
                    for value in batch.column(0):
                        row += 1
                        for document in self._cell(value, f"row {row}"):
                            spend(len(document.text))
                            yield document
            except (OSError, pyarrow.ArrowException) as error:  # the other row groups may be whole
                self.last = f"row {row}"
                self.damaged(error, f"damaged row group {number}")
            row = following

    def _cell(self, value: pyarrow.Scalar, position: str) -> Iterator[Document]:
        try:
            text = value.as_py()
        except UnicodeDecodeError as error:  # pyarrow does not look into strings when it reads them
            self.problem(position, f"not utf-8 (byte {error.start} of it)")
            return
        if not isinstance(text, str):
            self.problem(position, f"column `{self.settings.text_field}` holds {type(text).__name__}, not text")
        elif len(text) > self.limit // 4 and len(text.encode()) > self.limit:
            self.too_long(position)
        else:
            yield self.document(text, position)

    def tar(self, stream: BinaryIO, spend: Callable[[int], None]) -> Iterator[Document]:
        for name, file in archives.entries(stream, _DAMAGE):
            self.member, self.last = f"{name}, ", "the start"
            format = format_of(name, self.settings.format)
            if file is None:
                self.problem("whole file", "a sparse file inside an archive is not read; unpack it")
                continue
            if format in ("tar", "parquet"):
                self.problem("whole file", f"{format} inside an archive is not read; unpack it")
                continue
            try:
                yield from self.documents(format, decompress(file, name, spend))
            except (tarfile.TarError, ExpansionError):
                raise
            except _DAMAGE as error:  # of this member
                self.damaged(error)
        self.member = ""


def _listed(names: Iterable[str]) -> str:
    """The first of `names`."""
    known = [name if len(name) < 40 else name[:40] + "..." for name, _ in zip(names, range(9), strict=False)]
    return ", ".join([*known[:8], "..."] if len(known) > 8 else known) or "none"
