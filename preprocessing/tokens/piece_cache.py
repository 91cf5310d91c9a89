"""The tokens of pieces of text that come again and again, such as words: encoded once, then looked up."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHED_PIECES = 1 << 17
CACHED_CHARACTERS = 1 << 22

Encode = Callable[[list[str]], tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]]
"""Encodes n pieces. Returns of each token, in order: the number of its piece, its id and its start in the piece."""


class PieceCache:
    """Ids and starts of pieces; past `CACHED_PIECES` or `CACHED_CHARACTERS` everything is forgotten and learnt anew."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def __len__(self) -> int:
        return len(self._numbers)

    def look_up(self, pieces: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """How many tokens each piece has [n], and where they begin in `tokens` [n]."""
        if len(self._numbers) > CACHED_PIECES or self._numbers.characters > CACHED_CHARACTERS:
            self._forget()
        numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.intp, len(pieces))
        if self._numbers.new:
            self._learn(self._numbers.new)
            self._numbers.new = []
        counts, firsts = np.frombuffer(self._counts, np.int32), np.frombuffer(self._firsts, np.int32)
        return counts.take(numbers), firsts.take(numbers)

    @property
    def tokens(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Ids and starts of all cached pieces, one after the other; use them before the next `look_up`."""
        return np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, np.int32)

    def encode(self, pieces: Sequence[str], begins: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Token ids [m] and starts [m] of a text of `pieces` [n > 0] that begin at `begins` [n]."""
        counts, firsts = self.look_up(pieces)
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
        self._numbers = _Numbers()
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
