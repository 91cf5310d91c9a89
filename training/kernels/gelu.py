"""gelu(x + bias) and its backward pass with the gradient of the bias.

Shapes: n tokens, C columns. The plain form is `Activated` in models/blocks.py. A program computes `WIDTH` columns of
a token, in the backward pass half as many of every `PROGRAMS`-th one.
"""

from typing import Any

from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, real, tl
from reread.training.kernels.sums import new_partials, sum_partials

WIDTH = 1024


@jit
def _share(value, TANH: constexpr):
    """The share of `value` that is passed on."""
    if TANH:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        share = 1 - 1 / (1 + tl.exp(2 * inner))  # (1 + tanh(inner)) / 2
    else:
        share = 0.5 * (1 + tl.erf(value * 0.7071067811865476))
    return share


@jit
def _forward(x, bias, y, rows, columns, TANH: constexpr, REAL: constexpr, WIDTH: constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    value = tl.load(x + at, mask=inside, other=0.0).to(REAL) + tl.load(bias + column, mask=inside, other=0.0).to(REAL)
    tl.store(y + at, (value * _share(value, TANH)).to(y.dtype.element_ty), mask=inside)


@jit
def _backward(
    dy, x, bias, dx, partial, rows, columns,
    TANH: constexpr, REAL: constexpr, WIDTH: constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    added = tl.load(bias + column, mask=inside, other=0.0).to(REAL)
    of_bias = tl.zeros([WIDTH], dtype=REAL)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        at = tl.cast(row, tl.int64) * columns + column
        value = tl.load(x + at, mask=inside, other=0.0).to(REAL) + added
        share = _share(value, TANH)
        if TANH:
            slope = 2 * share * (1 - share) * 0.7978845608028654 * (1 + 3 * 0.044715 * value * value)
        else:
            slope = 0.3989422804014327 * tl.exp(-0.5 * value * value)
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(REAL) * (share + value * slope)
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=inside)
        of_bias += gradient
    tl.store(partial + program * columns + column, of_bias, mask=inside)


@Operator
def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """gelu(x + bias) of x [..., C], by tanh's approximation or exactly."""
    y = x.new_empty(x.shape)
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    grid = rows, cdiv(columns, WIDTH)
    _forward[grid](x.contiguous(), bias, y, rows, columns, TANH=tanh, REAL=real(x), WIDTH=WIDTH)
    return y


@Operator
def bias_gelu_backward(dy: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x [..., C], and partial sums of that of the bias, at least float32 [programs, 1, C]."""
    dx, partial = _gradients(x)
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    grid = len(partial), cdiv(columns, WIDTH // 2)
    tensors = dy.contiguous(), x.contiguous(), bias, dx, partial
    _backward[grid](*tensors, rows, columns, TANH=tanh, REAL=real(x), WIDTH=WIDTH // 2)
    return dx, partial


def _gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), new_partials(x, 1)


bias_gelu.register_fake(lambda x, bias, tanh: x.new_empty(x.shape))
bias_gelu_backward.register_fake(lambda dy, x, bias, tanh: _gradients(x))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.tanh = inputs[2]


def _back(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    x, bias = ctx.saved_tensors
    dx, partial = bias_gelu_backward(dy, x, bias, ctx.tanh)
    return dx, sum_partials(partial, bias)[0], None


bias_gelu.register_autograd(_back, setup_context=_keep)
