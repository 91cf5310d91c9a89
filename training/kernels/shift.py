"""ERNIE-Doc's attention with few passes over memory: both of its queries in one launch, and Transformer-XL's second
product with its relative shift, the bias of the attention, in one product and one launch; backward passes likewise.

Shapes: B rows, T queries, S keys, N heads, h head size; n blocks of c queries, W = S + c. Blocks lie in memory from the
last queries to the first, as the rows of the table that they meet do. The plain form is `relative_attention` in the
model's file, where `_Block` explains the shift.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, next_power_of_2, real, tl
from reread.training.kernels.sums import new_partials, sum_partials
from reread.training.models.ernie_doc import attention_ernie_doc as plain

BLOCK = 64
"""Queries that are multiplied with the same rows of the table."""

# Triton's kernels


@jit
def _place(query, row, head, rows, heads, count, blocks):
    """The number of a query among those that lie by block, head, row and query of the block."""
    return ((((blocks - 1 - query // count) * heads + head) * rows + row) * count + query % count).to(tl.int64)


@jit
def _split(
    q, u, w, content, position, queries, count, blocks,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """A program computes a token, or what fills the last block up."""
    query = tl.program_id(0)
    row = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    at = (row.to(tl.int64) * queries + query) * COLUMNS + column
    is_query = column < tl.where(query < queries, COLUMNS, 0)
    value = tl.load(q + at, mask=is_query, other=0.0).to(REAL)
    by_content = (value + tl.load(u + column, mask=inside, other=0.0).to(REAL)) * SCALE
    by_position = (value + tl.load(w + column, mask=inside, other=0.0).to(REAL)) * SCALE
    tl.store(content + at, by_content.to(content.dtype.element_ty), mask=is_query)
    place = _place(query, row, column // HEAD, tl.num_programs(1), COLUMNS // HEAD, count, blocks)
    by_position = tl.where(is_query, by_position, 0.0).to(position.dtype.element_ty)
    tl.store(position + place * HEAD + column % HEAD, by_position, mask=inside)


@jit
def _split_backward(
    d_content, d_position, dq, partial, tokens, rows, queries, count, blocks,
    SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """A program computes every `PROGRAMS`-th token, whose parts of the gradients of u and w it adds up."""
    real = partial.dtype.element_ty
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    of_u = tl.zeros([WIDTH], dtype=real)
    of_w = tl.zeros([WIDTH], dtype=real)
    for token in tl.range(tl.program_id(0), tokens, tl.num_programs(0), num_stages=3):
        at = tl.cast(token, tl.int64) * COLUMNS + column
        place = _place(token % queries, token // queries, column // HEAD, rows, COLUMNS // HEAD, count, blocks)
        by_content = tl.load(d_content + at, mask=inside, other=0.0).to(real) * SCALE
        by_position = tl.load(d_position + place * HEAD + column % HEAD, mask=inside, other=0.0).to(real) * SCALE
        tl.store(dq + at, (by_content + by_position).to(dq.dtype.element_ty), mask=inside)
        of_u += by_content
        of_w += by_position
    target = partial + tl.program_id(0) * (2 * COLUMNS) + column
    tl.store(target, of_u, mask=inside)
    tl.store(target + COLUMNS, of_w, mask=inside)


@jit
def _shift(
    product, added, far_query, far_key, bias, rows, heads, queries, keys, row_stride, by_row, by_head, by_query,
    count, blocks, ADDED: constexpr, FAR: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """A program computes a query and head."""
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    key = tl.arange(0, WIDTH)
    inside = key < keys
    within = query % count
    line = _place(query, row, head, rows, heads, count, blocks)
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
def _shift_backward(
    gradient, product, rows, queries, keys, by_row, by_head, by_query,
    count, blocks, WIDTH: constexpr,
):  # fmt: skip
    """A program computes a query and head, or what fills the last block up."""
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    column = tl.arange(0, WIDTH)
    within = query % count
    key = column - (count - 1 - within)
    at = row * by_row + head * by_head + query * by_query
    inside = (key >= 0) & (key < tl.where(query < queries, keys, 0))
    value = tl.load(gradient + at + key, mask=inside, other=0.0)
    line = _place(query, row, head, rows, tl.num_programs(1), count, blocks)
    tl.store(product + line * (keys + count) + column, value, mask=column < keys + count)


# The operators


@Operator
def split_queries(q: Tensor, u: Tensor, w: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """q [B, T, N, h], u and w [N, h] -> (q + u) / sqrt(h) [B, T, N, h], and (q + w) / sqrt(h) in blocks of `count`
    queries [n, N, B, c, h], zero beyond the last query."""
    content, position = _queries_like(q, count)
    blocks, _, rows, *_ = position.shape
    tensors = q.contiguous(), u.contiguous(), w.contiguous(), content, position
    _split[(blocks * count, rows)](*tensors, q.shape[1], count, blocks, REAL=real(q), **_sizes(content))
    return content, position


@Operator
def split_queries_backward(d_content: Tensor, d_position: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of q [B, T, N, h], and partial sums of those of u and w, at least float32 [programs, 2, N h]."""
    dq, partial = _split_gradients(d_content)
    blocks, _, rows, count, _ = d_position.shape
    queries = dq.shape[1]
    _split_backward[(len(partial),)](
        *(d_content.contiguous(), d_position.contiguous(), dq, partial, rows * queries, rows, queries, count, blocks),
        **_sizes(dq),
    )
    return dq, partial


