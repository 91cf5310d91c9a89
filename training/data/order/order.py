"""The order of samples: any position of an endless shuffled stream, found in constant time.

Epoch e visits the samples of the corpus in a permutation keyed by (seed, e). The permutation is never stored: it is
a Feistel network over two unequal halves with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"), so a resumed run computes its position and skips nothing.

A corpus that is larger than the memory of a machine would be read in all parts at once. Therefore `Order` permutes
extents of neighbouring blocks, deals them to pools, and permutes samples only within a pool, so that an epoch reads one
pool after another. An extent is long, since the pages at its ends are read for two pools.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.training.data.order import random
from reread.training.data.order.random import Purpose

_ROUNDS = 8
_KEPT_COPIES = 4
_EXTENT_TOKENS = 1 << 20


def locate(positions: NDArray[np.int64], per_epoch: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(epoch number, sample index in [0, per_epoch)) of each position [B] of the stream, permuted as a whole."""
    epochs, ranks = np.divmod(positions, per_epoch)
    return epochs, permute(ranks, per_epoch, random.key(seed, epochs))


class _Layout(NamedTuple):
    """The extents of one copy in the order of their pools, and in corpus order within a pool."""

    extents: NDArray[np.int64]
    position_of: NDArray[np.int64]
    """The position of each extent in `extents`."""
    ranks: NDArray[np.int64]
    """[extents + 1]: the number of samples before each position in `extents`."""
    pools: NDArray[np.int64]
    """[pools + 1]: the number of samples before each pool."""

    def pool_of(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.pools, ranks, side="right") - 1


