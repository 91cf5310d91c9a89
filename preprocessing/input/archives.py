"""The members of an archive, streamed: nothing is unpacked, and no header makes a reader hang or run out of memory.

tarfile trusts headers: that a member has 10^30 bytes, that a header has gigabytes, that a sparse file of 512 bytes has
a terabyte of zeros.
"""

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

from preprocessing.input.streams import BUFFER, metered

_HEADER_BYTES = 1 << 22
"""The maximum size of all headers of one member: long names, and the map of a sparse file."""
_LONGEST_HEADER = 1 << 20
_GLOBAL_HEADERS = 100
_ENCRYPTED = 1
_ZIP_DAMAGE = (
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of zipfile for a damaged archive, one with a password, or one packed by a method that it does not know."""
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Entry(NamedTuple):
    name: str
    file: BinaryIO | None
    """None for one that is not read."""
    reason: str = ""
    """The reason why it is not read."""


def entries(stream: BinaryIO, damage: tuple[type[Exception], ...]) -> Iterator[Entry]:
    """The regular files of an archive except hidden ones, each to be read before the next one.

    Raises tarfile.TarError if the archive is damaged, or for `damage` of the stream it is read from.
    """
    with tarfile.open(fileobj=cast(Any, _Archive(stream, damage)), mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined] # tarfile would remember every one
            if not member.isfile() or _is_hidden(member.name):
                continue
            if member.issparse():  # a hole is not text
                yield Entry(member.name, None, "a sparse file inside an archive is not read; unpack it")
            else:
                yield Entry(member.name, archive.extractfile(member))  # type: ignore[arg-type]


def zip_entries(file: BinaryIO, spend: Callable[[int], None]) -> Iterator[Entry]:
    """The same of a zip archive; `spend` is called with the bytes that its members expand to.

    Raises zipfile.BadZipFile if its index is damaged or cut off.
    """
    with open_zip(file) as archive:
        for member in archive.infolist():
            name = member.filename
            if not name or name.endswith("/") or _is_hidden(name) or stat.S_ISLNK(member.external_attr >> 16):
                continue
            if member.flag_bits & _ENCRYPTED:
                yield Entry(name, None, "encrypted; unpack it with its password")
            else:
                yield Entry(name, metered(zip_member(archive, member), spend))


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Raises zipfile.BadZipFile whatever is wrong with the archive."""
    try:
        return zipfile.ZipFile(file)
    except _ZIP_DAMAGE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from None


def zip_member(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member; raises zipfile.BadZipFile whatever is wrong with it."""
    try:
        with archive.open(member) as opened:
            yield from iter(partial(opened.read, BUFFER), b"")
    except _ZIP_DAMAGE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from None


def _is_hidden(name: str) -> bool:
    parts = name.split("/")
    return parts[0] == "__MACOSX" or any(part.startswith(".") and part != "." for part in parts)


class _Archive:
    """The bytes of an archive for tarfile, which would read forever past the end."""

    def __init__(self, stream: BinaryIO, damage: tuple[type[Exception], ...]) -> None:
        self._stream, self._damage = stream, damage
        self._ends = 0
        self.header_room: int | None = None

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except self._damage as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise tarfile.ReadError(str(error) or type(error).__name__) from None
        self._ends += not data
        if self._ends > 2:
            raise tarfile.ReadError("unexpected end of data")
        if self.header_room is not None:
            self.header_room -= len(data)
            if self.header_room < 0:
                raise tarfile.ReadError(f"a header of more than {_HEADER_BYTES:,} bytes")
        return data


class _Member(tarfile.TarInfo):
    """Detects truncated archives: tarfile takes a damaged header, other than the first, for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _HEADER_TYPES and member.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        archive: _Archive = cast(Any, tarfile_.fileobj).fileobj  # ours, inside tarfile's own stream
        outermost = archive.header_room is None  # long names are headers before the header
        if outermost:
            archive.header_room = _HEADER_BYTES
        try:
            member = super().fromtarfile(tarfile_)
            if len(tarfile_.pax_headers) > _GLOBAL_HEADERS:  # they stay, and are copied for each member
                raise tarfile.ReadError(f"more than {_GLOBAL_HEADERS} global headers")
            return member  # type: ignore[return-value]
        except (tarfile.EOFHeaderError, tarfile.ReadError, OSError):  # type: ignore[attr-defined]
            raise
        except (
            tarfile.TarError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            reason = str(error) or type(error).__name__
            raise tarfile.ReadError(f"{reason}, where a member or the end of the archive should be") from None
        finally:
            if outermost:
                archive.header_room = None
