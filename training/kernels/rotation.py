"""The rotations of NEZHA's attention with the copies around them, each in one launch and without float32 copies.

Shapes: B rows, L tokens, N heads, h head size; the plain form is `rotated_attention` in the model's file. A program
computes one token of one row.
"""

from typing import Any

from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, next_power_of_2, tl

# Triton's kernels


@jit
def turn(x, turns, at, inside, BACK: constexpr, WIDTH: constexpr):
    """x [WIDTH] with each pair of neighbours rotated by the angle of `turns`, cosines and sines, at `at`."""
    cosine, sine = tl.split(tl.reshape(tl.load(turns + at, mask=inside, other=0.0), [WIDTH // 2, 2]))
    a, b = tl.split(tl.reshape(x.to(cosine.dtype), [WIDTH // 2, 2]))
    if BACK:
        sine = -sine
    return tl.reshape(tl.join(a * cosine - b * sine, b * cosine + a * sine), [WIDTH])


@jit
def _of_token(length, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr):
    """The token of this program; and of each column of its N h: its number, where its position's table has it, and
    where it lies in the first halves of heads of 2 h columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    within = column % HEAD
    return row, column, (row % length) * HEAD + within, row * (2 * COLUMNS) + (column // HEAD) * (2 * HEAD) + within


@jit
def _to_heads(qkv, features, turns, q, k, v, length, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr):
    row, column, position, doubled = _of_token(length, COLUMNS, HEAD, WIDTH)
    inside = column < COLUMNS
    source = qkv + row * (3 * COLUMNS) + column
    query = tl.load(source, mask=inside, other=0.0)
    tl.store(q + doubled, query, mask=inside)
    turned = turn(query, turns, position, inside, True, WIDTH)
    tl.store(q + doubled + HEAD, turned.to(query.dtype), mask=inside)
    feature = tl.load(features + position, mask=inside, other=0.0).to(query.dtype)
    tl.store(k + doubled, tl.load(source + COLUMNS, mask=inside, other=0.0), mask=inside)
    tl.store(k + doubled + HEAD, feature, mask=inside)
    tl.store(v + doubled, tl.load(source + 2 * COLUMNS, mask=inside, other=0.0), mask=inside)
    tl.store(v + doubled + HEAD, feature, mask=inside)


@jit
def _to_heads_backward(
    dq, dk, dv, turns, dqkv, length, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr
):  # fmt: skip
    row, column, position, doubled = _of_token(length, COLUMNS, HEAD, WIDTH)
    inside = column < COLUMNS
    target = dqkv + row * (3 * COLUMNS) + column
    content = tl.load(dq + doubled, mask=inside, other=0.0)
    relative = tl.load(dq + doubled + HEAD, mask=inside, other=0.0)
    turned = turn(relative, turns, position, inside, False, WIDTH)
    tl.store(target, (content.to(turned.dtype) + turned).to(content.dtype), mask=inside)
    tl.store(target + COLUMNS, tl.load(dk + doubled, mask=inside, other=0.0), mask=inside)
    tl.store(target + 2 * COLUMNS, tl.load(dv + doubled, mask=inside, other=0.0), mask=inside)


@jit
def _from_heads(z, turns, output, length, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr):
    row, column, position, doubled = _of_token(length, COLUMNS, HEAD, WIDTH)
    inside = column < COLUMNS
    content = tl.load(z + doubled, mask=inside, other=0.0)
    relative = tl.load(z + doubled + HEAD, mask=inside, other=0.0)
    turned = turn(relative, turns, position, inside, False, WIDTH)
    tl.store(output + row * COLUMNS + column, (content.to(turned.dtype) + turned).to(content.dtype), mask=inside)


@jit
def _from_heads_backward(gradient, turns, dz, length, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr):
    row, column, position, doubled = _of_token(length, COLUMNS, HEAD, WIDTH)
    inside = column < COLUMNS
    content = tl.load(gradient + row * COLUMNS + column, mask=inside, other=0.0)
    tl.store(dz + doubled, content, mask=inside)
    turned = turn(content, turns, position, inside, True, WIDTH)
    tl.store(dz + doubled + HEAD, turned.to(content.dtype), mask=inside)


# The operators. What lies token by token in memory, [B, L, N, 2 h], is seen as attention wants it, [B, N, L, 2 h].


@Operator
def to_heads(qkv: Tensor, features: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [B, L, 3 N h], features [L, h], turns [L, h/2, 2] -> [B, N, L, 2 h] each: the query and it turned back; keys
    and features; values and features."""
    q, k, v = _heads_like(qkv, features)
    columns, head = qkv.shape[-1] // 3, features.shape[-1]
    _to_heads[(qkv.shape[0] * qkv.shape[1],)](
        *(qkv.contiguous(), features, turns, q, k, v, qkv.shape[1]), **_sizes(columns, head)
    )
    return q, k, v


@Operator
def to_heads_backward(dq: Tensor, dk: Tensor, dv: Tensor, turns: Tensor) -> Tensor:
    """The gradient of `qkv` [B, L, 3 N h], from those of `to_heads`' outputs."""
    dqkv = _qkv_like(dq)
    tokens = [one.transpose(1, 2).contiguous() for one in (dq, dk, dv)]
    _to_heads_backward[(dqkv.shape[0] * dqkv.shape[1],)](
        *(*tokens, turns, dqkv, dqkv.shape[1]), **_sizes(dqkv.shape[-1] // 3, dq.shape[-1] // 2)
    )
    return dqkv


@Operator
def from_heads(z: Tensor, turns: Tensor) -> Tensor:
    """z [B, N, L, 2 h] -> [B, L, N h]: the first halves and the second ones, turned."""
    output = _output_like(z)
    tokens = z.transpose(1, 2).contiguous()
    _from_heads[(z.shape[0] * z.shape[2],)](
        *(tokens, turns, output, z.shape[2]), **_sizes(output.shape[-1], z.shape[-1] // 2)
    )
    return output


@Operator
def from_heads_backward(gradient: Tensor, turns: Tensor, head: int) -> Tensor:
    """The gradient of `z` [B, N, L, 2 h] with heads of h = `head`, from that of `from_heads`' output."""
    dz = _z_like(gradient, head)
    _from_heads_backward[(gradient.shape[0] * gradient.shape[1],)](
        *(gradient.contiguous(), turns, dz, gradient.shape[1]), **_sizes(gradient.shape[-1], head)
    )
    return dz


def _sizes(columns: int, head: int) -> dict[str, int]:
    return {"COLUMNS": columns, "HEAD": head, "WIDTH": next_power_of_2(columns)}


def _heads_like(qkv: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, length, head = *qkv.shape[:2], features.shape[-1]
    made = [qkv.new_empty(rows, length, qkv.shape[-1] // 3 // head, 2 * head).transpose(1, 2) for _ in range(3)]
    return made[0], made[1], made[2]


def _qkv_like(dq: Tensor) -> Tensor:
    rows, heads, length, size = dq.shape
    return dq.new_empty(rows, length, 3 * heads * size // 2)


def _output_like(z: Tensor) -> Tensor:
    rows, heads, length, size = z.shape
    return z.new_empty(rows, length, heads * size // 2)


def _z_like(gradient: Tensor, head: int) -> Tensor:
    rows, length, columns = gradient.shape
    return gradient.new_empty(rows, length, columns // head, 2 * head).transpose(1, 2)


to_heads.register_fake(lambda qkv, features, turns: _heads_like(qkv, features))
to_heads_backward.register_fake(lambda dq, dk, dv, turns: _qkv_like(dq))
from_heads.register_fake(lambda z, turns: _output_like(z))
from_heads_backward.register_fake(lambda gradient, turns, head: _z_like(gradient, head))


def _keep_turns(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[-1])
    ctx.head = inputs[-1].shape[-2] * 2


to_heads.register_autograd(
    lambda ctx, dq, dk, dv: (to_heads_backward(dq, dk, dv, *ctx.saved_tensors), None, None), setup_context=_keep_turns
)
from_heads.register_autograd(
    lambda ctx, gradient: (from_heads_backward(gradient, *ctx.saved_tensors, ctx.head), None), setup_context=_keep_turns
)
