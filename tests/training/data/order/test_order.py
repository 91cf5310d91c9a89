from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.training.data.order import order, random
from reread.training.data.order.order import Order, ReadAhead, cut_extents, pool_count


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each call of `random.bits` draws."""
    counts: list[int] = []
    bits = random.bits

    def counted(streams: np.ndarray, counters: np.ndarray) -> np.ndarray:
        counts.append(np.size(counters))
        return bits(streams, counters)

    monkeypatch.setattr(random, "bits", counted)
    return counts


@pytest.mark.parametrize("n", [*range(1, 40), 1000, 1009, 4096, 10_007])
def test_permute_is_a_permutation(n: int) -> None:
    assert np.array_equal(np.sort(order.permute(np.arange(n), n, random.key(3, n))), np.arange(n))


def test_a_permutation_of_huge_ranges_has_no_collision() -> None:
    n = 10**12 + 39
    values = order.permute(np.arange(n - 100_000, n), n, random.key(0))
    assert len(np.unique(values)) == 100_000 and values.min() >= 0 and values.max() < n


def test_every_place_is_equally_likely() -> None:
    n, keys = 12, random.key(0, np.arange(24_000))
    counts = np.stack([np.bincount(order.permute(np.full(24_000, i), n, keys), minlength=n) for i in range(n)])
    assert abs(counts / 2000 - 1).max() < 0.12  # 5 standard deviations


def test_neighbours_are_scattered() -> None:
    values = order.permute(np.arange(100_000), 100_000, random.key(5))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(values, np.arange(100_000))[0, 1]) < 0.02


def test_each_pass_has_every_sample_once_in_an_order_of_its_own() -> None:
    passes, indices = order.locate(np.arange(3 * 500), 500, seed=1)
    assert np.array_equal(passes, np.repeat(np.arange(3), 500))
    each = indices.reshape(3, 500)
    assert np.array_equal(np.sort(each, axis=1), np.tile(np.arange(500), (3, 1)))
    assert (each[0] == each[1]).mean() < 0.02 and (each[1] == each[2]).mean() < 0.02
    assert not np.array_equal(each[0], order.locate(np.arange(500), 500, seed=2)[1])


def test_seeking_far_costs_no_more_than_seeking_near(drawn: list[int]) -> None:
    def cost(step: int) -> int:
        drawn.clear()
        order.locate(step * 4096 + np.arange(4096), 1_000_003, seed=0)
        return sum(drawn)

    assert cost(0) <= 8 * 4096 * 1.02
    assert cost(10**12) <= 8 * 4096 * 1.02


def test_a_position_is_found_without_its_neighbours() -> None:
    positions = np.array([10**15, 3, 777_777_777])
    alone: Iterator[int] = (int(order.locate(np.array([p]), 12_345, 9)[1][0]) for p in positions)
    assert order.locate(positions, 12_345, 9)[1].tolist() == list(alone)


ORDERS: dict[str, Any] = {
    "blocks": st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any),
    "pools": st.integers(1, 30),
    "copies": st.integers(1, 3),
    "seed": st.integers(0, 2**63),
}


def order_of(blocks: list[int], pools: int, copies: int, seed: int) -> Order:
    return Order(np.cumsum([0, *blocks]), min(pools, len(blocks)), copies, seed)


def pools_of(one: Order, copy: int) -> list[list[int]]:
    """The blocks of each pool of a copy, from the places that `block` gives."""
    count = len(one.before_extent) - 1
    blocks = [one.extent(copy * count + slot) for slot in range(count)]
    cuts = [number * count // one.pools for number in range(one.pools + 1)]
    return [blocks[begin:end] for begin, end in pairwise(cuts)]


@given(**ORDERS)
def test_in_pools_each_pass_has_every_sample_once(blocks: list[int], pools: int, copies: int, seed: int) -> None:
    one = order_of(blocks, pools, copies, seed)
    total = sum(blocks)
    shown, samples = one.locate(np.arange(3 * total))
    assert np.array_equal(shown, np.repeat(np.arange(3) % copies, total))
    assert np.array_equal(np.sort(samples.reshape(3, total), axis=1), np.tile(np.arange(total), (3, 1)))


@given(**ORDERS)
def test_a_pass_reads_one_pool_after_another_and_each_block_is_in_one(
    blocks: list[int], pools: int, copies: int, seed: int
) -> None:
    one = order_of(blocks, pools, copies, seed)
    total = sum(blocks)
    samples = one.locate(np.arange(2 * total))[1].reshape(2, total)
    for number in range(2):
        parts = pools_of(one, number % copies)
        assert sorted(block for part in parts for block in part) == list(range(len(blocks)))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        done = 0
        for part in parts:
            size = sum(blocks[block] for block in part)
            read = np.searchsorted(one.before_extent, samples[number, done : done + size], side="right") - 1
            assert set(read.tolist()) == {block for block in part if blocks[block]}
            done += size


@given(**ORDERS)
def test_any_positions_in_any_order_are_found_alone_as_together(
    blocks: list[int], pools: int, copies: int, seed: int
) -> None:
    one = order_of(blocks, pools, copies, seed)
    total = sum(blocks)
    far = 10**9 * total
    positions = np.random.default_rng(seed).permutation(np.concatenate([np.arange(total), far + np.arange(total)]))
    shown, samples = one.locate(positions)
    for at in (0, len(positions) // 2, len(positions) - 1):
        alone = order_of(blocks, pools, copies, seed).locate(positions[at : at + 1])
        assert (int(alone[0][0]), int(alone[1][0])) == (shown[at], samples[at])


@given(**ORDERS)
def test_ranks_lead_back_to_their_samples(blocks: list[int], pools: int, copies: int, seed: int) -> None:
    one = order_of(blocks, pools, copies, seed)
    samples = np.random.default_rng(seed).permutation(sum(blocks))
    shown = samples % copies
    ranks, begin, size = one.pool(shown, samples)
    assert np.array_equal(one.at_rank(shown, ranks), samples)
    assert ((begin <= ranks) & (ranks < begin + size)).all()
    for copy in range(copies):
        for part in pools_of(one, copy):
            inside = np.isin(np.searchsorted(one.before_extent, samples, side="right") - 1, part) & (shown == copy)
            assert len(set(begin[inside].tolist())) <= 1
            assert set(size[inside].tolist()) <= {sum(blocks[block] for block in part)}


def test_one_pool_is_the_permutation_of_all_samples() -> None:
    """A corpus that fits in a pool is read as by earlier versions."""
    positions = np.arange(500, 3 * 700)
    passes, expected = order.locate(positions, 700, 9)
    shown, samples = Order(np.array([0, 100, 100, 650, 700]), 1, 2, 9).locate(positions)
    assert np.array_equal(samples, expected) and np.array_equal(shown, passes % 2)


def test_pools_are_drawn_anew_in_each_copy_and_samples_in_each_pass() -> None:
    one = order_of([10] * 400, 8, 2, 0)
    samples = one.locate(np.arange(4 * 4000))[1].reshape(4, 4000)
    blocks = [set((part[:500] // 10).tolist()) for part in samples]
    assert len(blocks[0]) == 50 and blocks[0] == blocks[2] and len(blocks[0] & blocks[1]) < 20
    assert (samples[0] == samples[2]).mean() < 0.02
    assert abs(np.corrcoef(samples[0][:500], np.arange(500))[0, 1]) < 0.15


@pytest.mark.parametrize(
    ("blocks", "tokens", "pool", "count"),
    [(100, 26_000_000, None, 1), (100, 2**28, 2**30, 1), (4097, 2**30 + 5, 2**30, 2), (3, 900, 1, 3), (0, 0, 5, 1)],
)
def test_a_corpus_that_fits_in_a_pool_has_one(blocks: int, tokens: int, pool: int | None, count: int) -> None:
    assert pool_count(blocks, tokens, pool) == count


@given(
    tokens=st.lists(st.integers(1, 3_000_000), max_size=40),
    pool_tokens=st.none() | st.integers(1, 2**31),
)
def test_extents_are_neighbouring_blocks(tokens: list[int], pool_tokens: int | None) -> None:
    extents = cut_extents(np.array(tokens, np.int64), pool_tokens).tolist()
    size = 2**20 if pool_tokens is None else min(2**20, max(1, pool_tokens // 64))
    assert extents[0] == 0 and extents[-1] == len(tokens)
    sums = [sum(tokens[begin:end]) for begin, end in pairwise(extents)]
    assert all(begin < end for begin, end in pairwise(extents)) or not tokens
    assert all(one + two > size for one, two in pairwise(sums[:-1]))
    assert max(sums, default=0) < size + max(tokens, default=1)


def test_seeking_in_pools_costs_the_same_anywhere(drawn: list[int]) -> None:
    def cost(step: int) -> int:
        one = order_of([1000] * 1000, 10, 7, 0)
        drawn.clear()
        one.locate(step * 4096 + np.arange(4096))
        return sum(drawn)

    most = 8 * 1.1 * (4096 + 2 * 1000)  # the samples, and the blocks of two copies at a border
    assert cost(0) <= most and cost(10**9) <= most and cost(10**12) <= most


@given(steps=st.integers(1, 60), **ORDERS)
def test_reading_ahead_is_front_to_back_once_a_pass_and_a_pool_ahead_at_most(
    steps: int, blocks: list[int], pools: int, copies: int, seed: int
) -> None:
    one = order_of(blocks, pools, copies, seed)
    total, count = sum(blocks), len(blocks)
    asked: list[int] = []
    ahead = ReadAhead(one, asked.append, lambda pool: None)
    for position in range(0, 3 * total, steps):
        ahead.follow(position)
    if one.pools == 1:
        assert asked == []
        return
    expected = [one.extent(number) for number in range(5 * count)]
    if min(blocks) > 0 and steps == 1:  # no pool is stepped over
        first = count // one.pools
        assert asked == expected[first : first + len(asked)]
        assert 3 * count <= first + len(asked) <= 3 * count + -(-count // one.pools)


def test_reading_ahead_begins_with_the_next_pool_after_a_seek() -> None:
    one, asked = order_of([10] * 40, 4, 2, 0), []
    ahead = ReadAhead(one, asked.append, lambda pool: None)
    position = 10**9 * 400 + 150  # in the middle of the second pool of ten blocks
    ahead.follow(position)
    parts = pools_of(one, 10**9 % 2)
    assert asked == parts[2][:6]
    ahead.follow(position)
    ahead.follow(position + 10)
    assert asked == parts[2][:7]
    ahead.follow(0)
    assert asked[7:] == pools_of(one, 0)[1][:1]


def test_a_pool_begins_once_although_lanes_are_not_equally_far() -> None:
    one, begun = order_of([10] * 40, 4, 2, 0), []
    ahead = ReadAhead(one, lambda extent: None, begun.append)
    for position in (0, 99, 100, 95, 199, 205, 150, 399, 400):
        ahead.follow(position)
    first, second = pools_of(one, 0), pools_of(one, 1)
    assert begun == [*first, second[0]]
    ahead.follow(0)  # from the beginning again
    assert begun[5:] == [first[0]]
