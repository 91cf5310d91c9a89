"""ERNIE-Doc's attention in one kernel, without scores or a bias in memory. Not installed: `make gpu` compares it with
what is, `shift.py` and torch's attention.

Shapes: B rows, T queries, S keys, N heads, h head size, P = S + T rows of the table of distances. Needs tensor cores of
compute capability 8.0, and h a power of 2. The plain form is `relative_attention` in the model's file.

Query i and key j meet in row T - 1 - i + j of the table. In a block of c queries and c keys these are 2 c - 1 rows: the
products of the queries with the first c of them and with the next c, each turned within its line by c - 1 - i columns,
hold the block's bias, and the second is the next block's first. A line is turned back for the gradient.
"""

from typing import Any

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, real, tl
from reread.training.kernels.sums import real_type, sum_partials

BLOCK = 64
"""Queries, keys and rows of the table that a program computes at a time."""
SHARES = 8
"""Programs that share the rows of the batch for a block of the table's gradient."""

# Triton's kernels. `first` is the number of a block's first query, `key` that of its first key.


@jit
def _starts(queries, keys, COLUMNS: constexpr, HEAD: constexpr):
    """The row of the batch and the head of this program, the number of its first query among those of all heads, and
    where its queries and its keys begin."""
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    query = row * queries
    key = row * keys
    lines = query * tl.num_programs(1) + head * queries
    return row, head, lines, query * COLUMNS + head * HEAD, key * COLUMNS + head * HEAD


@jit
def _lines(x, first, count, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr):
    """Lines `first` and on of a head [BLOCK, HEAD]; zero outside of 0..count - 1."""
    line = first + tl.arange(0, BLOCK)
    at = line[:, None] * COLUMNS + tl.arange(0, HEAD)[None, :]
    return tl.load(x + at, mask=((line >= 0) & (line < count))[:, None], other=0.0)


@jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@jit
def _queries(
    q, bias, first, queries,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """(q + bias) / sqrt(h) [BLOCK, HEAD]."""
    value = _lines(q, first, queries, COLUMNS, HEAD, BLOCK).to(REAL) + tl.load(bias + tl.arange(0, HEAD)).to(REAL)
    return (value * SCALE).to(q.dtype.element_ty)


@jit
def _turn(x, BACK: constexpr, BLOCK: constexpr):
    """x [BLOCK, BLOCK] with column BLOCK - 1 - i + j of its line i, modulo BLOCK, at column j, or as it was before."""
    line = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    return tl.gather(x, (column + (line + 1 if BACK else BLOCK - 1 - line)) % BLOCK, 1)


@jit
def _scores(by_content, bias, added, key, keys, ADDED: constexpr, BLOCK: constexpr):
    """[BLOCK, BLOCK]; -inf beyond the last key."""
    at = key + tl.arange(0, BLOCK)
    scores = by_content + bias
    if ADDED:
        scores += tl.load(added + at, mask=at < keys, other=0.0).to(scores.dtype)[None, :]
    return tl.where((at < keys)[None, :], scores, float("-inf"))


@jit
def _dropped(x, seed, line, key, keys, probability, DROPS: constexpr, BLOCK: constexpr):
    """Dropout of a block [BLOCK, BLOCK], the same for the same `line`, the number of its first query among all. A call
    of Philox has four numbers."""
    if DROPS:
        groups = tl.cdiv(keys, BLOCK) * (BLOCK // 4)
        query = line.to(tl.int32) + tl.arange(0, BLOCK)
        a, b, c, d = tl.rand4x(seed, query[:, None] * groups + (key // 4 + tl.arange(0, BLOCK // 4))[None, :])
        number = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK, BLOCK])
        x = tl.where(number >= probability, x / (1 - probability), 0.0)
    return x


@jit
def _forward(
    q, k, v, r, u, w, added, z, normaliser, queries, keys, by_row, by_head, probability, seed,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr, ADDED: constexpr,
    DROPS: constexpr,
):  # fmt: skip
    """A program computes a block of queries of a head."""
    first = tl.program_id(0) * BLOCK
    row, head, lines, of_queries, of_keys = _starts(queries, keys, COLUMNS, HEAD)
    r += head * HEAD
    added += row * by_row + head * by_head
    content = _queries(q + of_queries, u + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
    position = _queries(q + of_queries, w + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
    is_near = tl.arange(0, BLOCK)[None, :] <= tl.arange(0, BLOCK)[:, None]
    start = queries - BLOCK - first
    table = _lines(r, start, keys + queries, COLUMNS, HEAD, BLOCK)
    near = _turn(_dot(position, tl.trans(table)), False, BLOCK)
    most = tl.full([BLOCK], float("-inf"), REAL)
    total = tl.zeros([BLOCK], REAL)
    output = tl.zeros([BLOCK, HEAD], REAL)
    for key in range(0, keys, BLOCK):
        table = _lines(r, start + key + BLOCK, keys + queries, COLUMNS, HEAD, BLOCK)
        far = _turn(_dot(position, tl.trans(table)), False, BLOCK)
        by_content = _dot(content, tl.trans(_lines(k + of_keys, key, keys, COLUMNS, HEAD, BLOCK)))
        scores = _scores(by_content, tl.where(is_near, near, far), added, key, keys, ADDED, BLOCK)
        before = most
        most = tl.maximum(most, tl.max(scores, 1))
        a = tl.exp(scores - most[:, None])
        fade = tl.exp(before - most)
        total = total * fade + tl.sum(a, 1)
        a = _dropped(a, seed, lines + first, key, keys, probability, DROPS, BLOCK)
        values = _lines(v + of_keys, key, keys, COLUMNS, HEAD, BLOCK)
        output = output * fade[:, None] + _dot(a.to(values.dtype), values)
        near = far
    query = first + tl.arange(0, BLOCK)
    tl.store(normaliser + lines + query, most + tl.log(total), mask=query < queries)
    at = of_queries + query[:, None] * COLUMNS + tl.arange(0, HEAD)[None, :]
    tl.store(z + at, (output / total[:, None]).to(z.dtype.element_ty), mask=(query < queries)[:, None])


@jit
def _backward_queries(
    q, k, v, r, u, w, added, z, normaliser, dz, d_scores, means, dq, partial,
    queries, keys, by_row, by_head, by_query, probability, seed,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr, ADDED: constexpr,
    DROPS: constexpr,
):  # fmt: skip
    """A program computes the gradients of the scores and the queries for a block of queries of a head."""
    first = tl.program_id(0) * BLOCK
    row, head, lines, of_queries, of_keys = _starts(queries, keys, COLUMNS, HEAD)
    r += head * HEAD
    added += row * by_row + head * by_head
    content = _queries(q + of_queries, u + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
    position = _queries(q + of_queries, w + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
    column = tl.arange(0, BLOCK)[None, :]
    line = tl.arange(0, BLOCK)[:, None]
    query = first + tl.arange(0, BLOCK)
    given = _lines(dz + of_queries, first, queries, COLUMNS, HEAD, BLOCK)
    mean = tl.sum(given.to(REAL) * _lines(z + of_queries, first, queries, COLUMNS, HEAD, BLOCK).to(REAL), 1)
    tl.store(means + lines + query, mean, mask=query < queries)
    norm = tl.load(normaliser + lines + query, mask=query < queries, other=float("inf"))
    start = queries - BLOCK - first
    table = _lines(r, start, keys + queries, COLUMNS, HEAD, BLOCK)
    near = _turn(_dot(position, tl.trans(table)), False, BLOCK)
    rest = tl.zeros([BLOCK, BLOCK], REAL)
    of_content = tl.zeros([BLOCK, HEAD], REAL)
    of_position = tl.zeros([BLOCK, HEAD], REAL)
    for key in range(0, keys, BLOCK):
        # The block's probabilities and the gradient of its scores
        beyond = _lines(r, start + key + BLOCK, keys + queries, COLUMNS, HEAD, BLOCK)
        far = _turn(_dot(position, tl.trans(beyond)), False, BLOCK)
        those = _lines(k + of_keys, key, keys, COLUMNS, HEAD, BLOCK)
        by_content = _dot(content, tl.trans(those))
        scores = _scores(by_content, tl.where(column <= line, near, far), added, key, keys, ADDED, BLOCK)
        a = tl.exp(scores - norm[:, None])
        da = _dot(given, tl.trans(_lines(v + of_keys, key, keys, COLUMNS, HEAD, BLOCK)))
        da = _dropped(da, seed, lines + first, key, keys, probability, DROPS, BLOCK)
        ds = a * (da - mean[:, None])
        at = (lines + query)[:, None] * by_query + key + column
        within = (query < queries)[:, None] & (key + column < keys)
        tl.store(d_scores + at, ds.to(d_scores.dtype.element_ty), mask=within)
        # From there to the queries
        of_content += _dot(ds.to(those.dtype), those)
        back = _turn(ds, True, BLOCK)
        ready = tl.where(column >= BLOCK - 1 - line, back, 0.0) + rest
        of_position += _dot(ready.to(table.dtype), table)
        rest = tl.where(column < BLOCK - 1 - line, back, 0.0)
        near = far
        table = beyond
    of_position += _dot(rest.to(table.dtype), table)
    of_content *= SCALE
    of_position *= SCALE
    size = tl.arange(0, HEAD)
    at = of_queries + query[:, None] * COLUMNS + size[None, :]
    tl.store(dq + at, (of_content + of_position).to(dq.dtype.element_ty), mask=(query < queries)[:, None])
    target = partial + (row * tl.num_programs(0) + tl.program_id(0)) * (2 * COLUMNS) + head * HEAD + size
    tl.store(target, tl.sum(of_content, 0))
    tl.store(target + COLUMNS, tl.sum(of_position, 0))


@jit
def _backward_keys(
    q, k, v, r, u, w, added, normaliser, dz, means, dk, dv, queries, keys, by_row, by_head, probability, seed,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr, ADDED: constexpr,
    DROPS: constexpr,
):  # fmt: skip
    """A program computes a block of keys of a head."""
    key = tl.program_id(0) * BLOCK
    row, head, lines, of_queries, of_keys = _starts(queries, keys, COLUMNS, HEAD)
    r += head * HEAD
    added += row * by_row + head * by_head
    column = tl.arange(0, BLOCK)[None, :]
    line = tl.arange(0, BLOCK)[:, None]
    those = _lines(k + of_keys, key, keys, COLUMNS, HEAD, BLOCK)
    values = _lines(v + of_keys, key, keys, COLUMNS, HEAD, BLOCK)
    of_k = tl.zeros([BLOCK, HEAD], REAL)
    of_v = tl.zeros([BLOCK, HEAD], REAL)
    for first in range(0, queries, BLOCK):
        content = _queries(q + of_queries, u + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
        position = _queries(q + of_queries, w + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
        start = queries - BLOCK - first + key
        table = _lines(r, start, keys + queries, COLUMNS, HEAD, BLOCK)
        near = _dot(position, tl.trans(table))
        table = _lines(r, start + BLOCK, keys + queries, COLUMNS, HEAD, BLOCK)
        far = _dot(position, tl.trans(table))
        bias = _turn(tl.where(column >= BLOCK - 1 - line, near, far), False, BLOCK)
        by_content = _dot(content, tl.trans(those))
        query = first + tl.arange(0, BLOCK)
        norm = tl.load(normaliser + lines + query, mask=query < queries, other=float("inf"))
        mean = tl.load(means + lines + query, mask=query < queries, other=0.0)
        a = tl.exp(_scores(by_content, bias, added, key, keys, ADDED, BLOCK) - norm[:, None])
        given = _lines(dz + of_queries, first, queries, COLUMNS, HEAD, BLOCK)
        da = _dot(given, tl.trans(values))
        da = _dropped(da, seed, lines + first, key, keys, probability, DROPS, BLOCK)
        used = _dropped(a, seed, lines + first, key, keys, probability, DROPS, BLOCK)
        of_v += _dot(tl.trans(used.to(given.dtype)), given)
        ds = (a * (da - mean[:, None])).to(content.dtype)
        of_k += _dot(tl.trans(ds), content)
    at = key + tl.arange(0, BLOCK)
    target = of_keys + at[:, None] * COLUMNS + tl.arange(0, HEAD)[None, :]
    tl.store(dk + target, of_k.to(dk.dtype.element_ty), mask=(at < keys)[:, None])
    tl.store(dv + target, of_v.to(dv.dtype.element_ty), mask=(at < keys)[:, None])


@jit
def _backward_table(
    q, w, d_scores, partial, rows, queries, keys, by_query,
    REAL: constexpr, SCALE: constexpr, COLUMNS: constexpr, HEAD: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """A program computes a block of the table for a head, of every `SHARES`-th row of the batch."""
    place = tl.program_id(0) * BLOCK
    head = tl.program_id(1)
    distances = keys + queries
    of_table = tl.zeros([BLOCK, HEAD], REAL)
    for number in range(tl.program_id(2), rows, tl.num_programs(2)):
        row = tl.cast(number, tl.int64)
        of_queries = row * queries * COLUMNS + head * HEAD
        lines = (row * tl.num_programs(1) + head) * queries
        least = tl.maximum(queries - BLOCK - place, 0) // BLOCK * BLOCK
        for first in range(least, tl.minimum(queries, distances - place), BLOCK):
            position = _queries(q + of_queries, w + head * HEAD, first, queries, REAL, SCALE, COLUMNS, HEAD, BLOCK)
            query = (first + tl.arange(0, BLOCK))[:, None]
            key = place + tl.arange(0, BLOCK)[None, :] - (queries - 1) + query
            inside = (key >= 0) & (key < keys) & (query < queries)
            ds = tl.load(d_scores + (lines + query) * by_query + key, mask=inside, other=0.0)
            of_table += _dot(tl.trans(ds), position)
    at = place + tl.arange(0, BLOCK)
    target = partial + (tl.program_id(2) * distances + at[:, None]) * COLUMNS + head * HEAD
    tl.store(target + tl.arange(0, HEAD)[None, :], of_table, mask=(at < distances)[:, None])


# The operators


@Operator
def attended(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor, added: Tensor | None, drops: float, seed: int
) -> tuple[Tensor, Tensor]:
    """q [B, T, N, h], k and v [B, S, N, h], r [P, N, h], u and w [N, h], added [B, N or 1, 1, S] -> z [B, T, N, h], and
    the logarithms of the sums of exponents, at least float32 [B, N, T]. `drops` is the probability of dropout."""
    z, normaliser = _outputs(q)
    tensors = [one.contiguous() for one in (q, k, v, r, u, w)]
    bias, sizes = _spread(added, q, k.shape[1])
    rows, queries, heads, _ = q.shape
    _forward[(cdiv(queries, BLOCK), heads, rows)](
        *(*tensors, bias, z, normaliser, queries, k.shape[1], bias.stride(0), bias.stride(1), drops, seed),
        **(sizes | {"ADDED": added is not None, "DROPS": drops > 0}),
    )
    return z, normaliser


@Operator
def attended_backward(
    dz: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    u: Tensor,
    w: Tensor,
    added: Tensor | None,
    z: Tensor,
    normaliser: Tensor,
    drops: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and the scores [B, N, T, S], and at least float32 partial sums of those of u and w
    [blocks, 2, N h] and of r [shares, P, N h]."""
    dq, dk, dv, d_scores, of_biases, of_table = made = _gradients(q, k)
    means = torch.empty_like(normaliser)
    q, k, v, r, u, w, dz = (one.contiguous() for one in (q, k, v, r, u, w, dz))
    bias, sizes = _spread(added, q, k.shape[1])
    options = sizes | {"ADDED": added is not None, "DROPS": drops > 0}
    rows, queries, heads, _ = q.shape
    keys, strides = k.shape[1], bias.stride()[:2]
    _backward_queries[(cdiv(queries, BLOCK), heads, rows)](
        *(q, k, v, r, u, w, bias, z, normaliser, dz, d_scores, means, dq, of_biases),
        *(queries, keys, *strides, d_scores.stride(2), drops, seed),
        **options,
    )
    _backward_keys[(cdiv(keys, BLOCK), heads, rows)](
        *(q, k, v, r, u, w, bias, normaliser, dz, means, dk, dv, queries, keys, *strides, drops, seed), **options
    )
    _backward_table[(cdiv(keys + queries, BLOCK), heads, len(of_table))](
        *(q, w, d_scores, of_table, rows, queries, keys, d_scores.stride(2)), **sizes
    )
    return made


def _outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    rows, queries, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(rows, heads, queries, dtype=real_type(q))


def _gradients(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (rows, queries, heads, size), keys, exact = q.shape, k.shape[1], real_type(q)
    d_scores = q.new_empty(rows, heads, queries, -(-keys // 16) * 16)[..., :keys]
    of_biases = q.new_empty(rows * cdiv(queries, BLOCK), 2, heads * size, dtype=exact)
    of_table = q.new_empty(min(SHARES, rows), keys + queries, heads * size, dtype=exact)
    return q.new_empty(q.shape), k.new_empty(k.shape), k.new_empty(k.shape), d_scores, of_biases, of_table


def _spread(added: Tensor | None, q: Tensor, keys: int) -> tuple[Tensor, dict[str, Any]]:
    """`added` [B, N, S], or a tensor in its place; and what kernels are compiled for."""
    rows, _, heads, size = q.shape
    bias = q.expand(rows, *q.shape[1:]) if added is None else added.expand(rows, heads, 1, keys).squeeze(2)
    sizes: dict[str, Any] = {"num_warps": 8, "num_stages": 2}  # by the compiler's registers: nothing is timed
    sizes |= {"REAL": real(q), "SCALE": size**-0.5, "COLUMNS": heads * size, "HEAD": size, "BLOCK": BLOCK}
    return bias if bias.stride(-1) == 1 else bias.contiguous(), sizes


attended.register_fake(lambda q, *_: _outputs(q))
attended_backward.register_fake(lambda dz, q, k, *_: _gradients(q, k))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.options = inputs[7:]


def _back(ctx: Any, dz: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    kept = ctx.saved_tensors
    r, u, added = kept[3], kept[4], kept[6]
    dq, dk, dv, d_scores, of_biases, of_table = attended_backward(dz, *kept, *ctx.options)
    du, dw = sum_partials(of_biases, u)
    d_added = d_scores.sum_to_size(added.shape) if ctx.needs_input_grad[6] else None
    dr = sum_partials(of_table, r).view_as(r)
    return dq, dk, dv, dr, du.view_as(u), dw.view_as(u), d_added, None, None


attended.register_autograd(_back, setup_context=_keep)


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor | None,
    seed: int,
    *,
    dropout: float,
) -> Tensor:
    """As `relative_attention` in the model's file, where no columns are left out and each query meets the same mask.
    `seed` is dropout's."""
    added = term if mask is None else mask if term is None else mask + term
    return attended(q, k, v, r, *biases, added, dropout, seed)[0]  # type: ignore[no-any-return]
