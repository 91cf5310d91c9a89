"""Arrays in a folder, written once by one process and mapped by each that needs them.

The folder's name says what the arrays depend on, so arrays that are there need no comparison with their source. They
are written under a hidden name, which only a process with an flock on NAME.lock touches, and renamed when they are
whole. index.json has the length and the CRC-32 of each, and its own; whoever maps them compares all, and makes damaged
ones again.
"""

import errno
import fcntl
import json
import logging
import mmap
import secrets
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import DamagedError, first_line, writing
from reread.preprocessing.files import move, sync_folder, synced, to_json, unfinished

log = logging.getLogger("reread")

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_INDEX = "index.json"
_HELD = 1 << 16
"""Values that are written together."""
_NPY = np.lib.format.magic(1, 0)
_ZIP_LENGTHS_AT = 26
"""The byte of a member's header in a zip file with the lengths of its name and of its extra field, which follow."""


class Arrays(NamedTuple):
    arrays: Mapping[str, NDArray[Any]]
    """Name -> values [n], which must not be written to."""
    facts: Mapping[str, Any]
    """JSON values about them."""


class ArrayWriter:
    """The arrays of a folder that is being written; values are appended to each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._files: dict[str, IO[bytes]] = {}
        self._index: dict[str, dict[str, Any]] = {}
        self._held: dict[str, list[NDArray[Any]]] = {}
        """Values that are not written yet: they come by the hundreds of bytes."""
        self._waiting: dict[str, int] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append `values` [n] to the array `name`, all of which are of one type."""
        if name not in self._files:
            self._files[name] = self._stack.enter_context(synced(self._folder / name))
            self._index[name] = {"type": values.dtype.str, "values": 0, "crc32": 0}
            self._held[name], self._waiting[name] = [], 0
        for begin in range(0, len(values), _HELD):  # a text of megabytes is not copied whole
            part = values[begin : begin + _HELD]
            self._held[name].append(part)
            self._waiting[name] += len(part)
            if self._waiting[name] >= _HELD:
                self._write(name)

    def _write(self, name: str) -> None:
        values, entry = np.concatenate(self._held[name]), self._index[name]
        self._held[name], self._waiting[name] = [], 0
        self._files[name].write(values.data)
        entry["values"] += len(values)
        entry["crc32"] = zlib.crc32(values.data, entry["crc32"])

    def mapped(self) -> dict[str, NDArray[Any]]:
        """The arrays as far as values were appended."""
        for name, file in self._files.items():
            if self._held[name]:
                self._write(name)
            file.flush()
        return {name: _mapped(self._folder / name, entry) for name, entry in self._index.items()}

    def close(self, facts: Mapping[str, Any]) -> None:
        self._stack.close()
        index = {"arrays": self._index, "facts": facts}
        with synced(self._folder / _INDEX) as file:
            file.write(to_json({"index": index, "crc32": zlib.crc32(to_json(index))}))


def made_once(folder: Path, make: Callable[[ArrayWriter], Mapping[str, Any]]) -> Arrays:
    """The arrays of `folder`; if they are not there, or are damaged, `make` appends them to a writer and returns their
    facts. Other processes wait for the one that makes them.

    Raises `UserError` if the folder cannot be written, as on a full disk, and whatever `make` raises; then nothing is
    left behind.
    """
    try:
        if (found := _opened(folder)) is not None:
            return found
    except DamagedError:
        pass  # looked at again where no other process makes it
    with ExitStack() as stack:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            alone = stack.enter_context(only_process(folder))
        try:
            if (found := _opened(folder)) is not None:
                return found
        except DamagedError as error:
            log.warning("%s; it is made again", error)
            shutil.rmtree(folder)
        return _made(folder if alone else folder.with_name(f"{folder.name}.{secrets.token_hex(4)}"), folder, make)


