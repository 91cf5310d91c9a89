"""Exact deduplication: equal MD5s are found key range by key range, and the first in source order stays.

Only keys move: 20 bytes each. Every part leaves its keys sorted, so a range is one slice of each part's file, found by
bisection; memory is bounded by the range, which takes its number from the count of keys and changes no result.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<u4")])
"""An MD5 as two numbers, and the place of its text among those of its part."""
DUPLICATE = np.dtype([("part", "<u4"), ("place", "<u4")])
KEYS_PER_RANGE = 1 << 20


def range_count(keys: int) -> int:
    """Ranges that hold about `KEYS_PER_RANGE` keys each (MD5s are uniform); at least 1."""
    return max(1, -(-keys // KEYS_PER_RANGE))


def sort_keys(digests: bytes | bytearray) -> NDArray[Any]:
    """KEY [n], sorted, of n MD5 digests (16 bytes each, one after the other); places count from 0."""
    numbers = np.frombuffer(digests, ">u8").astype("<u8").reshape(-1, 2)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable
    keys = np.empty(len(order), KEY)
    keys["high"], keys["low"], keys["place"] = numbers[order, 0], numbers[order, 1], order
    return keys


def later_occurrences(files: Sequence[Path], number: int, ranges: int) -> NDArray[Any]:
    """DUPLICATE [m], by part: every key of range `number` that stood before, in an earlier part or place.

    `files` are the `.npy` of `sort_keys`, in the order of the parts.
    """
    bounds = [(number + step) * 2**64 // ranges for step in (0, 1)]
    slices = []
    for file in files:
        keys = np.load(file, mmap_mode="r")
        begin, end = (bisect_left(keys, bound, key=lambda key: int(key["high"])) for bound in bounds)
        slices.append(np.array(keys[begin:end]))
    part = np.repeat(np.arange(len(slices), dtype=np.uint32), [len(keys) for keys in slices])
    keys = np.concatenate(slices)
    high, low = np.ascontiguousarray(keys["high"]), np.ascontiguousarray(keys["low"])
    order = np.lexsort((low, high))  # stable: equal keys stay in source order
    high, low = high[order], low[order]
    later = np.sort(order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])])
    found = np.empty(len(later), DUPLICATE)
    found["part"], found["place"] = part[later], keys["place"][later]
    return found


def dropped_places(files: Sequence[Path], part: int, count: int) -> NDArray[np.bool_]:
    """bool [count]: the places of `part` that `files` (the `.npy` of `later_occurrences`) name."""
    dropped = np.zeros(count, bool)
    for file in files:
        found = np.load(file, mmap_mode="r")
        begin, end = (bisect_left(found, bound, key=lambda key: int(key["part"])) for bound in (part, part + 1))
        dropped[found["place"][begin:end]] = True
    return dropped
