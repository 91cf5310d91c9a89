from collections.abc import Iterator

import numpy as np
import pytest

from training.data import order, random


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


def test_seeking_far_costs_no_more_than_seeking_near(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    bits = random.bits

    def counted(streams: np.ndarray, counters: np.ndarray) -> np.ndarray:
        drawn.append(np.size(counters))
        return bits(streams, counters)

    monkeypatch.setattr(random, "bits", counted)

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
