"""Files at an address: pipe:, http:, https:, s3: and whatever else fsspec or the openers of webdataset can open."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from preprocessing.corpus.index import PAGE
from preprocessing.errors import UserError, first_line, nearest

CHUNK = 128 * PAGE
"""Bytes that are asked for at once, 8 MB."""
TIMEOUT = 60.0
"""Seconds without a byte after which an HTTP request is given up."""
_NAME = re.compile(r"(tokenizer/)?[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_address(place: object) -> bool:
    """Whether a corpus lies at an address, and not in a folder of this machine."""
    return isinstance(place, str) and re.match(r"pipe:|[a-z][a-z0-9+.:-]*://", place) is not None


def check_address(address: str) -> None:
    """Raises ValueError for an address that holds a password."""
    if not address.startswith("pipe:") and urlsplit(address).password is not None:
        raise ValueError(
            "has a password in it, which the log and the run folder would show; give it in ~/.netrc, or in the "
            "configuration of fsspec"
        )


def check_name(address: str, name: str) -> str:
    """`name`; raises `UserError` if it leads elsewhere, or could be more than a name to the shell of a `pipe:`."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{address}: its manifest names `{name}`, which is not a file of a corpus; do not use it")
    return name


class Source:
    """The files of a folder at an address. `{}` in it stands for a file's name, which otherwise follows after a slash.

    Methods try once, and raise what the library raises, or `OSError` for fewer bytes than there should be.
    """

    def __init__(self, address: str) -> None:
        """Raises `UserError` if nothing that is installed can open it."""
        import fsspec

        self.address = address
        scheme = address.partition(":")[0]
        self._options: dict[str, Any] = {}
        self.in_parts = scheme in fsspec.available_protocols()
        """Whether a part of a file can be read without what is before it."""
        if self.in_parts:
            self._check_protocol(scheme)
            return
        from webdataset.gopen import gopen_schemes  # imports torch where it is installed

        if scheme not in gopen_schemes or scheme.startswith("_"):
            known = [*fsspec.available_protocols(), *gopen_schemes]
            raise UserError(f"{address}: neither fsspec nor webdataset opens `{scheme}:`; {nearest(scheme, known)}")

    def place(self, name: str) -> str:
        return self.address.replace("{}", name) if "{}" in self.address else f"{self.address.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """The whole file."""
        if self.in_parts:
            return self._cat(name)
        with self._stream(name) as stream:
            return bytes(stream.read())

    def chunks(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """Bytes start..stop of the file, `CHUNK` at a time."""
        if self.in_parts:
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                yield self._whole(self._cat(name, begin, end), end - begin)
            return
        from webdataset.gopen import set_options

        with self._stream(name) as stream:
            for begin in range(0, start, CHUNK):
                stream.read(min(CHUNK, start - begin))
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                data = stream.read(end - begin)
                if end == stop and len(data) == end - begin:
                    set_options(stream, ignore_errors=True)  # it is closed before the command has written all
                yield self._whole(data, end - begin)

    def _whole(self, data: bytes, size: int) -> bytes:
        if len(data) > size:
            raise UserError(
                f"{self.address}: sends whole files where parts are asked for; it must answer requests for ranges of "
                "bytes, as nginx, Apache and S3 do"
            )
        if len(data) < size:
            raise OSError(f"{len(data):,} bytes of {size:,} came")
        return data

    def _cat(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        import fsspec

        files, path = fsspec.url_to_fs(self.place(name), **self._options)
        return bytes(files.cat_file(path, start, stop))

    def _stream(self, name: str) -> Any:
        from webdataset.gopen import gopen

        return gopen(self.place(name), "rb")

    def _check_protocol(self, scheme: str) -> None:
        import fsspec

        try:
            if scheme in ("http", "https"):
                import aiohttp

                limit = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
                self._options = {"client_kwargs": {"timeout": limit, "trust_env": True}}
            fsspec.url_to_fs(self.place("manifest.json"), **self._options)
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.address}: cannot be opened here ({first_line(error)})") from None
