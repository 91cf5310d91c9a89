"""The updates of LAMB and Adam on flat buffers, in one to three launches.

A flat buffer holds tensors one behind the other, each from the beginning of a block on, and is zero between them: a
block belongs to one tensor, and nothing needs a mask. Shapes: n elements, of which a program updates a block.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, tl

# Triton's kernels


@jit
def _new_moments(gradient, first, second, at, learns, beta2, rest1, rest2):
    """The moments at `at` with `gradient` taken in; they are stored where the tensor learns."""
    m = tl.load(first + at)
    m += (gradient - m) * rest1
    v = tl.load(second + at) * beta2 + gradient * gradient * rest2
    tl.store(first + at, m, mask=learns)
    tl.store(second + at, v, mask=learns)
    return m, v


@jit
def _move_to(weight, weights, halves, at, HALVES: constexpr):
    tl.store(weights + at, weight)
    if HALVES:
        tl.store(halves + at, weight.to(halves.dtype.element_ty))


@jit
def _moments(
    weights, gradients, first, second, owners, begins, decays, sums,
    factor, beta2, rest1, rest2, unbias1, unbias2, eps, INSIDE: constexpr, BLOCK: constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    learns = at >= tl.load(begins + owner)
    weight = tl.load(weights + at)
    gradient = tl.load(gradients + at) * factor
    m, v = _new_moments(gradient, first, second, at, learns, beta2, rest1, rest2)
    if INSIDE:
        root = tl.sqrt(v / unbias2 + eps)
    else:
        root = tl.sqrt(v / unbias2) + eps
    direction = m / unbias1 / root + tl.load(decays + owner) * weight
    tl.store(sums + 2 * block, tl.sum(tl.where(learns, weight * weight, 0.0)))
    tl.store(sums + 2 * block + 1, tl.sum(tl.where(learns, direction * direction, 0.0)))


@jit
def _sum_by_tensor(sums, ends, squares, BLOCK: constexpr):
    owner = tl.program_id(0)
    begin = tl.load(ends + owner)
    end = tl.load(ends + owner + 1)
    above = tl.zeros([BLOCK], dtype=tl.float64)
    below = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(begin, end, BLOCK):
        block = start + tl.arange(0, BLOCK)
        above += tl.load(sums + 2 * block, mask=block < end, other=0.0).to(tl.float64)
        below += tl.load(sums + 2 * block + 1, mask=block < end, other=0.0).to(tl.float64)
    tl.store(squares + 2 * owner, tl.sum(above))
    tl.store(squares + 2 * owner + 1, tl.sum(below))


@jit
def _apply_lamb(
    weights, first, second, halves, owners, begins, decays, rates, squares,
    rate, unbias1, unbias2, eps, NEZHA: constexpr, HALVES: constexpr, BLOCK: constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + at)
    decay = tl.load(decays + owner)
    above = tl.load(squares + 2 * owner)
    below = tl.load(squares + 2 * owner + 1)
    ratio = tl.where((above > 0) & (below > 0), tl.sqrt(above / tl.where(below > 0, below, 1.0)), 1.0)
    if NEZHA:
        ratio = tl.minimum(ratio, 10.0)
    else:
        ratio = tl.where(decay != 0, ratio, 1.0)
    step = (ratio * rate).to(weight.dtype) * tl.load(rates + owner)
    direction = tl.load(first + at) / unbias1 / (tl.sqrt(tl.load(second + at) / unbias2) + eps) + decay * weight
    weight = tl.where(at >= tl.load(begins + owner), weight - step * direction, weight)
    _move_to(weight, weights, halves, at, HALVES)


@jit
def _adam(
    weights, gradients, first, second, halves, owners, begins, decays, rates,
    factor, rate, beta2, rest1, rest2, unbias1, unbias2, eps, HALVES: constexpr, BLOCK: constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    learns = at >= tl.load(begins + owner)
    gradient = tl.load(gradients + at) * factor
    m, v = _new_moments(gradient, first, second, at, learns, beta2, rest1, rest2)
    weight = tl.load(weights + at)
    step = rate * tl.load(rates + owner)
    moved = weight - step * tl.load(decays + owner) * weight - step * (m / unbias1 / (tl.sqrt(v / unbias2) + eps))
    weight = tl.where(learns, moved, weight)
    _move_to(weight, weights, halves, at, HALVES)


# The operators


class Tables(NamedTuple):
    """What is known of each tensor and block of flat buffers."""

    owners: Tensor
    """int32 [blocks]: the tensor of each block."""
    ends: Tensor
    """int32 [tensors + 1]: the first block of each tensor, and the number of blocks."""
    begins: Tensor
    """int64 [tensors]: the first element that learns."""
    decays: Tensor
    """[tensors], in the type of the weights."""
    rates: Tensor
    """[tensors]: factors on the learning rate."""


@partial(Operator, mutates=("first", "second"))
def lamb_moments(
    weights: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    owners: Tensor,
    begins: Tensor,
    decays: Tensor,
    factor: float,
    beta1: float,
    beta2: float,
    unbias1: float,
    unbias2: float,
    eps: float,
    inside: bool,
) -> Tensor:
    """Take `factor` times the gradients into the moments; returns by block the sums of squares [blocks, 2] of weights
    and of the directions m / unbias1 / root + decay w, with eps `inside` the root or beside it."""
    sums = weights.new_empty(len(owners), 2)
    # 1 - beta is taken here, in double precision: a kernel's numbers are float32
    numbers = factor, beta2, 1 - beta1, 1 - beta2, unbias1, unbias2, eps
    _moments[(len(owners),)](
        *(weights, gradients, first, second, owners, begins, decays, sums),
        *numbers,
        INSIDE=inside,
        BLOCK=len(weights) // len(owners),
    )
    return sums


@lamb_moments.register_fake
def _(weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor, owners: Tensor, *others: object) -> Tensor:
    return weights.new_empty(len(owners), 2)


@Operator
def sum_by_tensor(sums: Tensor, ends: Tensor) -> Tensor:
    """`sums` [blocks, 2] by tensor, float64 [tensors, 2], added in a fixed order."""
    squares = sums.new_empty(len(ends) - 1, 2, dtype=torch.float64)
    _sum_by_tensor[(len(squares),)](sums, ends, squares, BLOCK=1024)
    return squares


@sum_by_tensor.register_fake
def _(sums: Tensor, ends: Tensor) -> Tensor:
    return sums.new_empty(len(ends) - 1, 2, dtype=torch.float64)


@partial(Operator, mutates=("weights", "halves"))
def lamb_apply(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    halves: Tensor | None,
    owners: Tensor,
    begins: Tensor,
    decays: Tensor,
    rates: Tensor,
    squares: Tensor,
    rate: float,
    unbias1: float,
    unbias2: float,
    eps: float,
    nezha: bool,
) -> None:
    """Move the weights by the directions times rate and trust ratio, and round them to `halves`."""
    _apply_lamb[(len(owners),)](
        *(weights, first, second, weights if halves is None else halves, owners, begins, decays, rates, squares),
        *(rate, unbias1, unbias2, eps),
        NEZHA=nezha,
        HALVES=halves is not None,
        BLOCK=len(weights) // len(owners),
    )


@partial(Operator, mutates=("weights", "first", "second", "halves"))
def adam_apply(
    weights: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    halves: Tensor | None,
    owners: Tensor,
    begins: Tensor,
    decays: Tensor,
    rates: Tensor,
    factor: float,
    rate: float,
    beta1: float,
    beta2: float,
    unbias1: float,
    unbias2: float,
    eps: float,
) -> None:
    """AdamW's step on `factor` times the gradients; rounds the weights to `halves`."""
    _adam[(len(owners),)](
        *(weights, gradients, first, second, weights if halves is None else halves, owners, begins, decays, rates),
        *(factor, rate, beta2, 1 - beta1, 1 - beta2, unbias1, unbias2, eps),
        HALVES=halves is not None,
        BLOCK=len(weights) // len(owners),
    )


for _operator in (lamb_apply, adam_apply):
    _operator.register_fake(lambda *_, **__: None)
