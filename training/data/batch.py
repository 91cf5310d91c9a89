"""The rows of a batch, in the form that every dataset returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]
"""Arrays by name; their first dimension is the row."""

IGNORED = -100
"""The label of a token that is not predicted."""


def spread(values: Sequence[int] | NDArray[np.int64]) -> str:
    """The percentiles of lengths by which papers describe a data set, their mean and the largest, for tables."""
    shares = (50, 90, 95, 99)
    found = np.percentile(values, shares, method="inverted_cdf")
    parts = [f"{share} % {value:,.0f}" for share, value in zip(shares, found, strict=True)]
    return f"{', '.join(parts)}, largest {max(values):,}; mean {np.mean(values):,.1f}"


def percentage(part: int, whole: int) -> str:
    """`part` / `whole` as a percentage for tables."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
