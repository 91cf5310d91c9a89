"""A cache of the tokens of frequent pieces of text, such as words, which are encoded once and then looked up.

Nearly all pieces have at most 16 characters, all of which Windows-1252 can represent. Such a piece is packed into 16
bytes, padded with zeros, and all pieces of a text are looked up at once in a hash table of 2^18 slots. A slot also
holds the bytes of its piece, so a wrong piece is never found; the first piece that falls into a slot keeps it. All
other pieces are looked up one by one in a dictionary.
"""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHED_PIECES = 1 << 17
CACHED_CHARACTERS = 1 << 22
SLOT_BITS = 18
PACKED = 16
"""The greatest length of a piece in the table, in characters."""

Encode = Callable[[list[str]], tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]]
"""Encodes pieces; returns for each token [n], in order, the number of its piece, its id, and its start in the piece."""

_OTHER = 1  # the byte of characters that are not in the table
_BYTES = np.full((1 << 16) + 1, _OTHER, np.uint8)
"""[65537]: the byte of each character; the last entry is for all characters beyond the Basic Multilingual Plane."""
for _byte in range(2, 256):
    for _character in bytes([_byte]).decode("cp1252", "ignore"):
        _BYTES[ord(_character)] = _byte
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd numbers with irregular bits
_KEPT = np.zeros((PACKED + 2, PACKED), np.uint8)
"""[length, byte]: 0xFF for the bytes that belong to a piece of that length; all zeros if the piece is too long."""
for _length in range(PACKED + 1):
    _KEPT[_length, :_length] = 0xFF
_MASKS = _KEPT.view(np.uint64)


class _Slots:
    """The hash table: for each slot the two halves of a piece's bytes, and the number of the piece."""

    def __init__(self) -> None:
        self._halves = np.zeros((2, 1 << SLOT_BITS), np.uint64)
        self._numbers = np.full(1 << SLOT_BITS, -1, np.int32)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """[n]: the numbers of the pieces with `keys` [2, n]; -1 for pieces that are not in the table."""
        slots = self._slots(keys)
        is_there = (self._halves[0].take(slots) == keys[0]) & (self._halves[1].take(slots) == keys[1])
        return np.where(is_there, self._numbers.take(slots), np.int32(-1))

    def add(self, keys: NDArray[np.uint64], numbers: NDArray[np.int32]) -> None:
        """Add the pieces with `keys` [2, n] and `numbers` [n] to the table, except those whose slot is taken."""
        slots = self._slots(keys)
        fits = (self._numbers.take(slots) < 0) & (keys[0] != 0)
        fits &= (np.ascontiguousarray(keys.T).view(np.uint8).reshape(-1, PACKED) != _OTHER).all(axis=1)
        chosen, first = np.unique(slots[fits], return_index=True)
        self._halves[:, chosen] = keys[:, fits][:, first]
        self._numbers[chosen] = numbers[fits][first]

    @staticmethod
    def _slots(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        mixed = keys[0] * _FACTORS[0] + keys[1] * _FACTORS[1]
        return (mixed >> np.uint64(64 - SLOT_BITS)).astype(np.intp)


def _keys(codes: NDArray[np.uint32], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[2, n]: the two halves of the bytes of the pieces codes[begins:ends]; zeros for pieces that are too long."""
    packed = np.zeros(len(codes) + PACKED, np.uint8)
    _BYTES.take(codes, mode="clip", out=packed[: len(codes)])
    windows: NDArray[Any] = np.ndarray((len(codes) + 1,), f"V{PACKED}", packed, strides=(1,))
    halves = windows[begins].view(np.uint64).reshape(-1, 2)
    return np.ascontiguousarray((halves & _MASKS.take(np.minimum(ends - begins, PACKED + 1), axis=0)).T)


class PieceCache:
    """The ids and starts of pieces; beyond `CACHED_PIECES` or `CACHED_CHARACTERS` the cache is emptied."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def __len__(self) -> int:
        return len(self._numbers)

    def look_up(
        self, text: str, codes: NDArray[np.uint32], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The number of tokens [n] of each piece text[begins:ends], and the index [n] of its first token in `tokens`.

        `codes` [len(text)] are the code points of the text.
        """
        if len(self._numbers) > CACHED_PIECES or self._numbers.characters > CACHED_CHARACTERS:
            self._forget()
        keys = _keys(codes, begins, ends)
        numbers = self._slots.find(keys)
        others = np.flatnonzero(numbers < 0)
        if len(others):
            bounds = zip(begins[others].tolist(), ends[others].tolist(), strict=True)
            pieces = [text[begin:end] for begin, end in bounds]
            numbers[others] = np.fromiter(map(self._numbers.__getitem__, pieces), np.int32, len(pieces))
            self._slots.add(keys[:, others], numbers[others])
        if self._numbers.new:
            self._learn(self._numbers.new)
            self._numbers.new = []
        counts, firsts = np.frombuffer(self._counts, np.int32), np.frombuffer(self._firsts, np.int32)
        return counts.take(numbers), firsts.take(numbers)

    @property
    def tokens(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The ids and starts of the tokens of all cached pieces; they are valid until the next `look_up`."""
        return np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int32)

    def encode(
        self, text: str, codes: NDArray[np.uint32], begins: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Token ids [m] and starts [m] of a text, whose pieces begin at `begins` [n > 0], the first at 0."""
        counts, firsts = self.look_up(text, codes, begins, np.append(begins[1:], len(text)))
        ids, starts = self.tokens
        ends = np.cumsum(counts, dtype=np.int64)
        indices = np.arange(ends[-1]) + np.repeat(firsts - ends + counts, counts)
        return ids.take(indices).view(np.uint32), np.repeat(begins, counts) + starts.take(indices)

    def _learn(self, pieces: list[str]) -> None:
        owners, ids, starts = self._encode(pieces)
        counts = np.bincount(owners, minlength=len(pieces))
        firsts = len(self._ids) + np.cumsum(counts) - counts
        firsts[counts == 0] = 0  # any index is right for a piece without tokens
        found: list[tuple[array[int], NDArray[Any]]] = [
            (self._counts, counts),
            (self._firsts, firsts),
            (self._ids, ids),
            (self._starts, starts),
        ]
        for store, values in found:
            store.frombytes(values.astype(np.int32).tobytes())

    def _forget(self) -> None:
        self._numbers, self._slots = _Numbers(), _Slots()
        self._counts, self._firsts = array("i"), array("i")
        self._ids, self._starts = array("i", [0]), array("i", [0])


class _Numbers(dict[str, int]):
    """Numbers pieces in the order of their first lookup; `new` lists the pieces that are not encoded yet."""

    def __init__(self) -> None:
        self.new: list[str] = []
        self.characters = 0

    def __missing__(self, piece: str) -> int:
        self.new.append(piece)
        self.characters += len(piece)
        self[piece] = number = len(self)
        return number