class Order:
    """The endless stream of the samples of a corpus; epoch e shows copy e % copies.

    Sample i lies in extent e if before_extent[e] <= i < before_extent[e + 1]. In each copy the extents are dealt at
    random to pools of nearly the same number of extents. An epoch reads the pools of its copy in turn, and the samples
    of a pool in a permutation of their own. With one pool this is the permutation of all samples.

    The samples of a copy have ranks: their numbers in the order of pools, and in corpus order within a pool.
    """

    def __init__(
        self, before_extent: NDArray[np.int64], pools: int, copies: int, seed: int, kept: int = _KEPT_COPIES
    ) -> None:
        """`kept`: the number of copies whose layouts are kept."""
        self.before_extent, self.pools, self.copies, self.seed = before_extent, pools, copies, seed
        self.samples, self.extents = int(before_extent[-1]), len(before_extent) - 1
        self.slots = np.arange(pools + 1) * self.extents // pools
        """[pools + 1]: the number of extents before each pool."""
        self._layout = lru_cache(kept)(self._draw_layout)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, sample) of each position [B] of the stream."""
        epochs, ranks = np.divmod(positions, self.samples)
        copies = epochs % self.copies
        for layout, here in self._layouts(copies):
            pools = layout.pool_of(ranks[here])
            for pool in np.unique(pools).tolist():
                rows = here[pools == pool]
                begin, end = layout.pools[pool : pool + 2].tolist()
                keys = random.key(self.seed, epochs[rows], *([pool] if self.pools > 1 else []))
                ranks[rows] = begin + permute(ranks[rows] - begin, end - begin, keys)
        return copies, self.at_rank(copies, ranks)

    def pool(
        self, copies: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The rank of each of `samples` [B] in `copies` [B], the first rank of its pool, and the size of its pool."""
        ranks, begin, size = np.empty((3, len(samples)), np.int64)
        extents = np.searchsorted(self.before_extent, samples, side="right") - 1
        for layout, here in self._layouts(copies):
            extent = extents[here]
            ranks[here] = layout.ranks[layout.position_of[extent]] + samples[here] - self.before_extent[extent]
            pools = layout.pool_of(ranks[here])
            begin[here], size[here] = layout.pools[pools], layout.pools[pools + 1] - layout.pools[pools]
        return ranks, begin, size

    def at_rank(self, copies: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample at each rank [B] in `copies` [B]."""
        samples = np.empty_like(ranks)
        for layout, here in self._layouts(copies):
            at = np.searchsorted(layout.ranks, ranks[here], side="right") - 1
            samples[here] = self.before_extent[layout.extents[at]] + ranks[here] - layout.ranks[at]
        return samples

    def current(self, position: int) -> range:
        """The extents of the pool that a position is in, by their numbers in the endless stream."""
        number, rank = divmod(position, self.samples)
        pool = int(self._layout(number % self.copies).pool_of(np.array(rank)))
        begin, end = (number * int(self.slots[-1]) + self.slots[pool : pool + 2]).tolist()
        return range(begin, end)

    def coming(self, position: int) -> range:
        """The extents after `current` that should be in memory, too: the beginning of the next pool, in the proportion
        in which this pool has been read."""
        first = self.current(position).stop
        number, rank = divmod(position, self.samples)
        layout = self._layout(number % self.copies)
        pool = int(layout.pool_of(np.array(rank)))
        begin, end = layout.pools[pool : pool + 2].tolist()
        after = (pool + 1) % self.pools
        extents = int(self.slots[after + 1] - self.slots[after])
        return range(first, first - (-extents * (rank + 1 - begin) // (end - begin)))

    def extent(self, number: int) -> int:
        """Extent `number` of the endless stream."""
        epochs, slot = divmod(number, int(self.slots[-1]))
        return int(self._layout(epochs % self.copies).extents[slot])

    def _layouts(self, copies: NDArray[np.int64]) -> Iterator[tuple[_Layout, NDArray[np.int64]]]:
        """The layout of each copy in `copies` [B], and the indices of that copy."""
        for copy in np.unique(copies).tolist():
            yield self._layout(copy), np.flatnonzero(copies == copy)

    def _draw_layout(self, copy: int) -> _Layout:
        extents = self._draw_extents(copy)
        position_of = np.empty_like(extents)
        position_of[extents] = np.arange(self.extents)
        ranks = np.append(0, np.cumsum(np.diff(self.before_extent)[extents]))
        return _Layout(extents, position_of, ranks, ranks[self.slots])

    def _draw_extents(self, copy: int) -> NDArray[np.int64]:
        """[extents]: the extents in the order of their pools, and in corpus order within a pool."""
        drawn = permute(np.arange(self.extents), self.extents, random.key(self.seed, copy), Purpose.EXTENT_ORDER)
        return np.concatenate([np.sort(part) for part in np.split(drawn, self.slots[1:-1])])


class ReadAhead:
    """Reads the next pool while the current one is used, in step with it and therefore never more than a pool ahead."""

    def __init__(self, order: Order, read: Callable[[int], None], begin: Callable[[list[int]], None]) -> None:
        self._order, self._read, self._begin = order, read, begin
        self._current = range(0)
        self._done = 0

    def follow(self, position: int) -> None:
        """Call `begin` with the extents of a pool that begins at `position`, and `read` for each extent of
        `Order.coming` that was not read ahead before.

        Lanes are not all equally far, so a position in the previous pool begins nothing.
        """
        current = self._order.current(position)
        behind = self._current.start - current.start
        if not self._current or not 0 <= behind <= len(self._current) + 1:
            self._begin([self._order.extent(number) for number in current])
            self._current = current
        if self._order.pools > 1:
            coming = self._order.coming(position)
            begin = self._done if coming.start <= self._done <= coming.stop else coming.start
            for number in range(begin, coming.stop):
                self._read(self._order.extent(number))
            self._done = coming.stop


def cut_extents(tokens: NDArray[np.int64], pool_tokens: int | None) -> NDArray[np.int64]:
    """[extents + 1]: the first block of each extent, for [blocks] tokens: 2^20 tokens, or 1/64 of a smaller pool."""
    size = min(_EXTENT_TOKENS, max(1, pool_tokens // 64)) if pool_tokens else _EXTENT_TOKENS
    before = np.cumsum(tokens) - tokens
    return np.append(np.flatnonzero(np.diff(before // size, prepend=-1)), len(tokens))


def cut_pools(tokens: NDArray[np.int64], pool_tokens: int | None) -> tuple[NDArray[np.int64], int]:
    """`cut_extents`, and the number of pools that they are dealt to."""
    extents = cut_extents(tokens, pool_tokens)
    return extents, pool_count(len(extents) - 1, int(tokens.sum()), pool_tokens)


def pool_count(extents: int, tokens: int, pool_tokens: int | None) -> int:
    """The number of pools of about `pool_tokens` tokens and at least an extent each; without `pool_tokens` one pool."""
    return 1 if pool_tokens is None else max(1, min(extents, -(-tokens // pool_tokens)))


def permute(
    indices: NDArray[np.int64], n: Any, keys: NDArray[np.uint64], purpose: Purpose = Purpose.ORDER
) -> NDArray[np.int64]:
    """The image of each index under its key's permutation of [0, n); `keys` [B] or [], `n` an int or [B]."""
    streams = np.broadcast_to(random.streams(keys, purpose), indices.shape)
    rows: Any = isqrt(n - 1) + 1 if isinstance(n, int) else np.sqrt(n - 1).astype(np.int64) + 1
    columns = -(-n // rows)
    values = _feistel(indices, rows, columns, streams)
    # The network permutes [0, rows * columns): walk on from the fewer than `rows` values outside [0, n).
    while (outside := values >= n).any():
        sides = (rows, columns) if isinstance(n, int) else (rows[outside], columns[outside])
        values[outside] = _feistel(values[outside], *sides, streams[outside])
    return values


def _feistel(values: NDArray[np.int64], rows: Any, columns: Any, streams: NDArray[np.uint64]) -> NDArray[np.int64]:
    row, column = np.divmod(values, columns)
    for number in range(0, _ROUNDS, 2):
        row = (row + _round(streams, number, column, rows)) % rows
        column = (column + _round(streams, number + 1, row, columns)) % columns
    return row * columns + column


def _round(streams: NDArray[np.uint64], number: int, half: NDArray[np.int64], below: Any) -> NDArray[np.int64]:
    return (random.bits(streams, half * _ROUNDS + number) % np.uint64(below)).astype(np.int64)
