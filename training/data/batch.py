"""The rows of a batch, the format of every dataset."""

from typing import Any

from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]
"""Arrays by name; their first dimension is the row."""

IGNORED = -100
"""The label where nothing is predicted."""


def percentage(part: int, whole: int) -> str:
    """A percentage formatted for tables."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
