"""RAN's norm in one launch, of x or of x + linear sigmoid(gate), the end of its gated residuals.

Shapes: n rows of D columns; the plain forms are `standardise` and `RanGatedResidual` in the model's file. A program
computes a row, in the backward pass every `PROGRAMS`-th one.
"""

from typing import Any

from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, next_power_of_2, tl
from reread.training.kernels.sums import new_partials, real_type, sum_partials


@jit
def _norm(
    x, linear, gate, weight, bias, y, mean, scale, eps,
    COLUMNS: constexpr, GATED: constexpr, LEARNED: constexpr, WIDTH: constexpr,
):  # fmt: skip
    real = mean.dtype.element_ty
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    at = row.to(tl.int64) * COLUMNS + column
    value = tl.load(x + at, mask=inside, other=0.0).to(real)
    if GATED:
        share = 1 / (1 + tl.exp(-tl.load(gate + at, mask=inside, other=0.0).to(real)))
        value += tl.load(linear + at, mask=inside, other=0.0).to(real) * share
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
    dy, x, linear, gate, weight, mean, scale, dx, dlinear, dgate, partial, rows,
    COLUMNS: constexpr, GATED: constexpr, LEARNED: constexpr, WIDTH: constexpr,
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
        if GATED:
            share = 1 / (1 + tl.exp(-tl.load(gate + at, mask=inside, other=0.0).to(real)))
            gated = tl.load(linear + at, mask=inside, other=0.0).to(real) * share
            value += gated
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
        if GATED:
            tl.store(dlinear + at, (result * share).to(dx.dtype.element_ty), mask=inside)
            tl.store(dgate + at, (result * gated * (1 - share)).to(dx.dtype.element_ty), mask=inside)
    if LEARNED:
        target = partial + program * (2 * COLUMNS) + column
        tl.store(target, of_weight, mask=inside)
        tl.store(target + COLUMNS, of_bias, mask=inside)


@Operator
def ran_norm(
    x: Tensor,
    linear: Tensor | None,
    gate: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., D], with linear * sigmoid(gate) [..., D] added if there are -> (x - mean) / sqrt(mean of x² + eps), times
    weight plus bias [D] if there are, and the mean and the inverse root, at least float32 [n]."""
    made = _norm_outputs(x)
    y, mean, scale = made
    _norm[(len(mean),)](
        *_rows(x, linear, gate),
        *(x if weight is None else weight, x if bias is None else bias, y, mean, scale, eps),
        **_sizes(x, weight, gate),
    )
    return made


def _rows(x: Tensor, linear: Tensor | None, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels take them: x where there are no others."""
    if linear is None or gate is None:
        return x.contiguous(), x, x
    return x.contiguous(), linear.contiguous(), gate.contiguous()


def _sizes(x: Tensor, weight: Tensor | None, gate: Tensor | None) -> dict[str, Any]:
    columns = x.shape[-1]
    learned, gated = weight is not None, gate is not None
    return {"COLUMNS": columns, "GATED": gated, "LEARNED": learned, "WIDTH": next_power_of_2(columns)}


def _norm_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    statistics = [x.new_empty(x.numel() // x.shape[-1], dtype=real_type(x)) for _ in range(2)]
    return x.new_empty(x.shape), statistics[0], statistics[1]


@Operator
def ran_norm_backward(
    dy: Tensor,
    x: Tensor,
    linear: Tensor | None,
    gate: Tensor | None,
    weight: Tensor | None,
    mean: Tensor,
    scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and, if there are, of linear and gate [1 or 3, ..., D], and partial sums of those of weight
    and bias [programs, 2, D]."""
    made = _norm_gradients(x, gate)
    gradients, partial = made
    _norm_backward[(len(partial),)](
        *(dy.contiguous(), *_rows(x, linear, gate), x if weight is None else weight, mean, scale),
        *(gradients[0], gradients[len(gradients) // 2], gradients[-1], partial, len(mean)),
        **_sizes(x, weight, gate),
    )
    return made


def _norm_gradients(x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(1 if gate is None else 3, *x.shape), new_partials(x, 2)


ran_norm.register_fake(lambda x, *_: _norm_outputs(x))
ran_norm_backward.register_fake(lambda dy, x, linear, gate, *_: _norm_gradients(x, gate))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _norm_back(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, linear, gate, weight, *statistics = ctx.saved_tensors
    gradients, partial = ran_norm_backward(dy, x, linear, gate, weight, *statistics)
    dx, dlinear, dgate = (gradients[0], None, None) if gate is None else gradients.unbind(0)
    d_weight, d_bias = (None, None) if weight is None else sum_partials(partial, weight).unbind(0)
    return dx, dlinear, dgate, d_weight, d_bias, None


ran_norm.register_autograd(_norm_back, setup_context=_keep)
