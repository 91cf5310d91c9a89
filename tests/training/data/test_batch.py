import numpy as np

from reread.training.data.batch import spread


def test_the_spread_of_lengths_is_that_of_the_sorted_ones() -> None:
    lengths = np.random.default_rng(0).integers(1, 10_000, 1000)
    ordered = sorted(lengths.tolist())
    shares = ", ".join(f"{share} % {ordered[10 * share - 1]:,}" for share in (50, 90, 95, 99))
    assert spread(lengths) == f"{shares}, largest {ordered[-1]:,}, mean {sum(ordered) / 1000:,.1f}"
    assert spread([7]) == "50 % 7, 90 % 7, 95 % 7, 99 % 7, largest 7, mean 7.0"
