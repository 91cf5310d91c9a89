"""Byte streams of text files: decompression that notices a cut file, wide encodings, byte order marks, lines."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import zstandard

_BUFFER = 1 << 18
_ARCHIVES = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".tbz": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    ("\ufeff".encode("gb18030"), "gb18030"),
)


def split_name(path: str) -> tuple[str, str | None]:
    """The name in lower case without the compression's suffix, and that suffix: `a.tgz` -> (`a.tar`, `.gz`)."""
    stem, suffix = os.path.splitext(path.lower())
    stem, suffix = os.path.splitext(stem + _ARCHIVES.get(suffix, suffix))
    return (stem, suffix) if suffix in (*_OPENERS, ".zst") else (stem + suffix, None)


def decompress(file: BinaryIO, path: str) -> BinaryIO:
    """`file` as a buffered stream of what `path` promises by its suffix.

    A cut file gives all that stands before the cut and then raises (EOFError, lzma.LZMAError, ...).
    """
    suffix = split_name(path)[1]
    if suffix is None:
        return file if isinstance(file, io.BufferedReader) else cast(BinaryIO, io.BufferedReader(cast(Any, file)))
    if suffix == ".zst":
        return _stream(_zstd(file))
    opened = _OPENERS[suffix](file)
    return _stream(iter(lambda: opened.read1(_BUFFER), b""))


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    # zstandard's own stream reader ends silently where a frame is cut.
    context = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    while data := file.read(1 << 14):  # what it grows to is held at once
        while data:
            frame = frame or context.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("Compressed file ended before the end of its last frame")


def is_wide(encoding: str) -> bool:
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def to_utf8(stream: BinaryIO, encoding: str) -> BinaryIO:
    """A stream in a wide encoding as UTF-8; raises UnicodeDecodeError where it is not in that encoding."""

    def chunks() -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        while data := stream.read(_BUFFER):
            yield decoder.decode(data).encode("utf-8", "surrogatepass")
        decoder.decode(b"", final=True)

    return _stream(chunks())


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _stream(chunks: Iterator[bytes]) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Chunks(chunks), _BUFFER))


def line_start(file: BinaryIO, position: int) -> int:
    """Where the line that holds the byte at `position` begins."""
    while position > 0:
        begin = max(0, position - _BUFFER)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0


_ORDINARY = re.compile(r"[，。、：；！？“”《》\u3000\s]")


def encoding_that_fits(data: bytes) -> str | None:
    """The encoding in which `data` reads as ordinary Chinese (or, nearly all ASCII, as a Western text)."""
    sample = data[: 1 << 14]
    best, most = None, 0.6
    wide = ("utf-16-le", "utf-16-be") if b"\0" in sample else ()
    for name in ("utf-8", "gb18030", "big5", *wide):
        try:
            text = codecs.getincrementaldecoder(name)().decode(sample)
        except UnicodeDecodeError:
            continue
        characters = [character for character in text if not character.isascii()]
        share = sum(map(_common, characters)) / max(1, len(characters))
        if share > most:
            best, most = name, share
    if best is None and sum(byte > 127 for byte in sample) < 0.15 * len(sample):
        best = "cp1252"
    return best


def _common(character: str) -> bool:
    """Among the frequent characters, which both national standards put in their first level."""
    gb, big5 = character.encode("gb2312", "ignore"), character.encode("big5", "ignore")
    first_level = b"\xb0" <= gb[:1] <= b"\xd7" or b"\xa4" <= big5[:1] <= b"\xc6"
    return first_level or _ORDINARY.match(character) is not None
