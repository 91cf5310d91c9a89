"""Raw text in: streaming documents out of the files of a part.

Bytes are split at "\\n" alone (JSON strings may hold U+2028) and decoded a line or a document at a time, so a bad byte
costs one line or document. Compressed and archived files are streamed; nothing is unpacked to disk. Whatever a file
contains, memory is bounded by a small multiple of `input.maximum_document_bytes`, and the expanded text by
`input.maximum_expansion`.
"""

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from preprocessing.config import InputSettings
from preprocessing.errors import UserError
from preprocessing.input import archives, mediawiki, wikiextractor, wikitext
from preprocessing.input.piece import DAMAGE, Document, PieceReader, Problem
from preprocessing.input.sources import Piece, format_of
from preprocessing.input.streams import BOMS, ExpansionError, decompress, is_wide, to_utf8
from preprocessing.input.text_files import blank_line, document_per_file, document_per_line, jsonl


def read(piece: Piece, settings: InputSettings, report: Callable[[Problem], None]) -> Iterator[Document]:
    """The documents of `piece`, streamed; a document belongs to the byte range in which it begins.

    What cannot be read goes to `report`, and the rest is still read, or it raises `UserError` if `bad_input` is
    `refuse`. An error of the system (permission, disk) and a file that changes always raise `UserError`, since the
    next run would make a different corpus.
    """
    try:
        with open(piece.path, "rb", opener=_open) as file:
            before = os.fstat(file.fileno())

            def check() -> None:
                _check_unchanged(piece, before, os.fstat(file.fileno()))

            check()
            reader = PieceReader(piece, settings, report, check)
            try:
                if before.st_size == 0:
                    reader.problem("whole file", "empty file")
                else:
                    yield from _file(reader, file, before.st_size)
            except DAMAGE as error:
                reader.damaged(error)
            check()
    except OSError as error:
        raise UserError(f"{piece.path}: cannot be read ({error.strerror}); repair it and start again") from None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # if it is a pipe by now, this does not wait for a writer


def _check_unchanged(piece: Piece, before: os.stat_result, now: os.stat_result) -> None:
    size = before.st_size if piece.bytes is None else piece.bytes
    changed = before.st_mtime_ns if piece.changed is None else piece.changed
    if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (size, changed):
        what = f"from {size:,} to {now.st_size:,} bytes" if now.st_size != size else "though not in size"
        raise UserError(
            f"{piece.path}: changed since the work began ({what}); once nothing writes to it, begin again in another "
            "output folder, or delete this one"
        )


def _file(reader: PieceReader, file: BinaryIO, size: int) -> Iterator[Document]:
    limit, factor = reader.limit, reader.settings.maximum_expansion
    left = most = limit + factor * size

    def spend(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise ExpansionError(
                f"expands to more than {most:,} bytes, {factor} times its size and one document of the greatest "
                "length: see `input.maximum_expansion`"
            )

    if reader.piece.format == "parquet":
        from preprocessing.input.parquet import read_parquet

        yield from read_parquet(reader, file, spend)
    elif reader.piece.format == "tar":
        yield from _tar(reader, decompress(file, reader.piece.path, spend), spend)
    else:
        yield from _documents(reader, reader.piece.format, decompress(file, reader.piece.path, spend))


def _documents(reader: PieceReader, format: str, stream: BinaryIO) -> Iterator[Document]:
    if format != "mediawiki":  # XML states its own encoding
        head = stream.peek(4)[:4]  # type: ignore[attr-defined]
        marked = next((name for mark, name in BOMS if head.startswith(mark)), None)
        reader.encoding = reader.stated = marked or reader.settings.encoding
        if is_wide(reader.encoding):  # "\n" has several bytes there: the file is read whole, by the piece with byte 0
            if reader.piece.start > 0:
                return
            stream, reader.encoding = to_utf8(stream, reader.encoding), "utf-8"
            reader.piece = Piece(reader.piece.path, reader.piece.format)
    yield from _FORMATS[format](reader, stream)


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


def _tar(reader: PieceReader, stream: BinaryIO, spend: Callable[[int], None]) -> Iterator[Document]:
    for name, file in archives.entries(stream, DAMAGE):
        reader.member, reader.last = f"{name}, ", "the start"
        format = format_of(name, reader.settings.format)
        if file is None:
            reader.problem("whole file", "a sparse file inside an archive is not read; unpack it")
            continue
        if format in ("tar", "parquet"):
            reader.problem("whole file", f"{format} inside an archive is not read; unpack it")
            continue
        try:
            yield from _documents(reader, format, decompress(file, name, spend))
        except (tarfile.TarError, ExpansionError):
            raise
        except DAMAGE as error:  # of this member alone
            reader.damaged(error)
    reader.member = ""


_FORMATS: dict[str, Callable[[PieceReader, BinaryIO], Iterator[Document]]] = {
    "document-per-file": document_per_file,
    "blank-line": blank_line,
    "document-per-line": document_per_line,
    "jsonl": jsonl,
    "wikiextractor": _wikiextractor,
    "mediawiki": _mediawiki,
}
