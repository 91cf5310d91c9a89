"""The points of a run's figures, which are read line by line and kept in bounded memory."""

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_KEPT = 4096
"""Most stretches of a curve. The points of a longer one are put together to stretches of 2, 4, 8, ... neighbours."""
BATCH = 4000
"""Lines that are read at a time."""

Numbers = NDArray[np.float64]


class Points(NamedTuple):
    """A curve as stretches of neighbouring points, of one point each if it is short."""

    counts: Numbers
    """The number of points in each stretch."""
    x_sum: Numbers
    y_sum: Numbers
    low: Numbers
    """The least y of each stretch."""
    high: Numbers
    first: Numbers
    """The first point of each stretch, and its last one: (stretches, 2)."""
    last: Numbers

    @classmethod
    def of(cls, x: Sequence[float] | Numbers, y: Sequence[float] | Numbers) -> "Points":
        xs, ys = np.asarray(x, float), np.asarray(y, float)
        pairs = np.stack([xs, ys], 1)
        return cls(np.ones(len(xs)), xs, ys, ys, ys, pairs, pairs)

    @property
    def x(self) -> Numbers:
        """The mean of each stretch."""
        return self.x_sum / self.counts

    @property
    def y(self) -> Numbers:
        """The mean of each stretch."""
        return self.y_sum / self.counts

    def joined(self, begins: NDArray[np.intp]) -> "Points":
        """Longer stretches, each from one of `begins`, which are indices of stretches, to the next."""
        ends = np.append(begins[1:], len(self.counts)) - 1
        counts, x_sum, y_sum = (np.add.reduceat(one, begins) for one in (self.counts, self.x_sum, self.y_sum))
        low, high = np.minimum.reduceat(self.low, begins), np.maximum.reduceat(self.high, begins)
        return Points(counts, x_sum, y_sum, low, high, self.first[begins], self.last[ends])

    def scaled(self, factor: float) -> "Points":
        """With y times `factor`, which is positive."""
        y_sum, low, high = (factor * one for one in (self.y_sum, self.low, self.high))
        return self._replace(
            y_sum=y_sum, low=low, high=high, first=self.first * (1, factor), last=self.last * (1, factor)
        )


NO_POINTS = Points.of([], [])


def with_more(points: Points, later: Points) -> Points:
    """`points` and those that follow, in stretches of equally many points, a power of two; the last one may be shorter.

    The stretches are the same in whatever batches the points come.
    """
    points = Points(*(np.concatenate(pair) for pair in zip(points, later, strict=True)))
    begins, total = np.cumsum(points.counts) - points.counts, points.counts.sum()
    size = points.counts[0]
    while total > MOST_KEPT * size:
        size *= 2
    return points.joined(np.flatnonzero(np.diff(begins // size, prepend=-1)))


def read_points(lines: Iterable[dict[str, Any]]) -> dict[str, Points]:
    """The values of each figure over the step, by name in the order in which they appear. All values are finite."""
    found: dict[str, Points] = {}
    rest = iter(lines)
    while batch := list(islice(rest, BATCH)):
        steps = _column(batch, "step")
        for name in dict.fromkeys(name for names in dict.fromkeys(map(tuple, batch)) for name in names):
            values = _column(batch, name)
            there = ~np.isnan(values)
            found[name] = with_more(found.get(name, NO_POINTS), Points.of(steps[there], values[there]))
    return found


def _column(lines: Sequence[dict[str, Any]], name: str) -> Numbers:
    """The value of each line, or NaN."""
    return np.fromiter(map(dict.get, lines, repeat(name), repeat(nan)), float, len(lines))
