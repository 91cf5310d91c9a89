"""The end of both halves of a layer, LN(residual + dropout(x + bias)), and its backward pass.

Shapes: n tokens, D hidden size. The plain form is `ResidualOutput` in models/blocks.py. A program computes a token, in
the backward pass every `PROGRAMS`-th one, whose parts of the gradients of bias and norm it adds up.
"""

from typing import Any

import torch
from torch import Tensor

from reread.training.kernels.language import constexpr, jit, tl, triton
from reread.training.kernels.sums import new_partials, real_type, sum_partials


@jit
def _kept(seed, row, column, columns, probability):
    """Whether dropout keeps each element of a row, by the seed of its call."""
    return tl.rand(seed, row * columns + column) >= probability


@jit
def _forward(
    x, bias, residual, gamma, beta, y, h, mean, scale, eps, probability, seed,
    COLUMNS: constexpr, DROPS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    real = mean.dtype.element_ty
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    at = row.to(tl.int64) * COLUMNS + column
    value = tl.load(x + at, mask=inside, other=0.0).to(real) + tl.load(bias + column, mask=inside, other=0.0).to(real)
    if DROPS:
        value = tl.where(_kept(seed, row, column, COLUMNS, probability), value / (1 - probability), 0.0)
    summed = (value + tl.load(residual + at, mask=inside, other=0.0).to(real)).to(h.dtype.element_ty)
    tl.store(h + at, summed, mask=inside)
    value = summed.to(real)
    centre = tl.sum(tl.where(inside, value, 0.0)) / COLUMNS
    value = tl.where(inside, value - centre, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(value * value) / COLUMNS + eps)
    tl.store(mean + row, centre)
    tl.store(scale + row, inverse)
    g = tl.load(gamma + column, mask=inside, other=0.0).to(real)
    b = tl.load(beta + column, mask=inside, other=0.0).to(real)
    tl.store(y + at, (value * inverse * g + b).to(y.dtype.element_ty), mask=inside)


@jit
def _backward(
    dy, h, mean, scale, gamma, dx, dresidual, partial, rows, probability, seed,
    COLUMNS: constexpr, DROPS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    real = mean.dtype.element_ty
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    g = tl.load(gamma + column, mask=inside, other=0.0).to(real)
    of_bias = tl.zeros([WIDTH], dtype=real)
    of_gamma = tl.zeros([WIDTH], dtype=real)
    of_beta = tl.zeros([WIDTH], dtype=real)
    for row in range(program, rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * COLUMNS + column
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(real)
        inverse = tl.load(scale + row)
        normal = (tl.load(h + at, mask=inside, other=0.0).to(real) - tl.load(mean + row)) * inverse
        normal = tl.where(inside, normal, 0.0)
        of_gamma += gradient * normal
        of_beta += gradient
        gradient *= g
        first = tl.sum(gradient) / COLUMNS
        second = tl.sum(gradient * normal) / COLUMNS
        summed = tl.where(inside, (gradient - first - normal * second) * inverse, 0.0)
        tl.store(dresidual + at, summed.to(dresidual.dtype.element_ty), mask=inside)
        if DROPS:
            summed = tl.where(_kept(seed, row, column, COLUMNS, probability), summed / (1 - probability), 0.0)
            tl.store(dx + at, summed.to(dx.dtype.element_ty), mask=inside)
        of_bias += summed
    target = partial + program * (3 * COLUMNS) + column
    tl.store(target, of_bias, mask=inside)
    tl.store(target + COLUMNS, of_gamma, mask=inside)
    tl.store(target + 2 * COLUMNS, of_beta, mask=inside)


def _sizes(x: Tensor, probability: float) -> dict[str, Any]:
    columns = x.shape[-1]
    return {"COLUMNS": columns, "DROPS": probability > 0, "WIDTH": triton.next_power_of_2(columns)}


@torch.library.custom_op("reread::residual_norm", mutates_args=())
def residual_norm(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    probability: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, residual [..., D]; bias, gamma, beta [D] -> LN(h) and h = residual + dropout(x + bias) [..., D], and the mean
    and the inverse deviation of h, at least float32 [n]."""
    made = _outputs(x)
    y, h, mean, scale = made
    _forward[(len(mean),)](
        *(x.contiguous(), bias, residual.contiguous(), gamma, beta, y, h, mean, scale, eps, probability, seed),
        **_sizes(x, probability),
    )
    return made


def _outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    statistics = [x.new_empty(x.numel() // x.shape[-1], dtype=real_type(x)) for _ in range(2)]
    return x.new_empty(x.shape), x.new_empty(x.shape), statistics[0], statistics[1]


@torch.library.custom_op("reread::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    dy: Tensor, h: Tensor, mean: Tensor, scale: Tensor, gamma: Tensor, probability: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the residual [..., D], the first empty where nothing is dropped and they are equal; and
    partial sums of those of bias, gamma and beta, at least float32 [programs, 3, D]."""
    dx, dresidual, partial = _gradients(dy, probability)
    _backward[(len(partial),)](
        *(dy.contiguous(), h, mean, scale, gamma, dx, dresidual, partial, len(mean), probability, seed),
        **_sizes(h, probability),
    )
    return dx, dresidual, partial


def _gradients(dy: Tensor, probability: float) -> tuple[Tensor, Tensor, Tensor]:
    return dy.new_empty(dy.shape if probability else 0), dy.new_empty(dy.shape), new_partials(dy, 3)


residual_norm.register_fake(lambda x, *_: _outputs(x))
residual_norm_backward.register_fake(lambda dy, h, mean, s, g, probability, _: _gradients(dy, probability))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[3])
    ctx.probability, ctx.seed = inputs[6:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _back(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    h, mean, scale, gamma = ctx.saved_tensors
    dx, dresidual, partial = residual_norm_backward(dy, h, mean, scale, gamma, ctx.probability, ctx.seed)
    dbias, dgamma, dbeta = sum_partials(partial, gamma).unbind(0)
    return dx if ctx.probability else dresidual, dbias, dresidual, dgamma, dbeta, None, None, None


residual_norm.register_autograd(_back, setup_context=_keep)
