"""The rows of a batch, in the form that every dataset returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]
"""Arrays by name; their first dimension is the row."""

IGNORED = -100
"""The label of a token that is not predicted."""


def percentiles(values: Sequence[int] | NDArray[np.int64]) -> dict[str, str]:
    """The figures by which papers describe the lengths of a data set (ERNIE-Doc's Tables 8 and 9), by their names."""
    shares = (50, 90, 95, 99)
    found = np.percentile(values, shares, method="inverted_cdf")
    parts = {f"{share} %": f"{value:,.0f}" for share, value in zip(shares, found, strict=True)}
    return {**parts, "largest": f"{max(values):,}", "mean": f"{np.mean(values):,.1f}"}


def spread(values: Sequence[int] | NDArray[np.int64]) -> str:
    """`percentiles` in a cell of a table."""
    return ", ".join(f"{name} {value}" for name, value in percentiles(values).items())


def percentage(part: int, whole: int) -> str:
    """`part` / `whole` as a percentage for tables."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
