"""Reads weights in Paddle's files without running code from them.

A `.pdparams` is a pickle of names and numpy arrays. The pickle module would call any function that a file names; the
small reader here follows only the few instructions that arrays and plain containers need, calls nothing by a name from
the file, and refuses everything else. The static release is a folder with one binary file a variable.
"""

import math
import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError, first_line

Array = NDArray[Any]

NAMES = "StructuredToParameterName@@"
"""Entry of a .pdparams that maps names to the parameters' names in the program."""
SPLIT = "UnpackBigParamInfor@@"
"""Entry that lists the slices of a large array: protocols 2 and 3 end at 4 GiB."""
NO_VARIABLES = {".json", ".txt", ".md", ".yaml", ".yml", ".py", ".sh", ".log", ".model", ".bpe", ".gz"}
"""Suffixes of other files among a static release's variables."""

TYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "b1"}
"""numpy's codes of numbers. An object array ("O8") would hold a pickle of its own."""
LOD_TYPES = {
    0: "b1", 1: "i2", 2: "i4", 3: "i8", 4: "f2", 5: "f4", 6: "f8", 20: "u1", 21: "i1", 22: "u2"
}  # fmt: skip
"""VarType.Type of framework.proto -> numpy's code; 22 is bfloat16, which numpy lacks."""


class _RefusedError(Exception):
    """The file holds something that weights do not need; the message names it."""


def read_pdparams(path: Path) -> dict[str, Array]:
    """The arrays of a .pdparams by name, float32 where they were bfloat16.

    Raises `UserError` for a file that is damaged or holds anything but arrays in plain containers.
    """
    try:
        with path.open("rb") as file:
            state = _Unpickler().read(file)
        return _arrays(state)
    except _RefusedError as error:
        raise UserError(
            f"{path}: refused, since it holds more than arrays ({error}); save only the state_dict"
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); was the download complete?") from None


