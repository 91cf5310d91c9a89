"""Exact deduplication: equal MD5s are found range by range, and the first occurrence in source order stays.

Only keys of 20 bytes are moved. Each part writes its distinct keys, sorted. A task takes one section of the key space,
which is a slice of each part's file, found by bisection. It distributes these keys to ranges, on disk if they are many,
and searches one after the other. So memory is bounded by the size of a range, however many keys there are and however
often a text is repeated, and a task opens each part's file once. The number of ranges and tasks depends on that of keys
and changes no result. The band keys of near-duplicates (`minhash`) are divided in the same way.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<u4")])
"""The two halves of an MD5, and the index of its text in its part."""
DUPLICATE = np.dtype([("index", "<u4"), ("part", "<u4")])
"""A text that is dropped. Read as one number of 64 bits, it sorts by part, then by index."""
Load = Callable[[], NDArray[Any]]
"""Opens an array of a file, as a view of it."""
KEYS_PER_RANGE = 1 << 20
RANGES_PER_TASK = 16
_IN_MEMORY = 1 << 20
"""Bytes of a range that are kept in memory; those of a larger one are on disk while its task is done."""


def task_count(keys: int) -> int:
    """The number of tasks, at least 1, so that a range holds about `KEYS_PER_RANGE` keys; MD5s are uniform."""
    return max(1, -(-keys // (KEYS_PER_RANGE * RANGES_PER_TASK)))


def sort_keys(digests: bytes | bytearray) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Sort n concatenated MD5 digests of 16 bytes.

    Returns KEY [u], the first occurrence of each digest, sorted, and the indices [n - u] of the repetitions.
    """
    numbers = np.frombuffer(digests, ">u8").astype("<u8").reshape(-1, 2)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable
    numbers = numbers[order]
    first = np.ones(len(order), bool)
    first[1:] = (numbers[1:] != numbers[:-1]).any(axis=1)
    keys = np.empty(np.count_nonzero(first), KEY)
    keys["high"], keys["low"], keys["index"] = numbers[first, 0], numbers[first, 1], order[first]
    return keys, order[~first].astype(np.uint32)


def later_occurrences(files: Sequence[Load], number: int, tasks: int, spool: Path) -> NDArray[Any]:
    """DUPLICATE [m], sorted by part: the texts with a key of task `number` of `tasks` that an earlier part has, too.

    `files` hold the keys of `sort_keys`, one file for each part in order; `spool` is a folder for temporary files.
    """
    duplicates = np.concatenate([_later(keys, counts) for keys, counts in ranges(files, KEY, number, tasks, spool)])
    duplicates.view(np.uint64).sort()
    return duplicates


def ranges(
    files: Sequence[Load], dtype: np.dtype[Any], number: int, tasks: int, spool: Path
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """The ranges of task `number`: the keys `dtype` [n] of each range in source order, and their number in each part.

    The keys in `files` [parts] are sorted by their field `high`. `spool` is a folder for temporary files.
    """
    count = RANGES_PER_TASK
    bounds = [(number * count + step) * 2**64 // (tasks * count) for step in range(count + 1)]
    inner = np.array(bounds[1:-1], np.uint64)
    counts = np.empty((len(files), count), np.int64)
    with ExitStack() as stack:
        spools = [
            stack.enter_context(SpooledTemporaryFile(_IN_MEMORY, buffering=1 << 18, dir=str(spool)))
            for _ in range(count)
        ]
        for part, load in enumerate(files):
            keys = _between(load(), "high", bounds[0], bounds[-1])
            cuts = [0, *np.searchsorted(np.ascontiguousarray(keys["high"]), inner).tolist(), len(keys)]
            counts[part] = np.diff(cuts)
            for temporary, a, b in zip(spools, cuts[:-1], cuts[1:], strict=True):
                temporary.write(keys[a:b].data)
        for index, temporary in enumerate(spools):
            temporary.seek(0)
            yield np.frombuffer(temporary.read(), dtype), counts[:, index]


def _later(keys: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """DUPLICATE [m] of one range: the texts that repeat one of an earlier part.

    `keys` KEY [n] are the keys of the range in source order, `counts` [parts] their number in each part.
    """
    high = np.ascontiguousarray(keys["high"])
    order = np.argsort(high)
    equal = high[order[1:]] == high[order[:-1]]
    mask = np.zeros(len(order) + 1, bool)
    mask[1:-1] = equal
    candidates = np.sort(order[mask[1:] | mask[:-1]])  # keys whose upper halves are equal, in source order
    candidates = candidates[np.lexsort((keys["low"][candidates], high[candidates]))]  # stable: source order stays
    low, high = keys["low"][candidates], high[candidates]
    later = candidates[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]
    found = np.empty(len(later), DUPLICATE)
    found["part"] = np.searchsorted(np.cumsum(counts), later, side="right")
    found["index"] = keys["index"][later]
    return found


def listed_in(files: Sequence[Load], part: int, count: int) -> NDArray[np.bool_]:
    """bool [count]: which texts of `part` are listed in `files`, each DUPLICATE [n], sorted."""
    dropped = np.zeros(count, bool)
    for load in files:
        dropped[_between(load(), "part", part, part + 1)["index"]] = True
    return dropped


def _between(values: NDArray[Any], field: str, low: int, high: int) -> NDArray[Any]:
    """A copy of the `values` with low <= `field` < high; `values` are sorted by `field` and need not fit in memory."""
    begin, end = (bisect_left(values, bound, key=lambda value: int(value[field])) for bound in (low, high))
    return np.array(values[begin:end])
