"""RAN's attention in a window: what lies between its products, and all of a window as one function for autograd.

The cell is the window's first place, so that its query and the tokens' share all products, which are torch's. Keys are
filled up to a multiple of 8 by zeros that no query sees, as products of other widths are slow.

Shapes: B rows, n windows of P positions, N heads of h columns; K keys, 1 + P filled up. The plain form is
`RanLayer.contexts` in the model's file. A program computes a place of all heads, or some rows of scores.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, next_power_of_2, real, tl

# Triton's kernels


@jit
def _of_heads(first, place, positions, of_text, heads, HEAD: constexpr, HEADS: constexpr, WIDTH: constexpr):
    """Of some heads' columns at a place of a text, the cell's first, then the tokens' and zeros: which there are, of
    tokens, of the cell; where tokens and cells have them; the number of the head among all texts', and the column."""
    text = tl.program_id(1).to(tl.int64)
    column = (tl.program_id(2) * WIDTH + tl.arange(0, WIDTH))[None, :]
    head = (first + tl.arange(0, HEADS))[:, None]
    is_token = (column < HEAD) & (head < tl.where((place > 0) & (place <= positions), heads, 0))
    is_cell = (column < HEAD) & (head < tl.where(place == 0, heads, 0))
    at = head * HEAD + column
    token = text * of_text + (place - 1) * (heads * HEAD) + at
    inside = (column < HEAD) & (head < heads)
    return inside, is_token, is_cell, token, text * (heads * HEAD) + at, text * heads + head, column


@jit
def _read(tokens, cells, at, of_cell, is_token, is_cell, REAL: constexpr):
    """What stands at a place."""
    value = tl.load(tokens + at, mask=is_token, other=0.0)
    return (value + tl.load(cells + of_cell, mask=is_cell, other=0.0)).to(REAL)


@jit
def _write(tokens, cells, at, of_cell, is_token, is_cell, value):
    tl.store(tokens + at, value.to(tokens.dtype.element_ty), mask=is_token)
    tl.store(cells + of_cell, value.to(cells.dtype.element_ty), mask=is_cell)


