"""Files at an address: pipe:, http:, https:, s3: and any other scheme that fsspec or webdataset can open."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from reread.preprocessing.corpus.index import PAGE
from reread.preprocessing.errors import UserError, error_number, first_line, nearest
from reread.preprocessing.redaction import VARIABLE, find_secret

CHUNK = 128 * PAGE
"""Bytes that are requested at once: 8 MiB."""
TIMEOUT = 60.0
"""Seconds without a byte after which an HTTP request is abandoned."""
_NAME = re.compile(r"(tokenizer/)?[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_address(location: object) -> bool:
    """Whether the location of a corpus is an address and not a folder of this machine."""
    return isinstance(location, str) and re.match(r"pipe:|[a-z][a-z0-9+.:-]*://", location) is not None


def runs_command(address: str) -> bool:
    """Whether opening the address runs a command on this machine: that of a `pipe:`, or one that webdataset calls."""
    import fsspec

    return address.partition(":")[0] not in fsspec.available_protocols()


def check_address(address: str) -> None:
    """Raises ValueError if an address, or a path, holds a password, a token or a signature."""
    if found := find_secret(address):
        raise ValueError(
            f"holds {found}, which the log and the run folder would show; put it into an environment variable and "
            "write ${NAME} instead"
        )


def check_name(address: str, name: str) -> str:
    """`name`; raises `UserError` if it leads out of the corpus, or if the shell of a `pipe:` might interpret it."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{address}: its manifest names `{name}`, which is not a file of a corpus; do not use it")
    return name


class RemoteFolder:
    """The files of a folder at an address.

    `{}` in the address stands for a file's name; without it, the name is appended after a slash. `${NAME}` stands for
    the value of an environment variable, which is passed to the library that opens the address and to nothing else. A
    `pipe:` is left to its shell.

    Methods try once. They raise the library's error (without its message, which may contain such a value), or `OSError`
    if there are too few bytes.
    """

    def __init__(self, address: str) -> None:
        """Raises `UserError` if no installed library can open the address, and for a variable that is not set."""
        import fsspec

        self.address = address
        scheme = address.partition(":")[0]
        self._variables = [] if scheme == "pipe" else VARIABLE.findall(address)
        if missing := [name for name in self._variables if not os.environ.get(name)]:
            raise UserError(f"{address}: {missing[0]} is not set in the environment; `export {missing[0]}=...` sets it")
        self._options: dict[str, Any] = {}
        self.in_parts = not runs_command(address)
        """Whether a part of a file can be read without reading the bytes before it."""
        if self.in_parts:
            self._check_protocol(scheme)
            return
        from webdataset.gopen import gopen_schemes  # imports torch where it is installed

        if scheme not in gopen_schemes or scheme.startswith("_"):
            known = [*fsspec.available_protocols(), *gopen_schemes]
            raise UserError(f"{address}: neither fsspec nor webdataset opens `{scheme}:`; {nearest(scheme, known)}")

    def location(self, name: str) -> str:
        """The address of a file for messages, without the values of variables."""
        if "{}" in self.address:
            return self.address.replace("{}", name)
        folder, mark, query = self.address, "", ""
        if not folder.startswith("pipe:"):
            folder, mark, query = folder.partition("?")
        return f"{folder.rstrip('/')}/{name}{mark}{query}"

    def read(self, name: str, most: int) -> bytes:
        """The whole file; raises `UserError` if it has more than `most` bytes."""
        data = bytearray()
        with self._without_values(), self._stream(name) as stream:
            while len(data) <= most and (part := stream.read(min(CHUNK, most + 1 - len(data)))):
                data += part
        if len(data) > most:
            raise UserError(f"{self.location(name)}: more than {most:,} bytes, so it is no corpus; correct the address")
        return bytes(data)

    def chunks(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """Bytes start..stop of the file, `CHUNK` at a time."""
        with self._without_values():
            yield from self._chunks(name, start, stop)

    def _chunks(self, name: str, start: int, stop: int) -> Iterator[bytes]:
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
                    set_options(stream, ignore_errors=True)  # closed before the command has written all of its output
                yield self._whole(data, end - begin)

    def _whole(self, data: bytes, size: int) -> bytes:
        if len(data) > size:
            raise UserError(
                f"{self.address}: sends whole files where parts are requested; the server must support range "
                "requests, as nginx, Apache and S3 do"
            )
        if len(data) < size:
            raise OSError(f"{len(data):,} of {size:,} bytes were received")
        return data

    def _cat(self, name: str, start: int, stop: int) -> bytes:
        import fsspec

        files, path = fsspec.url_to_fs(self._opened(name), **self._options)
        return bytes(files.cat_file(path, start, stop))

    def _stream(self, name: str) -> Any:
        if self.in_parts:
            import fsspec

            files, path = fsspec.url_to_fs(self._opened(name), **self._options)
            # For HTTP this opens a stream with one request; fsspec would need a second one to learn the size.
            return files.open(path, "rb", **({"block_size": 0, "size": 1} if self._options else {}))
        from webdataset.gopen import gopen

        return gopen(self._opened(name), "rb")

    def _check_protocol(self, scheme: str) -> None:
        import fsspec

        try:
            fsspec.get_filesystem_class(scheme)  # names a package that is missing
            if scheme in ("http", "https"):
                import aiohttp

                limit = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
                # Unpacked, a few bytes may be gigabytes.
                plain = {"headers": {"Accept-Encoding": "identity"}, "auto_decompress": False}
                self._options = {"client_kwargs": {"timeout": limit, "trust_env": True, **plain}}
            with self._without_values():
                fsspec.url_to_fs(self._opened("manifest.json"), **self._options)
        except Exception as error:  # each library raises its own; some ask the server already here
            cause = error if error_number(error) is not None else None
            raise UserError(f"{self.address}: cannot be opened here ({first_line(error)})", cause) from None

    def _opened(self, name: str) -> str:
        """The address of a file with the values of variables, for the library that opens it and nothing else."""
        location = self.location(name)
        return VARIABLE.sub(lambda found: os.environ[found[1]], location) if self._variables else location

    @contextmanager
    def _without_values(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if not self._variables:
                raise
            raise _without_text(error) from None


def _without_text(error: Exception) -> Exception:
    """An error of the same class with a message of our own, since a library's may quote the address or its headers."""
    status, number = getattr(error, "status", None), getattr(error, "errno", None)
    text = type(error).__name__
    if isinstance(status, int):
        text = str(status)
        with suppress(ValueError):
            text = f"{status} {HTTPStatus(status).phrase}"
    elif number == socket.EAI_NONAME:
        text = "Name or service not known"
    elif isinstance(number, int) and number > 0:
        text = os.strerror(number)
    kinds = (FileNotFoundError, PermissionError, TimeoutError, ImportError, ValueError)
    found = next((kind for kind in kinds if isinstance(error, kind)), OSError)(text)
    if isinstance(found, OSError):
        found.errno, found.strerror = number if isinstance(number, int) else None, text
        vars(found)["status"] = status
    return found
