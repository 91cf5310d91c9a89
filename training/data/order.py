"""The order of samples: any position of an endless shuffled stream, found in constant time.

Pass p over the corpus visits its samples in a permutation keyed by (seed, p). The permutation is never stored: it is
a Feistel network over two unequal halves with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"), so a resumed run computes its position and skips nothing.
"""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from training.data import random
from training.data.random import Purpose

_ROUNDS = 8


def locate(positions: NDArray[np.int64], per_pass: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(pass number, sample index in [0, per_pass)) of each position [B] of the stream."""
    passes, ranks = np.divmod(positions, per_pass)
    return passes, permute(ranks, per_pass, random.key(seed, passes))


def permute(indices: NDArray[np.int64], n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The image of each index under its key's permutation of [0, n); `keys` [B] or []."""
    streams = np.broadcast_to(random.streams(keys, Purpose.ORDER), indices.shape)
    rows = isqrt(n - 1) + 1
    columns = -(-n // rows)
    values = _feistel(indices, rows, columns, streams)
    # The network permutes [0, rows * columns): walk on from the fewer than `rows` values outside [0, n).
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], rows, columns, streams[outside])
    return values


def _feistel(values: NDArray[np.int64], rows: int, columns: int, streams: NDArray[np.uint64]) -> NDArray[np.int64]:
    row, column = np.divmod(values, columns)
    for number in range(0, _ROUNDS, 2):
        row = (row + _round(streams, number, column, rows)) % rows
        column = (column + _round(streams, number + 1, row, columns)) % columns
    return row * columns + column


def _round(streams: NDArray[np.uint64], number: int, half: NDArray[np.int64], below: int) -> NDArray[np.int64]:
    return (random.bits(streams, half * _ROUNDS + number) % np.uint64(below)).astype(np.int64)