def _made(name: Path, folder: Path, make: Callable[[ArrayWriter], Mapping[str, Any]]) -> Arrays:
    """Make `folder` under the hidden name that `name` has until it is complete."""
    temporary = unfinished(name)
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        with writing(folder), ExitStack() as stack:
            temporary.mkdir()
            writer = ArrayWriter(temporary, stack)
            facts = make(writer)
            arrays = writer.mapped()
            writer.close(facts)
            move(temporary, folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Arrays(arrays, facts)


def _opened(folder: Path) -> Arrays | None:
    """The arrays in a folder; None if it is not there. Raises `DamagedError` for others than were written."""
    try:
        found = json.loads((folder / _INDEX).read_bytes())
        index, arrays = found["index"], {}
        if zlib.crc32(to_json(index)) != found["crc32"]:
            raise ValueError(f"{_INDEX} has another checksum")
        for name, entry in index["arrays"].items():
            arrays[name] = _mapped(folder / name, entry)
            if zlib.crc32(arrays[name].data) != entry["crc32"]:
                raise ValueError(f"{name} has another checksum")
        return Arrays(arrays, index["facts"])
    except FileNotFoundError as error:
        if not folder.exists():
            return None
        raise DamagedError(f"{folder}: damaged ({error.filename} is not there)") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{folder}: damaged ({first_line(error)})") from None


def _mapped(path: Path, entry: Mapping[str, Any]) -> NDArray[Any]:
    """Raises ValueError for a file of another size."""
    kind, count = np.dtype(entry["type"]), entry["values"]
    if (size := path.stat().st_size) != count * kind.itemsize:
        raise ValueError(f"{path.name} has {size:,} bytes of {count * kind.itemsize:,}")
    return np.memmap(path, kind, "r", shape=(count,)).view(np.ndarray) if count else np.empty(0, kind)


def spilled(parts: Iterable[NDArray[Any]], folder: Path) -> NDArray[Any]:
    """The parts [n, ...] one after another, in a map of a file of `folder` without a name, which ends with the array.

    Raises `UserError` if it cannot be written, as on a full disk.
    """
    with writing(folder), TemporaryFile(dir=folder) as file:
        count = 0
        for part in parts:
            file.write(part.tobytes())
            count += len(part)
        file.flush()
        shape = (count, *part.shape[1:])
        return np.memmap(file, part.dtype, "r", shape=shape).view(np.ndarray) if count else np.empty(shape, part.dtype)


def mapped_member(archive: zipfile.ZipFile, name: str, data: mmap.mmap) -> NDArray[Any]:
    """The array of a member of a .npz file, as a view of the file's bytes `data`; np.load would copy it.

    Raises ValueError, or another error of zipfile or numpy, for a member that `numpy.savez` would not write.
    """
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    lengths = struct.unpack_from("<HH", data, member.header_offset + _ZIP_LENGTHS_AT)
    begin = member.header_offset + _ZIP_LENGTHS_AT + 4 + sum(lengths)
    if data[begin : begin + len(_NPY)] != _NPY:
        raise ValueError(f"{name} has another version")
    begin += len(_NPY) + 2
    header = data[begin - 2 : begin + int.from_bytes(data[begin - 2 : begin], "little")]
    shape, is_fortran, dtype = _npy_header(header)
    if (is_fortran and len(shape) > 1) or dtype.hasobject:
        raise ValueError(f"{name} holds another array")
    return np.ndarray(shape, dtype, data, begin + len(header) - 2)


@lru_cache(4096)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether Fortran's order, and type: numpy parses them as Python, .3 ms, and corpora have many the same."""
    return np.lib.format.read_array_header_1_0(BytesIO(header))


@contextmanager
def only_process(folder: Path) -> Iterator[bool]:
    """Lock the name of `folder`; False if the file system has no locks, so that several processes may make it."""
    with folder.with_name(f"{folder.name}.lock").open("ab") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: another process makes it; waiting", folder)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.info("%s: this file system has no locks (%s); each process makes its own", folder, error.strerror)
            yield False
        else:
            yield True
