"""The rows of a batch, in the form that every dataset returns."""

from typing import Any

from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]
"""Arrays by name; their first dimension is the row."""

IGNORED = -100
"""The label of a token that is not predicted."""


def percentage(part: int, whole: int) -> str:
    """`part` / `whole` as a percentage for tables."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