def _sizes(q: Tensor) -> dict[str, Any]:
    heads, size = q.shape[2:]
    columns = heads * size
    return {"SCALE": size**-0.5, "COLUMNS": columns, "HEAD": size, "WIDTH": next_power_of_2(columns)}


def _queries_like(q: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rows, queries, heads, size = q.shape
    return q.new_empty(q.shape), q.new_empty(cdiv(queries, count), heads, rows, count, size)


def _split_gradients(d_content: Tensor) -> tuple[Tensor, Tensor]:
    return d_content.new_empty(d_content.shape), new_partials(d_content.flatten(2), 2)


split_queries.register_fake(lambda q, u, w, count: _queries_like(q, count))
split_queries_backward.register_fake(lambda d_content, d_position: _split_gradients(d_content))


def _keep_biases(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def _join(ctx: Any, d_content: Tensor, d_position: Tensor) -> tuple[Tensor | None, ...]:
    (u,) = ctx.saved_tensors
    dq, partial = split_queries_backward(d_content, d_position)
    du, dw = sum_partials(partial, u)
    return dq, du.view_as(u), dw.view_as(u), None


split_queries.register_autograd(_join, setup_context=_keep_biases)


@Operator
def shifted(
    product: Tensor, added: Tensor | None, far_query: Tensor | None, far_key: Tensor | None, queries: int
) -> Tensor:
    """product [n, N, B, c, W], added [B, N or 1, T or 1, S], far_query [B, N, S], far_key [B, N, T] -> [B, N, T, S]:
    column c - 1 - i + j of a block's row i for its key j, and what is added, also to the last query and key."""
    bias = _bias_like(product, queries)
    rows, heads, _, keys = bias.shape
    spread = bias if added is None else added.expand(rows, heads, queries, keys)
    if spread.stride(-1) != 1:
        spread = spread.contiguous()
    tensors = [product, spread, *(bias if far is None else far.contiguous() for far in (far_query, far_key)), bias]
    _shift[(queries, heads, rows)](
        *(*tensors, rows, heads, queries, keys, bias.stride(2), *spread.stride()[:3]),
        *(product.shape[3], len(product)),
        ADDED=added is not None,
        FAR=far_query is not None,
        WIDTH=next_power_of_2(keys),
    )
    return bias


@Operator
def shifted_backward(gradient: Tensor, blocks: int, count: int) -> Tensor:
    """The gradient of the product [n, N, B, c, W], from that of the bias [B, N, T, S]."""
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    product = _product_like(gradient, blocks, count)
    rows, heads, queries, keys = gradient.shape
    _shift_backward[(blocks * count, heads, rows)](
        *(gradient, product, rows, queries, keys, *gradient.stride()[:3], count, blocks),
        WIDTH=next_power_of_2(keys + count),
    )
    return product


def _bias_like(product: Tensor, queries: int) -> Tensor:
    """Rows begin at multiples of 16 elements, as the memory-efficient kernel wants it."""
    _, heads, rows, count, width = product.shape
    keys = width - count
    return product.new_empty(rows, heads, queries, -(-keys // 16) * 16)[..., :keys]


def _product_like(gradient: Tensor, blocks: int, count: int) -> Tensor:
    rows, heads, _, keys = gradient.shape
    return gradient.new_empty(blocks, heads, rows, count, keys + count)


shifted.register_fake(lambda product, added, far_query, far_key, queries: _bias_like(product, queries))
shifted_backward.register_fake(_product_like)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    product, added, far_query, *_ = inputs
    ctx.shape = len(product), product.shape[3]
    ctx.added, ctx.far = None if added is None else added.shape, far_query is not None


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    d_added = gradient.sum_to_size(ctx.added) if ctx.needs_input_grad[1] else None
    d_far = (gradient[:, :, -1], gradient[..., -1]) if ctx.far else (None, None)
    return shifted_backward(gradient, *ctx.shape), d_added, *d_far, None


shifted.register_autograd(_back, setup_context=_keep)


def relative_bias(q: Tensor, table: Tensor, added: Tensor | None, queries: int, *far: Tensor) -> Tensor:
    """q in blocks [n, N, B, c, h], table [P, N, h], added [B, N or 1, T or 1, S], far none or [B, N, S] and [B, N, T]
    -> [B, N, T, S]. All blocks are one product, with windows of the table."""
    blocks, heads, rows, count, _ = q.shape
    keys, lacking = len(table) - queries, blocks * count - queries
    if lacking:
        table = F.pad(table, (0, 0, 0, 0, lacking, 0))
    windows = table.unfold(0, keys + count, count).transpose(2, 3).flatten(0, 1)  # [n * N, W, h]
    product = torch.bmm(q.view(blocks * heads, rows * count, -1), windows.transpose(1, 2))
    return shifted(product.view(blocks, heads, rows, count, -1), added, *(far or (None, None)), queries)


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor | None,
    *,
    dropout: float,
    official: bool = False,
    gap: int = 0,
) -> Tensor:
    """As `relative_attention` in the model's file. With `official` it is that."""
    if official:
        return plain.relative_attention(q, k, v, r, biases, term, mask, dropout=dropout, official=True, gap=gap)
    queries = q.shape[1]
    content, position = split_queries(q, *biases, min(BLOCK, queries))
    if gap:  # then few products need the queries in a row
        q = position.flip(0).permute(2, 0, 3, 1, 4).flatten(1, 2)[:, :queries]
    table, *far = plain.without_gap(q, r, gap)
    added = term if mask is None else mask if term is None else mask + term
    bias = relative_bias(position, table, added, queries, *far)
    return plain.fused(content, k, v, bias, dropout).transpose(1, 2)