@dataclass
class _Type:
    """A numpy.dtype whose state has not been read yet."""

    code: str
    order: str = "<"

    def set_state(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def to_numpy(self) -> np.dtype[Any]:
        if self.code not in TYPES or self.order not in ("<", ">", "|", "="):
            raise _RefusedError(f"numbers of type {self.order}{self.code}")
        return np.dtype(("<" if self.order == "|" else self.order) + self.code)


@dataclass
class _Reconstructed:
    """A numpy.ndarray whose state has not been read yet."""

    array: Array | None = None

    def set_state(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise _RefusedError("an array of something other than numbers")
        flat = np.frombuffer(raw, kind.to_numpy())
        self.array = _widened(flat.reshape(shape, order="F" if fortran else "C"))


@dataclass(frozen=True)
class _Name:
    """A callable that the file names. It is never looked up; `_CALLS` has its replacement."""

    module: str
    name: str


def _bytes(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"text as {encoding}")
    return text.encode("latin-1")


_CALLS: dict[_Name, Callable[..., Any]] = {
    _Name("numpy.core.multiarray", "_reconstruct"): lambda *_: _Reconstructed(),
    _Name("numpy._core.multiarray", "_reconstruct"): lambda *_: _Reconstructed(),  # from numpy 2 on
    _Name("numpy", "dtype"): lambda code, *_: _Type(code),
    _Name("_codecs", "encode"): _bytes,  # protocol 2 has no bytes
    _Name("builtins", "tuple"): tuple,  # a tensor outside of a state_dict is a pair of name and values
    _Name("__builtin__", "tuple"): tuple,
    _Name("collections", "OrderedDict"): dict,
}
_ARGUMENTS_ONLY = {_Name("numpy", "ndarray")}

_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "SHORT_BINSTRING", "BINSTRING",
}  # fmt: skip
"""Instructions that put their argument on the stack."""
_FRESH: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


class _Unpickler:
    """Follows a pickle's instructions as pickletools lists them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._marks.append(len(self._stack)),
            "TUPLE": lambda _: self._push(tuple(self._pop(len(self._stack) - self._marks.pop()))),
            "TUPLE1": lambda _: self._push(tuple(self._pop(1))),
            "TUPLE2": lambda _: self._push(tuple(self._pop(2))),
            "TUPLE3": lambda _: self._push(tuple(self._pop(3))),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._pop(len(self._stack) - self._marks.pop())),
            "APPEND": lambda _: self._append(self._pop(1)),
            "APPENDS": lambda _: self._append(self._pop(len(self._stack) - self._marks.pop())),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            "BINPUT": self._remember,
            "LONG_BINPUT": self._remember,
            "BINGET": lambda index: self._push(self._memo[index]),
            "LONG_BINGET": lambda index: self._push(self._memo[index]),
            "GLOBAL": lambda names: self._name(*names.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._name(*self._pop(2)),
            "REDUCE": lambda _: self._call(*self._pop(2)),
            "BUILD": lambda _: self._build(*self._pop(1)),
        }

    def read(self, file: BinaryIO) -> Any:
        """Raises `_RefusedError` for anything but arrays in plain containers, and other errors for a damaged file."""
        for instruction, argument, _ in pickletools.genops(file):
            name = instruction.name
            if name in _LITERALS:
                self._push(argument)
            elif name in _FRESH:
                self._push(_FRESH[name]())
            elif name in self._steps:
                self._steps[name](argument)
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise _RefusedError(f"the instruction {name}")
        return self._pop(1)[0]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self, number: int) -> list[Any]:
        if not 0 <= number <= len(self._stack):
            raise ValueError("its instructions do not fit together")
        start = len(self._stack) - number
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _set_items(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict):
            raise _RefusedError("an entry of something other than a dictionary")
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise _RefusedError("an entry of something other than a list")
        self._stack[-1].extend(items)

    def _name(self, module: str, name: str) -> None:
        found = _Name(module, name)
        if found not in _CALLS and found not in _ARGUMENTS_ONLY:
            raise _RefusedError(f"{module}.{name}")
        self._push(found)

    def _call(self, name: Any, arguments: Any) -> None:
        if name not in _CALLS or not isinstance(arguments, tuple):
            raise _RefusedError("a call that numpy's arrays do not need")
        self._push(_CALLS[name](*arguments))

    def _build(self, state: Any) -> None:
        if not isinstance(self._stack[-1], _Type | _Reconstructed) or not isinstance(state, tuple):
            raise _RefusedError("the state of an object")
        self._stack[-1].set_state(state)


def _arrays(state: Any) -> dict[str, Array]:
    if not isinstance(state, dict):
        raise _RefusedError("not a dictionary of arrays")
    arrays: dict[str, Array] = {}
    for name, entry in state.items():
        if name in (NAMES, SPLIT):
            continue
        value = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if not isinstance(name, str) or not isinstance(value, _Reconstructed) or value.array is None:
            raise _RefusedError(f"{name!r} is not an array")
        arrays[name] = value.array
    for name, parts in state.get(SPLIT, {}).items():
        slices = [arrays.pop(part).ravel() for part in parts["slices"]]
        arrays[name] = np.concatenate(slices).reshape(parts["OriginShape"])
    return arrays


def _widened(array: Array) -> Array:
    """Paddle writes bfloat16 as the 16-bit numbers that have the same bits; it has no other uint16."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


class StaticFolder(Mapping[str, Array]):
    """The variables of a static release by name, read on access."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = sorted(
            path.name
            for path in folder.iterdir()
            if path.is_file() and path.suffix not in NO_VARIABLES and not path.name.startswith((".", "__"))
        )

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return read_variable(self._folder / name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_variable(path: Path) -> Array:
    """One variable as Paddle's `save` operator writes it (SerializeToStream of lod_tensor.cc).

    uint32 version 0; uint64 number of levels, each a uint64 size and as many bytes; uint32 version 0; int32 size of a
    protobuf TensorDesc; that message; the numbers. All little endian. Raises `UserError` for any other file.
    """
    raw = memoryview(path.read_bytes())
    try:
        (version, levels), offset = struct.unpack_from("<IQ", raw), 12
        for _ in range(levels if version == 0 else 0):
            offset += 8 + struct.unpack_from("<Q", raw, offset)[0]
        tensor_version, size = struct.unpack_from("<Ii", raw, offset)
        if version or tensor_version or not 0 < size <= len(raw):
            raise ValueError("it is not a variable of Paddle")
        offset += 8
        kind, shape = _tensor_desc(raw[offset : offset + size])
        numbers = raw[offset + size :]
        wanted = math.prod(shape) * kind.itemsize
        if len(numbers) != wanted:
            raise ValueError(f"{len(numbers)} bytes of numbers, but shape {list(shape)} takes {wanted}")
        return _widened(np.frombuffer(numbers, kind).reshape(shape))
    except (struct.error, IndexError) as error:
        raise UserError(f"{path}: ends too early ({error}); was the download complete?") from None
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({error}); was the download complete?") from None


def _tensor_desc(message: memoryview) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type (field 1, a varint) and the shape (field 2, repeated varints or packed ones)."""
    kind: np.dtype[Any] | None = None
    shape: list[int] = []
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        if tag == 0x08:
            code, offset = _varint(message, offset)
            if code not in LOD_TYPES:
                raise ValueError(f"its type {code} is not a type of numbers")
            kind = np.dtype("<" + LOD_TYPES[code])
        elif tag in (0x10, 0x12):
            end = offset + 1
            if tag == 0x12:
                size, offset = _varint(message, offset)
                end = offset + size
            while offset < end:
                extent, offset = _varint(message, offset)
                shape.append(extent)
        else:
            raise ValueError("it does not describe a tensor")
    if kind is None:
        raise ValueError("its description has no type")
    return kind, tuple(shape)


def _varint(message: memoryview, offset: int) -> tuple[int, int]:
    """The number at `offset`, seven bits a byte, low ones first, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError("a number in its description does not end")
