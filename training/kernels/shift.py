"""Transformer-XL's second product with its relative shift: the bias of ERNIE-Doc's attention in one product and one
launch, and its backward pass likewise.

Shapes: B rows, T queries, S keys, N heads, h head size; n blocks of c queries, W = S + c. The plain form is
`_RelativeBias` in the model's file, which explains the shift. A program computes the bias of one query and head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.kernels.language import Operator, constexpr, jit, next_power_of_2, tl

BLOCK = 64
"""Queries that are multiplied with the same rows of the table."""


@jit
def _forward(
    product, added, far_query, far_key, bias, rows, heads, queries, keys, row_stride, by_row, by_head, by_query,
    count, blocks, ADDED: constexpr, FAR: constexpr, WIDTH: constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    key = tl.arange(0, WIDTH)
    inside = key < keys
    within = query % count
    line = ((head * blocks + query // count) * rows + row) * count + within
    total = tl.load(product + line * (keys + count) + count - 1 - within + key, mask=inside, other=0.0)
    if ADDED:
        at = row * by_row + head * by_head + query * by_query
        total += tl.load(added + at + key, mask=inside, other=0.0)
    if FAR:
        of_query = (row * heads + head) * keys
        if query == queries - 1:
            total += tl.load(far_query + of_query + key, mask=inside, other=0.0)
        of_key = tl.load(far_key + (row * heads + head) * queries + query)
        total += tl.where(key == keys - 1, of_key, 0.0)
    target = ((row * heads + head) * queries + query) * row_stride
    tl.store(bias + target + key, total.to(bias.dtype.element_ty), mask=inside)


@jit
def _backward(
    gradient, product, rows, queries, keys, by_row, by_head, by_query,
    count, blocks, WIDTH: constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    column = tl.arange(0, WIDTH)
    within = query % count
    key = column - (count - 1 - within)
    at = row * by_row + head * by_head + query * by_query
    inside = (key >= 0) & (key < tl.where(query < queries, keys, 0))
    value = tl.load(gradient + at + key, mask=inside, other=0.0)
    line = ((head * blocks + query // count) * rows + row) * count + within
    tl.store(product + line * (keys + count) + column, value, mask=column < keys + count)


@Operator
def shifted(
    product: Tensor, added: Tensor | None, far_query: Tensor | None, far_key: Tensor | None, queries: int
) -> Tensor:
    """product [N, n, B, c, W], added [B, N or 1, T or 1, S], far_query [B, N, S], far_key [B, N, T] -> [B, N, T, S]:
    column c - 1 - i + j of a block's row i for its key j, and what is added, also to the last query and key."""
    bias = _bias_like(product, queries)
    rows, heads, _, keys = bias.shape
    spread = bias if added is None else added.expand(rows, heads, queries, keys)
    if spread.stride(-1) != 1:
        spread = spread.contiguous()
    tensors = [product, spread, *(bias if far is None else far.contiguous() for far in (far_query, far_key)), bias]
    _forward[(queries, heads, rows)](
        *(*tensors, rows, heads, queries, keys, bias.stride(2), *spread.stride()[:3]),
        *(product.shape[3], product.shape[1]),
        ADDED=added is not None,
        FAR=far_query is not None,
        WIDTH=next_power_of_2(keys),
    )
    return bias


@Operator
def shifted_backward(gradient: Tensor, blocks: int, count: int) -> Tensor:
    """The gradient of the product [N, n, B, c, W], from that of the bias [B, N, T, S]."""
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    product = _product_like(gradient, blocks, count)
    rows, heads, queries, keys = gradient.shape
    _backward[(blocks * count, heads, rows)](
        *(gradient, product, rows, queries, keys, *gradient.stride()[:3], count, blocks),
        WIDTH=next_power_of_2(keys + count),
    )
    return product


def _bias_like(product: Tensor, queries: int) -> Tensor:
    """Rows begin at multiples of 16 elements, as the memory-efficient kernel wants it."""
    heads, _, rows, count, width = product.shape
    keys = width - count
    return product.new_empty(rows, heads, queries, -(-keys // 16) * 16)[..., :keys]


def _product_like(gradient: Tensor, blocks: int, count: int) -> Tensor:
    rows, heads, _, keys = gradient.shape
    return gradient.new_empty(heads, blocks, rows, count, keys + count)


shifted.register_fake(lambda product, added, far_query, far_key, queries: _bias_like(product, queries))
shifted_backward.register_fake(_product_like)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    product, added, far_query, *_ = inputs
    ctx.shape = product.shape[1], product.shape[3]
    ctx.added, ctx.far = None if added is None else added.shape, far_query is not None


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    d_added = gradient.sum_to_size(ctx.added) if ctx.needs_input_grad[1] else None
    d_far = (gradient[:, :, -1], gradient[..., -1]) if ctx.far else (None, None)
    return shifted_backward(gradient, *ctx.shape), d_added, *d_far, None


shifted.register_autograd(_back, setup_context=_keep)


def relative_bias(q: Tensor, table: Tensor, added: Tensor | None, *far: Tensor) -> Tensor:
    """q [B, T, N, h], table [P, N, h], added [B, N or 1, T or 1, S], far none or [B, N, S] and [B, N, T] ->
    [B, N, T, S], as `_RelativeBias.apply`. All blocks are one product, with windows of the table."""
    rows, queries, heads, _ = q.shape
    keys = len(table) - queries
    count = min(BLOCK, queries)
    blocks = -(-queries // count)
    lacking = blocks * count - queries
    if lacking:
        q, table = F.pad(q, (0, 0, 0, 0, 0, lacking)), F.pad(table, (0, 0, 0, 0, lacking, 0))
    flat = q.unflatten(1, (blocks, count)).permute(3, 1, 0, 2, 4).reshape(heads * blocks, rows * count, -1)
    windows = table.unfold(0, keys + count, count).flip(0).permute(1, 0, 2, 3).flatten(0, 1)  # [N * n, h, W]
    product = torch.bmm(flat, windows).view(heads, blocks, rows, count, -1)
    return shifted(product, added, *(far or (None, None)), queries)
