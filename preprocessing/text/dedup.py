"""Exact deduplication: equal MD5s are found key range by key range, and the first occurrence in source order stays.

Only keys of 20 bytes are moved. Every part leaves its distinct keys sorted. A task takes a section of the key space,
which is one slice of each part's file, found by bisection, and distributes it to ranges on disk, which it searches one
by one. So memory is bounded by a range, however many keys there are and however often a text is repeated, and a part's
file is opened once a task. The number of ranges and tasks depends on the number of keys and changes no result. The
keys of near-duplicates (`minhash`) go through the same ranges.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<u4")])
"""An MD5 as two numbers, and the place of its text among those of its part."""
DUPLICATE = np.dtype([("place", "<u4"), ("part", "<u4")])
"""Read as one number of 64 bits, it sorts by part, then by place."""
KEYS_PER_RANGE = 1 << 20
RANGES_PER_TASK = 16


def task_count(keys: int) -> int:
    """Tasks whose ranges hold about `KEYS_PER_RANGE` keys each (MD5s are uniform); at least 1."""
    return max(1, -(-keys // (KEYS_PER_RANGE * RANGES_PER_TASK)))


def sort_keys(digests: bytes | bytearray) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Sort n concatenated MD5 digests of 16 bytes.

    Returns KEY [u], the first occurrence of each digest, sorted, and the places [n - u] of the repetitions. A place is
    the index of a digest.
    """
    numbers = np.frombuffer(digests, ">u8").astype("<u8").reshape(-1, 2)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable
    numbers = numbers[order]
    first = np.ones(len(order), bool)
    first[1:] = (numbers[1:] != numbers[:-1]).any(axis=1)
    keys = np.empty(np.count_nonzero(first), KEY)
    keys["high"], keys["low"], keys["place"] = numbers[first, 0], numbers[first, 1], order[first]
    return keys, order[~first].astype(np.uint32)


def later_occurrences(files: Sequence[Path], number: int, tasks: int, spool: Path) -> NDArray[Any]:
    """DUPLICATE [m], sorted by part: the keys of task `number` of `tasks` that an earlier part has, too.

    `files` are the `.npy` of `sort_keys`, in the order of the parts; `spool` is a folder for temporary files.
    """
    duplicates = np.concatenate([_later(keys, counts) for keys, counts in ranges(files, number, tasks, spool)])
    duplicates.view(np.uint64).sort()
    return duplicates


def ranges(
    files: Sequence[Path], number: int, tasks: int, spool: Path
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """The ranges of task `number`: the keys of each in source order, and their number in each part.

    The keys in `files` [parts] are sorted by their field `high`.
    """
    count = RANGES_PER_TASK
    bounds = [(number * count + step) * 2**64 // (tasks * count) for step in range(count + 1)]
    inner = np.array(bounds[1:-1], np.uint64)
    counts = np.empty((len(files), count), np.int64)
    with ExitStack() as stack:
        spools = [stack.enter_context(TemporaryFile(buffering=1 << 18, dir=spool)) for _ in range(count)]
        for part, file in enumerate(files):
            keys = _between(np.load(file, mmap_mode="r"), "high", bounds[0], bounds[-1])
            cuts = [0, *np.searchsorted(np.ascontiguousarray(keys["high"]), inner).tolist(), len(keys)]
            counts[part] = np.diff(cuts)
            for temporary, a, b in zip(spools, cuts[:-1], cuts[1:], strict=True):
                temporary.write(keys[a:b].data)
        for index, temporary in enumerate(spools):
            temporary.seek(0)
            yield np.fromfile(temporary, keys.dtype), counts[:, index]


def _later(keys: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """DUPLICATE [m] of one range, of its KEYs and their number in each part."""
    high = np.ascontiguousarray(keys["high"])
    order = np.argsort(high)
    equal = high[order[1:]] == high[order[:-1]]
    mask = np.zeros(len(order) + 1, bool)
    mask[1:-1] = equal
    candidates = np.sort(order[mask[1:] | mask[:-1]])  # equal in the upper half, in source order
    candidates = candidates[np.lexsort((keys["low"][candidates], high[candidates]))]  # stable: equal keys stay in it
    low, high = keys["low"][candidates], high[candidates]
    later = candidates[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]
    found = np.empty(len(later), DUPLICATE)
    found["part"] = np.searchsorted(np.cumsum(counts), later, side="right")
    found["place"] = keys["place"][later]
    return found


def dropped_places(files: Sequence[Path], part: int, count: int) -> NDArray[np.bool_]:
    """bool [count]: the places of `part` that are listed in `files`, the `.npy` of `later_occurrences`."""
    dropped = np.zeros(count, bool)
    for file in files:
        dropped[_between(np.load(file, mmap_mode="r"), "part", part, part + 1)["place"]] = True
    return dropped


def _between(values: NDArray[Any], field: str, low: int, high: int) -> NDArray[Any]:
    """A copy of the `values` with low <= `field` < high; they are sorted by it and need not fit in memory."""
    begin, end = (bisect_left(values, bound, key=lambda value: int(value[field])) for bound in (low, high))
    return np.array(values[begin:end])
