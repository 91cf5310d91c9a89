"""Streams the members of archives. Nothing is unpacked, and no header makes a reader hang or run out of memory.

tarfile itself trusts a header that claims a member of 10^30 bytes, a header of gigabytes, or a sparse file of 512 bytes
with a terabyte of zeros.
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

from reread.preprocessing.input.streams import BUFFER, metered

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
"""Errors of zipfile for an archive that is damaged, has a password, or is packed by an unsupported method."""
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class ArchiveFile(NamedTuple):
    """A member of an archive."""

    name: str
    file: BinaryIO | None
    """None if the member is not read."""
    reason: str = ""
    """The reason why it is not read."""


def entries(stream: BinaryIO, damage: tuple[type[Exception], ...]) -> Iterator[ArchiveFile]:
    """The regular files of a tar archive, except hidden ones. Each must be read before the next one is taken.

    Raises tarfile.TarError if the archive is damaged; `damage` are errors by which the stream reports damage.
    """
    with tarfile.open(fileobj=cast(Any, _Archive(stream, damage)), mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined] # tarfile would keep all of them
            if not member.isfile() or _is_hidden(member.name):
                continue
            if member.issparse():  # a hole is not text
                yield ArchiveFile(member.name, None, "a sparse file inside an archive is not read; unpack it")
            else:
                yield ArchiveFile(member.name, archive.extractfile(member))  # type: ignore[arg-type]


def zip_entries(file: BinaryIO, spend: Callable[[int], None]) -> Iterator[ArchiveFile]:
    """The files of a zip archive, except hidden ones; `spend` is called with the bytes that they expand to.

    Raises zipfile.BadZipFile if the archive's index is damaged or cut off.
    """
    with open_zip(file) as archive:
        for member in archive.infolist():
            name = member.filename
            if not name or name.endswith("/") or _is_hidden(name) or stat.S_ISLNK(member.external_attr >> 16):
                continue
            if member.flag_bits & _ENCRYPTED:
                yield ArchiveFile(name, None, "encrypted; unpack it with its password")
            else:
                yield ArchiveFile(name, metered(zip_member(archive, member), spend))


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open a zip archive; raises zipfile.BadZipFile for every kind of damage."""
    try:
        return zipfile.ZipFile(file)
    except _ZIP_DAMAGE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from None


def zip_member(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member; raises zipfile.BadZipFile for every kind of damage."""
    try:
        with archive.open(member) as opened:
            yield from iter(partial(opened.read, BUFFER), b"")
    except _ZIP_DAMAGE as error:
        raise zipfile.BadZipFile(str(error) or type(error).__name__) from None


def _is_hidden(name: str) -> bool:
    parts = name.split("/")
    return parts[0] == "__MACOSX" or any(part.startswith(".") and part not in (".", "..") for part in parts)


class _Archive:
    """The stream that tarfile reads; it bounds headers, and stops reading after the end, which tarfile does not."""

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
    """Reports damaged headers as errors; tarfile would take one, except the first, for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _HEADER_TYPES and member.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        archive: _Archive = cast(Any, tarfile_.fileobj).fileobj  # tarfile's own stream wraps ours
        outermost = archive.header_room is None  # long names are headers before the header
        if outermost:
            archive.header_room = _HEADER_BYTES
        try:
            member = super().fromtarfile(tarfile_)
            if len(tarfile_.pax_headers) > _GLOBAL_HEADERS:  # tarfile copies them for each member
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
