"""Gradients of biases and of norms: sums over rows, which programs add up in two steps and a fixed order."""

from torch import Tensor

from reread.training.kernels.language import constexpr, jit, tl, triton

PROGRAMS = 256
"""Programs that share the rows, and so partial sums of each column."""


@jit
def _add_up(partial, total, count, columns, ROWS: constexpr, WIDTH: constexpr):
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    summed = tl.zeros([WIDTH], dtype=partial.dtype.element_ty)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        summed += tl.sum(tl.load(partial + at, mask=(row < count)[:, None] & inside[None, :], other=0.0), axis=0)
    tl.store(total + column, summed.to(total.dtype.element_ty), mask=inside)


def add_up(partial: Tensor, total: Tensor) -> None:
    """Write the sum of `partial` [programs, ...] over its first dimension into `total` [...], rounded to its type."""
    columns = total.numel()
    _add_up[(triton.cdiv(columns, 64),)](partial, total, len(partial), columns, ROWS=32, WIDTH=64)
