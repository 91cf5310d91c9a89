"""The tokens of pieces of text that come again and again, such as words: encoded once, then looked up.

Nearly all pieces have at most 16 characters that Windows-1252 has, too. Such a piece is 16 bytes, padded with zeros,
and all pieces of a text are found at once in a table of 2^18 slots. Which slot is the piece's follows from its bytes,
and the slot holds them, so what is found there is right; the first piece of a slot keeps it. All others are looked up
one by one in a dictionary.
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
"""Characters of the longest piece in the table."""

Encode = Callable[[list[str]], tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]]
"""Encodes n pieces. Returns of each token, in order: the number of its piece, its id and its start in the piece."""

_OTHER = 1  # the byte of characters that are not in the table
_BYTES = np.full((1 << 16) + 1, _OTHER, np.uint8)
"""[65537]: the byte of each character; the last entry is for all beyond the Basic Multilingual Plane."""
for _byte in range(2, 256):
    for _character in bytes([_byte]).decode("cp1252", "ignore"):
        _BYTES[ord(_character)] = _byte
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd, with bits in no order
_KEPT = np.zeros((PACKED + 2, PACKED), np.uint8)
"""[length, byte]: which bytes belong to a piece of that length; none if it is too long."""
for _length in range(PACKED + 1):
    _KEPT[_length, :_length] = 0xFF
_MASKS = _KEPT.view(np.uint64)


class _Slots:
    """The table: [slots] the two halves of a piece's bytes, and its number."""

    def __init__(self) -> None:
        self._halves = np.zeros((2, 1 << SLOT_BITS), np.uint64)
        self._numbers = np.full(1 << SLOT_BITS, -1, np.int32)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The numbers [n] of the pieces with `keys` [2, n], -1 for those that are not in the table."""
        slots = self._slots(keys)
        is_there = (self._halves[0].take(slots) == keys[0]) & (self._halves[1].take(slots) == keys[1])
        return np.where(is_there, self._numbers.take(slots), np.int32(-1))

    def add(self, keys: NDArray[np.uint64], numbers: NDArray[np.int32]) -> None:
        """Put the pieces with `keys` [2, n] into those of their slots that are empty."""
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
    """The two halves [2, n] of the bytes of the pieces codes[begins:ends], zeros if there are more than 16."""
    packed = np.zeros(len(codes) + PACKED, np.uint8)
    _BYTES.take(codes, mode="clip", out=packed[: len(codes)])
    windows: NDArray[Any] = np.ndarray((len(codes) + 1,), f"V{PACKED}", packed, strides=(1,))
    halves = windows[begins].view(np.uint64).reshape(-1, 2)
    return np.ascontiguousarray((halves & _MASKS.take(np.minimum(ends - begins, PACKED + 1), axis=0)).T)


class PieceCache:
    """Ids and starts of pieces; past `CACHED_PIECES` or `CACHED_CHARACTERS` everything is forgotten and learnt anew."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def __len__(self) -> int:
        return len(self._numbers)

    def look_up(
        self, text: str, codes: NDArray[np.uint32], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """How many tokens each piece text[begins:ends] has [n], and where they begin in `tokens` [n].

        `codes` [len(text)] are the characters.
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
        """Ids and starts of all cached pieces, one after the other; use them before the next `look_up`."""
        return np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int32)

    def encode(
        self, text: str, codes: NDArray[np.uint32], begins: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Token ids [m] and starts [m] of a text of pieces that begin at `begins` [n > 0], the first at 0."""
        counts, firsts = self.look_up(text, codes, begins, np.append(begins[1:], len(text)))
        ids, starts = self.tokens
        ends = np.cumsum(counts, dtype=np.int64)
        place = np.arange(ends[-1]) + np.repeat(firsts - ends + counts, counts)
        return ids.take(place).view(np.uint32), np.repeat(begins, counts) + starts.take(place)

    def _learn(self, pieces: list[str]) -> None:
        owners, ids, starts = self._encode(pieces)
        counts = np.bincount(owners, minlength=len(pieces))
        firsts = len(self._ids) + np.cumsum(counts) - counts
        firsts[counts == 0] = 0  # for pieces without tokens any place will do
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
    """Numbers pieces in the order of their first lookup; `new` lists those whose tokens are not known yet."""

    def __init__(self) -> None:
        self.new: list[str] = []
        self.characters = 0

    def __missing__(self, piece: str) -> int:
        self.new.append(piece)
        self.characters += len(piece)
        self[piece] = number = len(self)
        return number
