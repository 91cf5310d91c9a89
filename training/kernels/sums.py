"""Sums of gradients: of biases and norms over rows, which programs add up in two steps and a fixed order; and of all
parameters over micro-batches."""

from functools import partial

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, tl

PROGRAMS = 512
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


def real_type(x: Tensor) -> torch.dtype:
    """float32, or float64 if x is: the type of sums."""
    return torch.promote_types(x.dtype, torch.float32)


def new_partials(x: Tensor, count: int) -> Tensor:
    """Room for `count` partial sums of each column of x [..., D] by the programs that share its rows
    [programs, count, D], at least float32."""
    columns = x.shape[-1]
    return x.new_empty(min(PROGRAMS, x.numel() // columns), count, columns, dtype=real_type(x))


@Operator
def sum_partials(partial: Tensor, like: Tensor) -> Tensor:
    """`partial` [programs, k, D] summed over programs -> [k, D], in the type of `like`."""
    total = like.new_empty(partial.shape[1:])
    columns = total.numel()
    _add_up[(cdiv(columns, 16),)](partial, total, len(partial), columns, ROWS=128, WIDTH=16)
    return total


sum_partials.register_fake(lambda partial, like: like.new_empty(partial.shape[1:]))


@jit
def _add_to(table, VALUE: constexpr, SUM: constexpr, WIDTH: constexpr):
    row = table + 3 * tl.program_id(1)
    size = tl.load(row + 2)
    start = tl.program_id(0).to(tl.int64) * WIDTH
    at = start + tl.arange(0, WIDTH)
    total = tl.load(row).to(tl.pointer_type(SUM))
    value = tl.load(row + 1).to(tl.pointer_type(VALUE))
    if start + WIDTH <= size:
        tl.store(total + at, tl.load(total + at) + tl.load(value + at).to(SUM))
    elif start < size:
        inside = at < size
        summed = tl.load(total + at, mask=inside, other=0.0) + tl.load(value + at, mask=inside, other=0.0).to(SUM)
        tl.store(total + at, summed, mask=inside)


@partial(Operator, mutates=("totals",))
def add_to(totals: list[Tensor], values: list[Tensor]) -> None:
    """Add `values` to `totals` one by one, in one launch; all are contiguous, and no total is there twice."""
    values = [value.contiguous() for value in values]
    pairs = zip(totals, values, strict=True)
    rows = [(total.data_ptr(), value.data_ptr(), value.numel()) for total, value in pairs]
    types = {"VALUE": values[0].dtype, "SUM": totals[0].dtype}
    _add_to[(cdiv(max(size for *_, size in rows), 4096), len(rows))](
        torch.tensor(rows, pin_memory=totals[0].is_cuda).to(totals[0].device, non_blocking=True),
        **{name: getattr(tl, str(one).removeprefix("torch.")) for name, one in types.items()},
        WIDTH=4096,
    )


add_to.register_fake(lambda totals, values: None)
