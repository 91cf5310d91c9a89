"""Makes micro-batches with little padding: rows of similar length together, cut to the longest of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.training.data.batch import Rows

MULTIPLE = 8
"""Micro-batches are trimmed to a multiple of this number of tokens: tensor cores take half-precision matrices whose
sides are multiples of 8. Models need no more. Matrix products have rows x tokens as one side, which fills their tiles
at any length; attention kernels mask the end of their last tile; RAN and Longformer fill up their own windows, and only
their attention computes on that."""
PASS_SHARE = 1 / 32
"""The constant cost of a forward and backward pass, as a share of the cost of a full one, since an operation takes
microseconds even if there is nothing to do. The least that is assumed, and what evaluation and prediction take; a run
trains with its own share (training/run/passes.py)."""


def pieces(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`rows` cut into pieces of at most `size`."""
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def by_length(rows: NDArray[np.int64], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """`rows` [n] of `lengths` [n], the shortest first; rows of one length stay in order."""
    return rows[np.argsort(lengths, kind="stable")]


def micro_batches(
    rows: NDArray[np.int64], lengths: NDArray[Any], columns: int, size: int, pass_share: float = PASS_SHARE
) -> list[NDArray[np.int64]]:
    """`rows` [n] of `lengths` [n] in micro-batches of at most `size`, to be trimmed; the longest rows come last, whose
    backward pass hides the most of the gradients' reduction.

    They minimise the sum of computed tokens and of the constant cost of each pass, `pass_share` of a full one.
    `columns`: tokens in a full row.
    """
    widths = _width(np.sort(lengths), columns)
    rows = by_length(rows, lengths)
    if len(rows) == 0 or widths[0] == widths[-1]:
        return pieces(rows, size)
    a_pass = pass_share * size * columns
    least, begins = np.zeros(len(rows) + 1), np.zeros(len(rows) + 1, np.int64)
    for end, width in enumerate(widths.tolist(), 1):
        begin = np.arange(max(0, end - size), end)
        costs = least[begin] + (end - begin) * width + a_pass
        best = costs.argmin()
        least[end], begins[end] = costs[best], begin[best]
    found, end = [], len(rows)
    while end:
        found.append(rows[begins[end] : end])
        end = int(begins[end])
    return found[::-1]


def trimmed(rows: Rows, *, keeps_last: bool = False) -> Rows:
    """`rows` without columns that hold only padding. With `keeps_last` the last token of a row is in the last column,
    behind its padding, and stays there."""
    columns = rows["attention_mask"].shape[1]
    width = int(_width(rows["attention_mask"].sum(axis=1).max(), columns))
    if width == columns:
        return rows
    kept = np.r_[: width - 1, columns - 1] if keeps_last else slice(width)
    return {name: values[:, kept] if values.shape[1:] == (columns,) else values for name, values in rows.items()}


def _width(length: Any, columns: int) -> Any:
    """Columns of a micro-batch whose longest row has `length` tokens, a number or an array."""
    return np.minimum(columns, -(-length // MULTIPLE) * MULTIPLE)
