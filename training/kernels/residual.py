"""The end of both halves of a layer, LN(residual + dropout(x + bias)), and its backward pass.

Shapes: n tokens, D hidden size. The plain form is `ResidualOutput` in models/blocks.py. A program computes a token, in
the backward pass every `PROGRAMS`-th one, whose parts of the gradients of bias and norm it adds up.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, next_power_of_2, tl
from reread.training.kernels.sums import new_partials, real_type, sum_partials


@jit
def _kept(seed, row, probability, WIDTH: constexpr):
    """Whether dropout keeps each element of a row [WIDTH], by the seed of its call. A call of Philox has four numbers:
    one for each element takes longer than reading and writing it."""
    a, b, c, d = tl.rand4x(seed, row * (WIDTH // 4) + tl.arange(0, WIDTH // 4))
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [WIDTH]) >= probability


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
        value = tl.where(_kept(seed, row, probability, WIDTH), value / (1 - probability), 0.0)
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
    dy, dagain, h, mean, scale, gamma, dx, dresidual, partial, rows, probability, seed,
    TWICE: constexpr, COLUMNS: constexpr, DROPS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    real = mean.dtype.element_ty
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    g = tl.load(gamma + column, mask=inside, other=0.0).to(real)
    of_bias = tl.zeros([WIDTH], dtype=real)
    of_gamma = tl.zeros([WIDTH], dtype=real)
    of_beta = tl.zeros([WIDTH], dtype=real)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        at = tl.cast(row, tl.int64) * COLUMNS + column
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(real)
        if TWICE:
            gradient += tl.load(dagain + at, mask=inside, other=0.0).to(real)
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
            summed = tl.where(_kept(seed, row, probability, WIDTH), summed / (1 - probability), 0.0)
            tl.store(dx + at, summed.to(dx.dtype.element_ty), mask=inside)
        of_bias += summed
    target = partial + program * (3 * COLUMNS) + column
    tl.store(target, of_bias, mask=inside)
    tl.store(target + COLUMNS, of_gamma, mask=inside)
    tl.store(target + 2 * COLUMNS, of_beta, mask=inside)


def _sizes(x: Tensor, probability: float) -> dict[str, Any]:
    columns = x.shape[-1]
    return {"COLUMNS": columns, "DROPS": probability > 0, "WIDTH": next_power_of_2(columns)}


@Operator
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
        num_warps=max(1, next_power_of_2(x.shape[-1]) // 1024),
    )
    return made


def _outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    statistics = [x.new_empty(x.numel() // x.shape[-1], dtype=real_type(x)) for _ in range(2)]
    return x.new_empty(x.shape), x.new_empty(x.shape), statistics[0], statistics[1]


@Operator
def residual_norm_backward(
    dy: Tensor, dagain: Tensor | None, h: Tensor, mean: Tensor, scale: Tensor, gamma: Tensor, drops: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """From one or two gradients of the output, of which the sum counts: those of x and of the residual [..., D], the
    first empty where nothing is dropped and they are equal; and partial sums of those of bias, gamma and beta, at least
    float32 [programs, 3, D]. `drops` is the probability."""
    dx, dresidual, partial = _gradients(dy, drops)
    dy = dy.contiguous()
    _backward[(len(partial),)](
        *(dy, dy if dagain is None else dagain.contiguous(), h, mean, scale, gamma),
        *(dx, dresidual, partial, len(mean), drops, seed),
        TWICE=dagain is not None,
        **_sizes(h, drops),
    )
    return dx, dresidual, partial


def _gradients(dy: Tensor, probability: float) -> tuple[Tensor, Tensor, Tensor]:
    return dy.new_empty(dy.shape if probability else 0), dy.new_empty(dy.shape), new_partials(dy, 3)


residual_norm.register_fake(lambda x, *_: _outputs(x))
residual_norm_backward.register_fake(lambda dy, dagain, h, mean, scale, gamma, drops, seed: _gradients(dy, drops))


def residual_gradients(
    gradients: Sequence[Tensor | None], h: Tensor, mean: Tensor, scale: Tensor, gamma: Tensor, drops: float, seed: int
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """From the gradients of the output's two readers, of which one may be None, those of x and the residual [..., D],
    and of bias, gamma and beta [D]. `drops` is the probability."""
    dy, dagain = sorted(gradients, key=lambda one: one is None)
    dx, dresidual, partial = residual_norm_backward(dy, dagain, h, mean, scale, gamma, drops, seed)
    return dx if drops else dresidual, dresidual, sum_partials(partial, gamma).unbind(0)


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        y, h, mean, scale = residual_norm(x, *others)
        ctx.save_for_backward(h, mean, scale, others[2])
        ctx.probability, ctx.seed = others[5:]
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h, mean, scale, gamma = ctx.saved_tensors  # asked for once, as activation checkpointing wants it
        dx, dresidual, (dbias, *of_norm) = residual_gradients(
            gradients, h, mean, scale, gamma, ctx.probability, ctx.seed
        )
        return dx, dbias, dresidual, *of_norm, None, None, None


def residual_output(x: Tensor, bias: Tensor, residual: Tensor, *others: Any) -> Tensor:
    """LN(residual + dropout(x + bias)) [..., D], with the arguments of `residual_norm`.

    It is read twice by the next half of a layer, as input and as residual. The second is an alias of it, `again`, so
    that the gradients of both come to the same kernel, and no other adds them.
    """
    y, again = _ResidualNorm.apply(x, bias, getattr(residual, "again", residual), *others)
    y.again = again
    return y  # type: ignore[no-any-return]
