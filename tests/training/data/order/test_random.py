import numpy as np
import pytest

from reread.training.data.order import random
from reread.training.data.order.random import Purpose

KEYS = random.key(7, 0, np.arange(2000), 3)


def chi_square(counts: np.ndarray) -> float:
    """Distance from uniform in standard deviations of the chi-square distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_a_value_depends_on_its_key_and_place_alone() -> None:
    whole = random.uniform(KEYS, Purpose.SPLIT, 64)
    assert np.array_equal(random.uniform(KEYS[100:101], Purpose.SPLIT, 3), whole[100:101, :3])
    assert np.array_equal(random.words(KEYS[5:9], Purpose.SPLIT, 7), random.words(KEYS, Purpose.SPLIT, 64)[5:9, :7])


def test_the_numbers_never_change() -> None:
    # A change here changes the samples of every run.
    assert [hex(int(random.key(1, 2, word, 4))) for word in (3, 4)] == ["0xfc09460977050923", "0xdacd3ad8324926ca"]
    assert random.uniform(random.key(0, np.arange(1)), Purpose.ACTION, 2).tolist() == [
        [0.026320187544477847, 0.8345092892768742]
    ]


def test_the_function_is_splitmix64() -> None:
    # Output of the reference implementation for seed 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert random.bits(np.array(1234567, np.uint64), np.arange(3)).tolist() == known


@pytest.mark.parametrize("purpose", [Purpose.ORDER, Purpose.ACTION, Purpose.REPLACEMENT])
def test_values_are_uniform(purpose: Purpose) -> None:
    values = random.uniform(KEYS, purpose, 100)
    assert values.min() >= 0 and values.max() < 1
    assert abs(chi_square(np.bincount((values * 1000).astype(int).ravel(), minlength=1000))) < 5
    low_bits = random.words(KEYS, purpose, 100) & np.uint32(255)
    assert abs(chi_square(np.bincount(low_bits.ravel(), minlength=256))) < 5


@pytest.mark.parametrize("word", range(4))
def test_neighbouring_keys_share_nothing(word: int) -> None:
    words = np.zeros((4, 2000), np.int64)
    words[word] = np.arange(2000)
    keys = random.key(0, *words)
    assert len(set(keys.tolist())) == 2000
    values = random.uniform(keys, Purpose.SPLIT, 50)
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.015


def test_a_changed_bit_of_the_key_changes_half_the_bits() -> None:
    flipped = np.array([random.key(1, 1 << bit) for bit in range(40)])
    changes = np.unpackbits((flipped ^ random.key(1, 0)).view(np.uint8)).sum() / 40
    assert 30 < changes < 34


def test_purposes_are_independent() -> None:
    values = [random.uniform(KEYS, purpose, 50).ravel() for purpose in Purpose]
    correlations = np.corrcoef(values) - np.eye(len(values))
    assert abs(correlations).max() < 0.02


def test_integers_stay_below_their_bound() -> None:
    values = random.integers(KEYS, Purpose.SPLIT, 50, 7)
    assert set(values.ravel().tolist()) == set(range(7))
    bounds = np.array([1, 2, 2**40])
    assert (random.integers(KEYS, Purpose.SPLIT, 3, bounds) < bounds).all()