@jit
def _angles(turns, place, positions, HEAD: constexpr, REAL: constexpr, WIDTH: constexpr):
    """Cosines and sines [1, WIDTH / 2] of a token's position; the cell is not turned."""
    column = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    is_token = column < tl.where((place > 0) & (place <= positions), HEAD, 0)
    pair = tl.load(turns + (place - 1) * HEAD + column, mask=is_token, other=0.0).to(REAL)
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
    q, k, v, cell_q, cell_k, cell_v, turns, queries, keys, values, of_text, positions, places, heads, scale,
    HEAD: constexpr, ACTIVE: constexpr, TURNS: constexpr, REAL: constexpr, HEADS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    if TURNS:
        cosine, sine = _angles(turns, place, positions, HEAD, REAL, WIDTH)
    for first in range(0, heads, HEADS):
        inside, is_token, is_cell, at, of_cell, head, column = _of_heads(
            first, place, positions, of_text, heads, HEAD, HEADS, WIDTH
        )
        query = _active(_read(q, cell_q, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        key = _active(_read(k, cell_k, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        value = _active(_read(v, cell_v, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        if TURNS:
            query = _turned(query, cosine, sine, HEADS, WIDTH)
            key = _turned(key, cosine, sine, HEADS, WIDTH)
        target = (head * (1 + positions) + place) * HEAD + column
        tl.store(queries + target, (query * scale).to(queries.dtype.element_ty), mask=is_token | is_cell)
        target = (head * places + place) * HEAD + column
        tl.store(keys + target, key.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + target, value.to(values.dtype.element_ty), mask=inside)


@jit
def _to_heads_backward(
    dqueries, dkeys, dvalues, q, k, v, cell_q, cell_k, cell_v, turns,
    dq, dk, dv, dcell_q, dcell_k, dcell_v, of_text, of_gradient, positions, places, heads, scale,
    HEAD: constexpr, ACTIVE: constexpr, TURNS: constexpr, REAL: constexpr, HEADS: constexpr, WIDTH: constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    if TURNS:
        cosine, sine = _angles(turns, place, positions, HEAD, REAL, WIDTH)
    for first in range(0, heads, HEADS):
        inside, is_token, is_cell, at, of_cell, head, column = _of_heads(
            first, place, positions, of_text, heads, HEAD, HEADS, WIDTH
        )
        source = (head * (1 + positions) + place) * HEAD + column
        query = tl.load(dqueries + source, mask=inside, other=0.0).to(REAL) * scale
        source = (head * places + place) * HEAD + column
        key = tl.load(dkeys + source, mask=inside, other=0.0).to(REAL)
        value = tl.load(dvalues + source, mask=inside, other=0.0).to(REAL)
        if TURNS:
            query = _turned(query, cosine, -sine, HEADS, WIDTH)
            key = _turned(key, cosine, -sine, HEADS, WIDTH)
        query *= _slope(_read(q, cell_q, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        key *= _slope(_read(k, cell_k, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        value *= _slope(_read(v, cell_v, at, of_cell, is_token, is_cell, REAL), ACTIVE)
        at += tl.program_id(1).to(tl.int64) * (of_gradient - of_text)
        _write(dq, dcell_q, at, of_cell, is_token, is_cell, query)
        _write(dk, dcell_k, at, of_cell, is_token, is_cell, key)
        _write(dv, dcell_v, at, of_cell, is_token, is_cell, value)


@jit
def _from_heads(
    attended, tokens, cells, of_text, positions, heads, HEAD: constexpr, HEADS: constexpr, WIDTH: constexpr
):  # fmt: skip
    place = tl.program_id(0)
    for first in range(0, heads, HEADS):
        inside, is_token, is_cell, at, of_cell, head, column = _of_heads(
            first, place, positions, of_text, heads, HEAD, HEADS, WIDTH
        )
        value = tl.load(attended + (head * (1 + positions) + place) * HEAD + column, mask=inside, other=0.0)
        _write(tokens, cells, at, of_cell, is_token, is_cell, value)


@jit
def _from_heads_backward(
    dtokens, dcells, dattended, of_text, positions, heads, HEAD: constexpr, HEADS: constexpr, WIDTH: constexpr
):  # fmt: skip
    place = tl.program_id(0)
    for first in range(0, heads, HEADS):
        inside, is_token, is_cell, at, of_cell, head, column = _of_heads(
            first, place, positions, of_text, heads, HEAD, HEADS, WIDTH
        )
        value = _read(dtokens, dcells, at, of_cell, is_token, is_cell, dattended.dtype.element_ty)
        tl.store(dattended + (head * (1 + positions) + place) * HEAD + column, value, mask=inside)


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


# The operators. Tokens and what is written of them are one window's of all, [B, P, N h] whose last dimensions are
# contiguous.


def _blocks(heads: int, head: int) -> dict[str, int]:
    """Columns of a head, and how many heads and columns of each a program computes at a time."""
    width = min(256, next_power_of_2(head))
    return {"HEAD": head, "HEADS": min(next_power_of_2(heads), 1024 // width), "WIDTH": width}


def _keys(positions: int) -> int:
    return cdiv(1 + positions, 8) * 8


@Operator
def window_heads(
    tokens: list[Tensor], cells: list[Tensor], turns: Tensor | None, head: int, activates: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Projections of queries, keys and values of tokens [B, P, N h] and of cells [B, N h], turns [P, h/2, 2] if there
    are positions -> queries divided by the root of h [B N, 1 + P, h], keys and values [B N, K, h]."""
    made = _heads_like(tokens[0], head)
    rows, positions, columns = tokens[0].shape
    blocks = _blocks(columns // head, head)
    _to_heads[(made[1].shape[1], rows, cdiv(head, blocks["WIDTH"]))](
        *(*tokens, *cells, tokens[0] if turns is None else turns, *made),
        *(tokens[0].stride(0), positions, made[1].shape[1], columns // head, head**-0.5),
        ACTIVE=activates,
        TURNS=turns is not None,
        REAL=real(tokens[0]),
        **blocks,
    )
    return made


def _heads_like(tokens: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, positions, columns = tokens.shape
    count, keys = rows * columns // head, _keys(positions)
    queries = tokens.new_empty(count, 1 + positions, head)
    return queries, tokens.new_empty(count, keys, head), tokens.new_empty(count, keys, head)


@partial(Operator, mutates=("dtokens",))
def window_heads_backward(
    gradients: list[Tensor],
    tokens: list[Tensor],
    cells: list[Tensor],
    turns: Tensor | None,
    head: int,
    activates: bool,
    dtokens: list[Tensor],
) -> Tensor:
    """From the gradients of the outputs of `window_heads`, those of `cells` [3, B, N h]; those of `tokens` are written
    to `dtokens`."""
    dcells = _cells_like(cells)
    rows, positions, columns = tokens[0].shape
    blocks = _blocks(columns // head, head)
    _to_heads_backward[(1 + positions, rows, cdiv(head, blocks["WIDTH"]))](
        *(*gradients, *tokens, *cells, tokens[0] if turns is None else turns, *dtokens, *dcells.unbind(0)),
        *(tokens[0].stride(0), dtokens[0].stride(0), positions, gradients[1].shape[1], columns // head, head**-0.5),
        ACTIVE=activates,
        TURNS=turns is not None,
        REAL=real(tokens[0]),
        **blocks,
    )
    return dcells


def _cells_like(cells: list[Tensor]) -> Tensor:
    return cells[0].new_empty(3, *cells[0].shape)


@partial(Operator, mutates=("tokens",))
def window_context(attended: Tensor, tokens: Tensor) -> Tensor:
    """The heads' outputs [B N, 1 + P, h] -> the cells' [B, N h]; the tokens' are written to `tokens`."""
    cells = _first_of(tokens)
    rows, positions, columns = tokens.shape
    blocks = _blocks(len(attended) // rows, attended.shape[2])
    _from_heads[(1 + positions, rows, cdiv(blocks["HEAD"], blocks["WIDTH"]))](
        attended, tokens, cells, tokens.stride(0), positions, columns // blocks["HEAD"], **blocks
    )
    return cells


def _first_of(tokens: Tensor) -> Tensor:
    return tokens.new_empty(tokens.shape[0], tokens.shape[2])


@Operator
def window_context_backward(dtokens: Tensor, dcells: Tensor, head: int) -> Tensor:
    """The gradient of `attended` [B N, 1 + P, h], from those of the tokens' outputs and of the cells'."""
    dattended = _attended_like(dtokens, head)
    rows, positions, columns = dtokens.shape
    blocks = _blocks(columns // head, head)
    _from_heads_backward[(1 + positions, rows, cdiv(head, blocks["WIDTH"]))](
        dtokens, dcells.contiguous(), dattended, dtokens.stride(0), positions, columns // head, **blocks
    )
    return dattended


def _attended_like(tokens: Tensor, head: int) -> Tensor:
    return tokens.new_empty(tokens.shape[0] * tokens.shape[2] // head, 1 + tokens.shape[1], head)


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


window_heads.register_fake(lambda tokens, cells, turns, head, activates: _heads_like(tokens[0], head))
window_heads_backward.register_fake(lambda gradients, tokens, cells, *_: _cells_like(cells))
window_context.register_fake(lambda attended, tokens: _first_of(tokens))
window_context_backward.register_fake(lambda dtokens, dcells, head: _attended_like(dtokens, head))
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
    """Projections of all windows go from a window's function to the next one's, and so does the output of all: each
    takes its own window of them and writes its own. Their gradients come back in the same way. Else autograd would copy
    the windows' gradients together and add them."""

    @staticmethod
    def forward(ctx: Any, number: int, options: Options, *given: Tensor) -> tuple[Tensor, ...]:
        *of_tokens, context, q, k, v = given
        tokens, cells = [one[:, number] for one in of_tokens], [q, k, v]
        queries, keys, values = window_heads.launch(tokens, cells, options.turns, options.head, options.activates)
        scores = queries @ keys.mT
        weights = window_weights.launch(scores, options.mask, len(q), options.drops, options.seed)
        of_cells = window_context.launch(weights @ values, context[:, number])
        ctx.number, ctx.options = number, options
        ctx.save_for_backward(*of_tokens, *cells, queries, keys, values, scores, weights)
        ctx.set_materialize_grads(False)
        return *of_tokens, context, of_cells

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        number, options = ctx.number, ctx.options
        *kept, queries, keys, values, scores, weights = ctx.saved_tensors  # asked for once, as checkpointing wants it
        of_tokens, cells = kept[:3], kept[3:]
        tokens = [one[:, number] for one in of_tokens]
        # The last window's function makes room for all gradients; zeros if a later window has none.
        *given, dcontext, dcells = gradients
        new = torch.empty_like if number == of_tokens[0].shape[1] - 1 else torch.zeros_like
        dtokens = [new(x) if dx is None else dx for x, dx in zip(of_tokens, given, strict=True)]
        dcontext = None if dcontext is None else dcontext.contiguous()
        output = torch.zeros_like(tokens[0]) if dcontext is None else dcontext[:, number]
        dcells = torch.zeros_like(cells[0]) if dcells is None else dcells
        dattended = window_context_backward.launch(output, dcells, options.head)
        dweights = dattended @ values.mT
        dscores = window_weights_backward.launch(
            dweights, scores, options.mask, len(dcells), options.drops, options.seed
        )
        of_heads = [dscores @ keys, dscores.mT @ queries, weights.mT @ dattended]
        written = [one[:, number] for one in dtokens]
        of_cells = window_heads_backward.launch(
            of_heads, tokens, cells, options.turns, options.head, options.activates, written
        )
        return None, None, *dtokens, dcontext, *of_cells.unbind(0)


def window_attention(
    number: int, options: Options, of_tokens: list[Tensor], context: Tensor, of_cells: list[Tensor]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The attention of window `number`: projections `of_tokens`, queries, keys and values of all windows, and their
    `context` [B, n, P, N h], in which the window's output is written; projections `of_cells` [B, N h].

    Returns both as the next window takes them, and the cells' output [B, N h]. Projections and context are read of what
    the last window returns alone: each window's function makes its part of their gradients."""
    q, k, v, context, cells = _Window.apply(number, options, *of_tokens, context, *of_cells)
    return [q, k, v], context, cells
