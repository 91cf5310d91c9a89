"""Byte streams of text files: decompression that detects truncated files, wide encodings, byte order marks, and lines.

Whatever a file contains, nothing here takes more than a few megabytes besides the line or document that it returns.
"""

import bz2
import codecs
import gzip
import io
import lzma
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import zstandard

BUFFER = 1 << 17
"""Bytes that `peek` shows at the beginning of a stream, by which format and encoding are recognised."""
_FRAME_STEP = 1 << 14  # bytes; data after the end of a frame are copied
_ZSTD_STEP = 1 << 10  # bytes, whose expansion is held in memory at once: up to 128 KiB for each 4 bytes
_ZSTD_WINDOW, _XZ_MEMORY = 1 << 31, 1 << 30  # enough for `zstd --long=31`; ordinary files need 8 MiB, and xz 65 MiB
_ARCHIVES = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".tbz": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    ("\ufeff".encode("gb18030"), "gb18030"),
)


class ExpansionError(Exception):
    """A compressed file expands to more bytes than is permitted."""


def split_name(path: str) -> tuple[str, str | None]:
    """The lower-case name without the suffix of its compression, and that suffix: `a.tgz` -> (`a.tar`, `.gz`)."""
    stem, suffix = os.path.splitext(path.lower())
    stem, suffix = os.path.splitext(stem + _ARCHIVES.get(suffix, suffix))
    return (stem, suffix) if suffix in SUFFIXES else (stem + suffix, None)


def decompress(file: BinaryIO, path: str, spend: Callable[[int], None]) -> BinaryIO:
    """`file` as a buffered stream, decompressed according to the suffix of `path`.

    A truncated file yields all data before the cut and then raises an error (EOFError, lzma.LZMAError, ...). `spend` is
    called with the number of decompressed bytes and may raise an error.
    """
    suffix = split_name(path)[1]
    if suffix is None:  # the readers of an archive's members are subclasses with small buffers
        return file if type(file) is io.BufferedReader else cast(BinaryIO, io.BufferedReader(cast(Any, file), BUFFER))
    chunks = {".gz": _gzip, ".bz2": _bz2, ".xz": _xz, ".zst": _zstd}[suffix](file)

    return metered(chunks, spend)


def metered(chunks: Iterator[bytes], spend: Callable[[int], None]) -> BinaryIO:
    """A stream of `chunks`; `spend` is called with the size of each."""

    def counted() -> Iterator[bytes]:
        for chunk in chunks:
            spend(len(chunk))
            yield chunk

    return _stream(counted())


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    opened = gzip.GzipFile(fileobj=file)
    return iter(lambda: opened.read1(BUFFER), b"")


def _bz2(file: BinaryIO) -> Iterator[bytes]:
    return _frames(file, bz2.BZ2Decompressor)


def _xz(file: BinaryIO) -> Iterator[bytes]:
    return _frames(file, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY))


def _frames(file: BinaryIO, begin: Callable[[], Any]) -> Iterator[bytes]:
    # The modules' own readers have no memory limit, and ignore damaged data after a frame.
    data = file.read(_FRAME_STEP)
    while data:
        frame = begin()
        while not frame.eof:
            if frame.needs_input and not data:
                data = file.read(_FRAME_STEP)
                if not data:
                    raise EOFError("Compressed file ended before the end of its last frame")
            yield frame.decompress(data, BUFFER)
            data = b""
        data = frame.unused_data
        while not data.lstrip(b"\0") and (more := file.read(_FRAME_STEP)):  # padding
            data = more
        data = data.lstrip(b"\0")


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    # zstandard's own stream reader ends without an error if a frame is cut.
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame = None
    while data := file.read(_ZSTD_STEP):
        while data:
            frame = frame or context.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("Compressed file ended before the end of its last frame")


def is_wide(encoding: str) -> bool:
    """Whether a line end is not the single byte 10, as in UTF-16 and EBCDIC."""
    return "\n".encode(encoding) != b"\n"


def to_utf8(stream: BinaryIO, encoding: str) -> BinaryIO:
    """A stream in a wide encoding, recoded as UTF-8; raises UnicodeError for bytes that are not in that encoding.

    Half a surrogate pair is passed on, so that only its line is bad input.
    """

    def chunks() -> Iterator[bytes]:
        errors = "surrogatepass" if codecs.lookup(encoding).name.startswith("utf") else "strict"
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        while data := stream.read(BUFFER):
            yield decoder.decode(data).encode("utf-8", "surrogatepass")
        decoder.decode(b"", final=True)

    return _stream(chunks())


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill all of `buffer` if possible, so that no byte order mark is cut; errors are raised after all data."""
        filled = 0
        while filled < len(buffer):
            if not self._rest and not self._advance():
                break
            count = min(len(buffer) - filled, len(self._rest))
            buffer[filled : filled + count], self._rest = self._rest[:count], self._rest[count:]
            filled += count
        if not filled and self._error is not None:
            raise self._error
        return filled

    def _advance(self) -> bool:
        if self._error is not None:  # a generator that has raised an error looks like one that has ended
            return False
        try:
            self._rest = memoryview(next(self._chunks))
        except StopIteration:
            return False
        except Exception as error:
            self._error = error
            return False
        return True


def _stream(chunks: Iterator[bytes]) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Chunks(chunks), BUFFER))


def read_at_most(stream: BinaryIO, limit: int) -> bytearray:
    """All bytes of `stream`, but at most the first `limit` + 1."""
    data = bytearray()
    while len(data) <= limit and (chunk := stream.read(min(BUFFER, limit + 1 - len(data)))):
        data += chunk
    return data


def lines(stream: BinaryIO, limit: int) -> Iterator[tuple[bytes, int]]:
    """Each line with its length in bytes; a line longer than `limit` is cut to its first `limit` + 1 bytes."""
    while line := stream.readline(limit + 1):
        size = len(line)
        yield line, (size if size <= limit or line.endswith(b"\n") else size + skip_line(stream))


def skip_line(stream: BinaryIO, at_least: int | None = None) -> int:
    """Read to the end of a line, or until `at_least` bytes are read; returns the number of bytes read."""
    size = 0
    while (at_least is None or size < at_least) and (rest := stream.readline(BUFFER)):
        size += len(rest)
        if rest.endswith(b"\n"):
            break
    return size


def line_start(file: BinaryIO, position: int, reach: int) -> int | None:
    """The first byte of the line that contains `position`; None if that is more than `reach` bytes earlier."""
    begin = max(0, position - reach)
    file.seek(begin)
    found = file.read(position - begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else 0 if begin == 0 else None
