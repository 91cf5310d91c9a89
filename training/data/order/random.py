"""Random numbers as a pure function: the draws for a row depend on its key alone.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") has no state to save, and
its values can be computed in any order. The function is SplitMix64 (Steele, Lea, Flood 2014): draw number i of a
stream is `mix(stream + (i + 1) * GAMMA)`, and a stream begins at a mixed (key, purpose).
"""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_PURPOSE = np.uint64(0xD1342543DE82EF95)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


class Purpose(IntEnum):
    """The purpose of a draw; each has its own streams."""

    ORDER = 0
    SHORT = 1
    TARGET_LENGTH = 2
    FIRST_SENTENCE = 3
    SPLIT = 4
    RANDOM_NEXT = 5
    PARTNER = 6
    UNIT_ORDER = 9
    SPAN_LENGTH = 10
    ACTION = 11
    REPLACEMENT = 12
    CHUNK_COUNT = 13
    CHUNK_CUT = 14
    CHUNK_ORDER = 15
    STRETCH = 16
    EXTENT_ORDER = 17
    MIXTURE = 18
    OPTION_ORDER = 19
    DOCUMENT_ORDER = 20


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64 bits in which each input bit changes each output bit half the time."""
    with np.errstate(over="ignore"):  # scalars warn of overflow, arrays do not
        return _mix(np.array(values))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` in place."""
    shifted = np.empty_like(values)
    values ^= np.right_shift(values, _SHIFTS[0], out=shifted)
    values *= _MULTIPLIERS[0]
    values ^= np.right_shift(values, _SHIFTS[1], out=shifted)
    values *= _MULTIPLIERS[1]
    values ^= np.right_shift(values, _SHIFTS[2], out=shifted)
    return values


def key(seed: Any, *words: Any) -> NDArray[np.uint64]:
    """Keys, uint64, in the broadcast shape of `words` (integers or integer arrays, such as copy, document, chunk) and
    `seed`, an integer or a uint64 array."""
    state = mix(seed if isinstance(seed, np.ndarray) else np.array(seed % 2**64, np.uint64))
    with np.errstate(over="ignore"):
        for word in words:
            state = _mix((state ^ np.asarray(word).astype(np.uint64)) + _GAMMA)
    return state


def streams(keys: NDArray[np.uint64], purpose: int) -> NDArray[np.uint64]:
    """The beginning of each key's stream for this purpose."""
    with np.errstate(over="ignore"):
        return _mix(keys + np.uint64(purpose + 1) * _PURPOSE)


def bits(streams: NDArray[np.uint64], counters: Any) -> NDArray[np.uint64]:
    """64 random bits: draw `counters` (from 0) of each stream; the two broadcast."""
    with np.errstate(over="ignore"):
        return _mix(streams + (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * _GAMMA)


def words(keys: NDArray[np.uint64], purpose: int, n: int) -> NDArray[np.uint32]:
    """32 random bits, [B, n], for keys [B]."""
    return bits(streams(keys, purpose)[:, None], np.arange((n + 1) // 2)).astype("<u8", copy=False).view("<u4")[:, :n]


def uniform(keys: NDArray[np.uint64], purpose: int, n: int) -> NDArray[np.float64]:
    """Numbers [B, n] in [0, 1) with 53 random bits, for keys [B]."""
    return to_unit(bits(streams(keys, purpose)[:, None], np.arange(n)))


def integers(keys: NDArray[np.uint64], purpose: int, n: int, below: Any) -> NDArray[np.int64]:
    """Integers [B, n] in [0, below), for keys [B]; `below` (at most 2**52) broadcasts against [B, n]."""
    return (uniform(keys, purpose, n) * below).astype(np.int64)


def to_unit(values: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The upper 53 bits as a number in [0, 1)."""
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53
