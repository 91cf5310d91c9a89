"""RAN's norm in one launch.

Shapes: n rows of D columns; the plain form is `standardise` in the model's file. A program computes a row, in the
backward pass every `PROGRAMS`-th one.
"""

from typing import Any

from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, next_power_of_2, tl
from reread.training.kernels.sums import new_partials, real_type, sum_partials


@jit
def _norm(x, weight, bias, y, mean, scale, eps, COLUMNS: constexpr, LEARNED: constexpr, WIDTH: constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    at = row.to(tl.int64) * COLUMNS + column
    value = tl.load(x + at, mask=inside, other=0.0).to(mean.dtype.element_ty)
    centre = tl.sum(value) / COLUMNS
    inverse = 1 / tl.sqrt(tl.sum(value * value) / COLUMNS + eps)
    tl.store(mean + row, centre)
    tl.store(scale + row, inverse)
    value = ((value - centre) * inverse).to(y.dtype.element_ty)
    if LEARNED:
        value = value * tl.load(weight + column, mask=inside, other=0.0)
        value += tl.load(bias + column, mask=inside, other=0.0)
    tl.store(y + at, value, mask=inside)


@jit
def _norm_backward(
    dy, x, weight, mean, scale, dx, partial, rows,
    COLUMNS: constexpr, LEARNED: constexpr, WIDTH: constexpr,
):  # fmt: skip
    real = mean.dtype.element_ty
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    of_weight = tl.zeros([WIDTH], dtype=real)
    of_bias = tl.zeros([WIDTH], dtype=real)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        at = tl.cast(row, tl.int64) * COLUMNS + column
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(real)
        value = tl.load(x + at, mask=inside, other=0.0).to(real)
        inverse = tl.load(scale + row)
        centred = tl.where(inside, value - tl.load(mean + row), 0.0)
        if LEARNED:
            of_weight += gradient * centred * inverse
            of_bias += gradient
            gradient *= tl.load(weight + column, mask=inside, other=0.0).to(real)
        # y = (x - mean) r with r = (mean of x² + eps)^-1/2, so dr / dx_i = -r³ x_i / D
        through_scale = value * (inverse * inverse * inverse) * (tl.sum(gradient * centred) / COLUMNS)
        result = (gradient - tl.sum(gradient) / COLUMNS) * inverse - through_scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
    if LEARNED:
        target = partial + program * (2 * COLUMNS) + column
        tl.store(target, of_weight, mask=inside)
        tl.store(target + COLUMNS, of_bias, mask=inside)


@Operator
def ran_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., D] -> (x - mean) / sqrt(mean of x² + eps), times weight plus bias [D] if there are, and the mean and the
    inverse root, at least float32 [n]."""
    made = _norm_outputs(x)
    y, mean, scale = made
    given = weight is not None
    _norm[(len(mean),)](
        *(x.contiguous(), weight if given else x, bias if given else x, y, mean, scale, eps),
        COLUMNS=x.shape[-1],
        LEARNED=given,
        WIDTH=next_power_of_2(x.shape[-1]),
    )
    return made


def _norm_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    statistics = [x.new_empty(x.numel() // x.shape[-1], dtype=real_type(x)) for _ in range(2)]
    return x.new_empty(x.shape), statistics[0], statistics[1]


@Operator
def ran_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and partial sums of those of weight and bias [programs, 2, D]."""
    dx, partial = _norm_gradients(x)
    _norm_backward[(len(partial),)](
        *(dy.contiguous(), x.contiguous(), x if weight is None else weight, mean, scale, dx, partial, len(mean)),
        COLUMNS=x.shape[-1],
        LEARNED=weight is not None,
        WIDTH=next_power_of_2(x.shape[-1]),
    )
    return dx, partial


def _norm_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), new_partials(x, 2)


ran_norm.register_fake(lambda x, *_: _norm_outputs(x))
ran_norm_backward.register_fake(lambda dy, x, weight, mean, scale: _norm_gradients(x))


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, *_ = inputs
    ctx.save_for_backward(x, *output[1:], *(() if weight is None else (weight,)))
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _norm_back(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, mean, scale, *learned = ctx.saved_tensors
    weight = learned[0] if learned else None
    dx, partial = ran_norm_backward(dy, x, weight, mean, scale)
    d_weight, d_bias = (None, None) if weight is None else sum_partials(partial, weight).unbind(0)
    return dx, d_weight, d_bias, None


ran_norm.register_autograd(_norm_back, setup_context=_keep_norm)
