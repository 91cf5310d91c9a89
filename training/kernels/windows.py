"""RAN's attention in a window: what lies between its products, and all of it as one function for autograd.

The cell is a window's first place, so that its query and those of the tokens share all products, which are torch's.
Keys are filled up to a multiple of 8 by zeros that no query sees, as products of other widths are slow.

Shapes: B rows, N heads of h columns; 1 + P places, the cell's and the tokens'; K keys, 1 + P filled up. The plain form
is `RanLayer.attend` in the model's file. A program computes a place of all heads, or some rows of scores.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, next_power_of_2, real, tl

# Triton's kernels


@jit
def _of_heads(first, heads, HEAD: constexpr, HEADS: constexpr, WIDTH: constexpr):
    """Of some heads [HEADS, 1] and this program's columns of them [1, WIDTH]: which there are, and both numbers."""
    column = (tl.program_id(2) * WIDTH + tl.arange(0, WIDTH))[None, :]
    head = (first + tl.arange(0, HEADS))[:, None]
    return (column < HEAD) & (head < heads), head, column


@jit
def _angles(turns, place, places, HEAD: constexpr, REAL: constexpr, WIDTH: constexpr):
    """Cosines and sines [1, WIDTH / 2] of a token's position; the cell is not turned."""
    column = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = column < tl.where((place > 0) & (place < places), HEAD, 0)
    pair = tl.load(turns + (place - 1) * HEAD + column, mask=inside, other=0.0).to(REAL)
    cosine, sine = tl.split(tl.reshape(pair, [WIDTH // 2, 2]))
    return tl.where(place == 0, 1.0, cosine)[None, :], sine[None, :]


@jit
def _turned(x, cosine, sine, HEADS: constexpr, WIDTH: constexpr):
    a, b = tl.split(tl.reshape(x, [HEADS, WIDTH // 2, 2]))
    return tl.reshape(tl.join(a * cosine - b * sine, b * cosine + a * sine), [HEADS, WIDTH])


@jit
def _active(x, ACTIVE: constexpr):
    if ACTIVE:
        x = x / (1 + tl.exp(-x))
    return x


@jit
def _slope(x, ACTIVE: constexpr):
    """The derivative of `_active`."""
    if ACTIVE:
        share = 1 / (1 + tl.exp(-x))
        x = share * (1 + x * (1 - share))
    else:
        x = x * 0 + 1
    return x


@jit
def _to_heads(
    q, k, v, turns, queries, keys, values, places, count, heads, scale,
    HEAD: constexpr, ACTIVE: constexpr, TURNS: constexpr, REAL: constexpr, HEADS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    place, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if TURNS:
        cosine, sine = _angles(turns, place, places, HEAD, REAL, WIDTH)
    for first in range(0, heads, HEADS):
        inside, head, column = _of_heads(first, heads, HEAD, HEADS, WIDTH)
        is_there = inside & (head < tl.where(place < places, heads, 0))  # or filled up
        at = ((text * places + place) * heads + head) * HEAD + column
        query = _active(tl.load(q + at, mask=is_there, other=0.0).to(REAL), ACTIVE)
        key = _active(tl.load(k + at, mask=is_there, other=0.0).to(REAL), ACTIVE)
        value = _active(tl.load(v + at, mask=is_there, other=0.0).to(REAL), ACTIVE)
        if TURNS:
            query = _turned(query, cosine, sine, HEADS, WIDTH)
            key = _turned(key, cosine, sine, HEADS, WIDTH)
        target = ((text * heads + head) * places + place) * HEAD + column
        tl.store(queries + target, (query * scale).to(queries.dtype.element_ty), mask=is_there)
        target = ((text * heads + head) * count + place) * HEAD + column
        tl.store(keys + target, key.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + target, value.to(values.dtype.element_ty), mask=inside)


@jit
def _to_heads_backward(
    dqueries, dkeys, dvalues, q, k, v, turns, dq, dk, dv, places, count, heads, scale,
    HEAD: constexpr, ACTIVE: constexpr, TURNS: constexpr, REAL: constexpr, HEADS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    place, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if TURNS:
        cosine, sine = _angles(turns, place, places, HEAD, REAL, WIDTH)
    for first in range(0, heads, HEADS):
        inside, head, column = _of_heads(first, heads, HEAD, HEADS, WIDTH)
        source = ((text * heads + head) * places + place) * HEAD + column
        query = tl.load(dqueries + source, mask=inside, other=0.0).to(REAL) * scale
        source = ((text * heads + head) * count + place) * HEAD + column
        key = tl.load(dkeys + source, mask=inside, other=0.0).to(REAL)
        value = tl.load(dvalues + source, mask=inside, other=0.0).to(REAL)
        if TURNS:
            query = _turned(query, cosine, -sine, HEADS, WIDTH)
            key = _turned(key, cosine, -sine, HEADS, WIDTH)
        at = ((text * places + place) * heads + head) * HEAD + column
        query *= _slope(tl.load(q + at, mask=inside, other=0.0).to(REAL), ACTIVE)
        key *= _slope(tl.load(k + at, mask=inside, other=0.0).to(REAL), ACTIVE)
        value *= _slope(tl.load(v + at, mask=inside, other=0.0).to(REAL), ACTIVE)
        tl.store(dq + at, query.to(dq.dtype.element_ty), mask=inside)
        tl.store(dk + at, key.to(dk.dtype.element_ty), mask=inside)
        tl.store(dv + at, value.to(dv.dtype.element_ty), mask=inside)


@jit
def _swap(x, y, rows, outer, inner, HEAD: constexpr, ROWS: constexpr, WIDTH: constexpr):
    """Of all texts, rows [outer, inner] of x as rows [inner, outer] of y."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    within = row % (outer * inner)
    source = row - within + (within % outer) * inner + within // outer
    value = tl.load(x + source.to(tl.int64)[:, None] * HEAD + column, mask=column < HEAD, other=0.0)
    tl.store(y + row.to(tl.int64)[:, None] * HEAD + column, value, mask=column < HEAD)


@jit
def _kept(seed, row, probability, ROWS: constexpr, WIDTH: constexpr):
    """As of residual.py, for rows [ROWS, WIDTH]."""
    at = row[:, None] * (WIDTH // 4) + tl.arange(0, WIDTH // 4)[None, :]
    a, b, c, d = tl.rand4x(seed, at)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [ROWS, WIDTH]) >= probability


@jit
def _probabilities(
    scores, mask, row, at, of_text, of_place, of_one, keys, places, MASKED: constexpr, REAL: constexpr, WIDTH: constexpr
):  # fmt: skip
    """Of rows [ROWS, WIDTH] of scores, of whose `keys` the first `places` count; `of_one`: the rows of a text."""
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(scores + at, mask=column < keys, other=0.0).to(REAL)  # all of the row, which is aligned
    seen = column < places
    if MASKED:
        of_row = (row // of_one).to(tl.int64) * of_text + (row % places) * of_place
        seen = seen & (tl.load(mask + of_row[:, None] + column, mask=seen, other=0) != 0)
    value = tl.where(seen, value, float("-inf"))
    value = tl.exp(value - tl.max(value, axis=1)[:, None])
    return value / tl.sum(value, axis=1)[:, None]


@jit
def _softmax(
    scores, mask, weights, rows, eighths, places, of_text, of_place, of_one, probability, seed,
    MASKED: constexpr, DROPS: constexpr, REAL: constexpr, ROWS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    keys, column = eighths * 8, tl.arange(0, WIDTH)[None, :]
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    at = row.to(tl.int64)[:, None] * keys + column
    share = _probabilities(scores, mask, row, at, of_text, of_place, of_one, keys, places, MASKED, REAL, WIDTH)
    if DROPS:
        share = tl.where(_kept(seed, row, probability, ROWS, WIDTH), share / (1 - probability), 0.0)
    tl.store(weights + at, share.to(weights.dtype.element_ty), mask=column < keys)


@jit
def _softmax_backward(
    dweights, scores, mask, dscores, rows, eighths, places, of_text, of_place, of_one, probability, seed,
    MASKED: constexpr, DROPS: constexpr, REAL: constexpr, ROWS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    keys, column = eighths * 8, tl.arange(0, WIDTH)[None, :]
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    at = row.to(tl.int64)[:, None] * keys + column
    share = _probabilities(scores, mask, row, at, of_text, of_place, of_one, keys, places, MASKED, REAL, WIDTH)
    gradient = tl.load(dweights + at, mask=column < keys, other=0.0).to(REAL)
    if DROPS:
        gradient = tl.where(_kept(seed, row, probability, ROWS, WIDTH), gradient / (1 - probability), 0.0)
    gradient = share * (gradient - tl.sum(gradient * share, axis=1)[:, None])
    tl.store(dscores + at, gradient.to(dscores.dtype.element_ty), mask=column < keys)


# The operators


@Operator
def window_heads(
    projected: list[Tensor], turns: Tensor | None, head: int, activates: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Projections of queries, keys and values [B, 1 + P, N h], turns [P, h/2, 2] if there are positions -> queries
    divided by the root of h [B N, 1 + P, h], keys and values [B N, K, h]."""
    made = _heads_like(projected, head)
    count = made[1].shape[1]
    grid, numbers, constants = _of_heads_in(projected[0], turns, head, count)
    _to_heads[count, grid[1], grid[2]](
        *(*projected, projected[0] if turns is None else turns, *made, *numbers), ACTIVE=activates, **constants
    )
    return made


def _heads_like(projected: list[Tensor], head: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, places, columns = projected[0].shape
    count, keys, new = rows * columns // head, cdiv(places, 8) * 8, projected[0].new_empty
    return new(count, places, head), new(count, keys, head), new(count, keys, head)


@Operator
def window_heads_backward(
    gradients: list[Tensor], projected: list[Tensor], turns: Tensor | None, head: int, activates: bool
) -> Tensor:
    """The gradients of `projected` [3, B, 1 + P, N h], from those of the outputs of `window_heads`."""
    made = _projected_like(projected)
    grid, numbers, constants = _of_heads_in(projected[0], turns, head, gradients[1].shape[1])
    _to_heads_backward[grid](
        *(*gradients, *projected, projected[0] if turns is None else turns, *made.unbind(0), *numbers),
        ACTIVE=activates,
        **constants,
    )
    return made


def _projected_like(projected: list[Tensor]) -> Tensor:
    return projected[0].new_empty(3, *projected[0].shape)


def _of_heads_in(
    x: Tensor, turns: Tensor | None, head: int, keys: int
) -> tuple[tuple[int, int, int], tuple[int, int, int, float], dict[str, Any]]:
    """The grid of both kernels, whose first dimension is places, their numbers, and constants."""
    rows, places, columns = x.shape
    heads, width = columns // head, min(256, next_power_of_2(head))
    constants = {"TURNS": turns is not None, "REAL": real(x), "HEAD": head, "WIDTH": width}
    constants["HEADS"] = min(next_power_of_2(heads), 1024 // width)
    return (places, rows, cdiv(head, width)), (places, keys, heads, head**-0.5), constants


@Operator
def swap_heads(x: Tensor) -> Tensor:
    """x [B, N, 1 + P, h] -> [B, 1 + P, N, h], or the reverse."""
    y = _swapped_like(x)
    texts, outer, inner, head = x.shape
    rows, width = texts * outer * inner, min(256, next_power_of_2(head))
    _swap[cdiv(rows, 16), cdiv(head, width)](x, y, rows, outer, inner, HEAD=head, ROWS=16, WIDTH=width)
    return y


def _swapped_like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3])


def _of_scores(
    scores: Tensor, mask: Tensor | None, rows: int
) -> tuple[tuple[int], Tensor, tuple[int, ...], dict[str, Any]]:
    """The grid of both kernels of scores, the mask or what takes its place, numbers, and constants."""
    count, places, keys = scores.shape
    width = next_power_of_2(keys)
    at_once = max(1, 2048 // width)
    seen = scores if mask is None else mask.view(torch.uint8)
    of_text, of_place = (0, 0) if mask is None else (mask.stride(0), mask.stride(1) if mask.shape[1] > 1 else 0)
    numbers = count * places, keys // 8, places, of_text, of_place, count // rows * places
    constants = {"MASKED": mask is not None, "REAL": real(scores), "ROWS": at_once, "WIDTH": width}
    return (cdiv(count * places, at_once),), seen, numbers, constants


@Operator
def window_weights(scores: Tensor, mask: Tensor | None, rows: int, drops: float, seed: int) -> Tensor:
    """scores [B N, 1 + P, K] of B = `rows` -> probabilities over the first 1 + P keys, of which dropout keeps some by
    its seed; 0 for the others. mask [B, 1 or 1 + P, 1 + P]: the keys that are seen."""
    weights = scores.new_empty(scores.shape)
    grid, seen, numbers, constants = _of_scores(scores, mask, rows)
    _softmax[grid](scores, seen, weights, *numbers, drops, seed, DROPS=drops > 0, **constants)
    return weights


@Operator
def window_weights_backward(
    dweights: Tensor, scores: Tensor, mask: Tensor | None, rows: int, drops: float, seed: int
) -> Tensor:
    """The gradient of `scores`, of which the weights are computed again."""
    dscores = scores.new_empty(scores.shape)
    grid, seen, numbers, constants = _of_scores(scores, mask, rows)
    _softmax_backward[grid](dweights, scores, seen, dscores, *numbers, drops, seed, DROPS=drops > 0, **constants)
    return dscores


window_heads.register_fake(lambda projected, turns, head, activates: _heads_like(projected, head))
window_heads_backward.register_fake(lambda gradients, projected, *_: _projected_like(projected))
swap_heads.register_fake(_swapped_like)
window_weights.register_fake(lambda scores, *_: scores.new_empty(scores.shape))
window_weights_backward.register_fake(lambda dweights, scores, *_: scores.new_empty(scores.shape))


# A window


class Options(NamedTuple):
    head: int
    """Columns of a head."""
    activates: bool
    """Whether projections go through swish."""
    turns: Tensor | None
    """Of positions [P, h/2, 2]; None: there are none."""
    mask: Tensor | None
    """[B, 1 or 1 + P, 1 + P], what the cell, first, and each token see; None: everything."""
    drops: float
    """The probability of dropout."""
    seed: int


class _Window(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Options, *projected: Tensor) -> Tensor:
        rows, places, columns = projected[0].shape
        heads = window_heads.launch([*projected], options.turns, options.head, options.activates)
        queries, keys, values = heads
        scores = queries @ keys.mT
        weights = window_weights.launch(scores, options.mask, rows, options.drops, options.seed)
        ctx.options = options
        ctx.save_for_backward(*projected, *heads, scores, weights)
        attended = (weights @ values).view(rows, -1, places, options.head)
        return swap_heads.launch(attended).view(rows, places, columns)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        options = ctx.options
        *projected, queries, keys, values, scores, weights = ctx.saved_tensors  # once, as checkpointing wants it
        by_head = gradient.contiguous().unflatten(-1, (-1, options.head))
        dattended = swap_heads.launch(by_head).flatten(0, 1)
        dweights = dattended @ values.mT
        rows, drops = len(gradient), (options.drops, options.seed)
        dscores = window_weights_backward.launch(dweights, scores, options.mask, rows, *drops)
        gradients = [dscores @ keys, dscores.mT @ queries, weights.mT @ dattended]
        made = window_heads_backward.launch(gradients, projected, options.turns, options.head, options.activates)
        return None, *made.unbind(0)


def window_attention(projected: Sequence[Tensor], options: Options) -> Tensor:
    """Queries, keys and values of a window's cell, first, and tokens [B, 1 + P, N h] -> what its heads give."""
    return _Window.apply(options, *(one.contiguous() for one in projected))  # type: ignore[no-any-return]
