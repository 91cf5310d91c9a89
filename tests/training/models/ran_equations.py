"""RAN a second time: one text, one window after the other, one head at a time, as the equations stand in section 3 of
the paper (Li et al. 2023), or as the authors' code computes them. No code is shared with the model, which it checks.

L tokens of one text, D hidden size, h head size. `w` are the model's parameters by name, without the prefix in front
of the layer's or the model's own.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def below(w: Weights, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in w.items() if name.startswith(prefix)}


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def normalised(x: Tensor, paper: bool) -> Tensor:
    """Eq. 5; the authors' code divides by the root mean square of x itself."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred if paper else x).pow(2).mean(-1, keepdim=True) + 1e-7).sqrt()


def norm(x: Tensor, w: Weights, name: str, paper: bool) -> Tensor:
    return normalised(x, paper) * w[f"{name}.weight"] + w[f"{name}.bias"]


def swish(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gated(x: Tensor, w: Weights, name: str) -> Tensor:
    return linear(x, w, f"{name}.linear") / (1 + torch.exp(-linear(x, w, f"{name}.gate")))


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [Q, h], k and v [K, h], seen [Q, K] -> [Q, h]."""
    scores = torch.where(seen, q @ k.T / math.sqrt(q.shape[-1]), -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def turned(x: Tensor) -> Tensor:
    """Rotary positions of x [P, h]: neighbouring columns as one complex number, row p turned by p times a frequency."""
    pairs = torch.view_as_complex(x.reshape(len(x), -1, 2).contiguous())
    frequencies = 10000.0 ** (-torch.arange(pairs.shape[1], dtype=torch.float64) / pairs.shape[1])
    turns = torch.exp(1j * torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies)
    return torch.view_as_real(pairs * turns).reshape(x.shape)


def visible(there: list[bool], numbers: list[int] | None) -> Tensor:
    """What the cell and the tokens of a window see of each other, bool [1 + P, 1 + P]."""
    seen = torch.tensor([True, *there]).repeat(1 + len(there), 1)
    for i in range(len(there)):
        for j in range(len(there)):
            seen[1 + i, 1 + j] &= numbers is None or numbers[j] <= numbers[i]
    return seen


def window_borders(length: int, window: int, shortest: int) -> list[int]:
    """The first token of each window."""
    borders = list(range(0, length, window))
    return borders[:-1] if len(borders) > 1 and length - borders[-1] < shortest else borders


def layer(
    w: Weights,
    x: Tensor,
    cell: Tensor,
    *,
    paper: bool,
    window: int,
    shortest: int,
    head_size: int,
    order: list[int] | None = None,
    real: list[bool] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens x [L, D] and the cell [D] handed in -> tokens [L, D], the last cell [D], what each window gave [n, D].

    A rest of the text under `shortest` tokens is read with the window before. order: a token sees those whose number
    is no greater; 0 is prefix. real: False at padding, which is read as the authors' code does.
    """
    there = [True] * len(x) if real is None else real
    borders = window_borders(len(x), window, shortest)
    cell = begun(w, cell, paper)
    if len(x) == 0:
        return x, cell, x
    cells, raws, outputs = [cell], [], []
    for begin, end in zip(borders, [*borders[1:], len(x)], strict=True):
        seen = visible(there[begin:end], None if order is None else order[begin:end])
        before = raws[-1] if raws else None
        y, raw, cell = of_window(w, x[begin:end], cells[-1], before, seen, paper=paper, head_size=head_size)
        raws.append(raw)
        cells.append(cell)
        outputs.append(y)
    tokens = torch.cat(outputs)  # eq. 7
    memory = cells[1:] if paper else raws  # eq. 8
    seen = torch.ones(len(x), len(memory), dtype=torch.bool)
    if order is not None:
        memory = [cells[0], *memory]
        prefix = order.count(0)
        whole = [(number + 1) * window <= prefix for number in range(len(raws))]
        seen = torch.tensor([[True, *(n < i // window or whole[n] for n in range(len(raws)))] for i in range(len(x))])
    kept = torch.stack(memory)
    return review_of(w, tokens, kept, torch.tensor(there), seen, paper=paper), cells[-1], torch.stack(raws)


def begun(w: Weights, cell: Tensor, paper: bool) -> Tensor:
    """The cell [D] that a layer begins with, from the one handed in (eq. 1)."""
    if not paper and cell.any():
        return cell
    given = linear(cell, w, "initial.dense")
    return norm(given if paper else swish(given), w, "initial.LayerNorm", paper)


def of_window(
    w: Weights, x: Tensor, cell: Tensor, before: Tensor | None, seen: Tensor, *, paper: bool, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens x [P, D] of a window, what it gives [D], and the next cell [D]; `before`: what was given before."""
    act = (lambda y: y) if paper else swish
    z = norm(torch.cat([cell[None], x]), w, "LayerNorm", paper)  # eq. 2, 4: the cell is put before
    q, k, v = (act(linear(z, w, f"attention.{name}")) for name in ("query", "key", "value"))  # eq. 3
    columns = [slice(start, start + head_size) for start in range(0, q.shape[1], head_size)]
    heads = [attend(turned(q[:, c]), turned(k[:, c]), v[:, c], seen) for c in columns]
    y = act(linear(torch.cat(heads, dim=1), w, "attention.output"))  # eq. 4
    if not paper:
        y = norm(y + gated(z, w, "attention.residual"), w, "attention.residual.LayerNorm", paper)
    y = normalised(y, paper)  # eq. 5
    if paper:  # eq. 6
        return y[1:], y[0], norm(y[0] + cell, w, "cell.residual.LayerNorm", paper)
    if before is None:
        return y[1:], y[0], y[0]
    return y[1:], y[0], norm(y[0] + gated(before, w, "cell.residual"), w, "cell.residual.LayerNorm", paper)


def review_of(w: Weights, tokens: Tensor, kept: Tensor, there: Tensor, seen: Tensor, *, paper: bool) -> Tensor:
    """Memory review of cells kept [n, D]; seen [L, n]; there [L], False at padding."""
    act = (lambda y: y) if paper else swish
    q, k, v = (act(linear(a, w, f"review.{b}")) for a, b in ((tokens, "query"), (kept, "key"), (kept, "value")))
    review = attend(q * there[:, None], k, v, seen)  # eq. 9
    if not paper:
        review = act(linear(review, w, "review.output")) + gated(q, w, "review.residual")
        review = norm(review, w, "review.residual.LayerNorm", paper)
    return review


def window_by_window(w: Weights, ids: Tensor, config: Any, *, paper: bool) -> tuple[Tensor, Tensor]:
    """`model` where a window goes through all layers and the last one's cell to the next window (4.5.2): the last
    layer's tokens [L, D] and cell [D]. A layer below the last reviews the cells that it has by then."""
    x = norm(w["embeddings.word_embeddings.weight"][ids], w, "embeddings.LayerNorm", paper)
    borders = window_borders(len(ids), config.window_size, 1 if paper else config.min_window_size)
    layers = [below(w, f"encoder.layer.{number}.") for number in range(config.num_hidden_layers)]
    kept: list[list[Tensor]] = [[] for _ in layers]
    cell, raw, outputs, inputs = torch.zeros_like(x[0]), None, [], []
    for begin, end in zip(borders, [*borders[1:], len(ids)], strict=True):
        tokens, there = x[begin:end], torch.ones(end - begin, dtype=torch.bool)
        for number, own in enumerate(layers):
            before, given = raw if begin else None, tokens
            cell = cell if begin else begun(own, cell, paper)  # in each layer's first window
            seen = visible(there.tolist(), None)
            tokens, raw, cell = of_window(own, tokens, cell, before, seen, paper=paper, head_size=config.head_size)
            kept[number].append(cell if paper else raw)
            if number < len(layers) - 1:
                memory = torch.stack(kept[number])
                tokens = review_of(own, tokens, memory, there, torch.ones(len(there), len(memory)) == 1, paper=paper)
                tokens = tokens + given if config.layer_residual and number else tokens
        inputs.append(given)
        outputs.append(tokens)
    memory, there = torch.stack(kept[-1]), torch.ones(len(ids), dtype=torch.bool)
    reviewed = review_of(
        layers[-1], torch.cat(outputs), memory, there, there[:, None].expand(-1, len(memory)), paper=paper
    )
    return reviewed + torch.cat(inputs) if config.layer_residual else reviewed, cell


def model(w: Weights, ids: Tensor, config: Any, *, paper: bool) -> tuple[Tensor, Tensor, Tensor]:
    """ids [L] -> the last layer's tokens [L, D], the text's vector [D] (eq. 10 and 11), the last cell [D]."""
    x = norm(w["embeddings.word_embeddings.weight"][ids], w, "embeddings.LayerNorm", paper)
    cell = torch.zeros_like(x[0])
    for number in range(config.num_hidden_layers):
        x, cell, _ = layer(
            below(w, f"encoder.layer.{number}."),
            x,
            cell,
            paper=paper,
            window=config.window_size,
            shortest=1 if paper else config.min_window_size,
            head_size=config.head_size,
        )
    pooled = linear(torch.stack([column.max() for column in x.T]), w, "pooler.tokens")  # eq. 11
    of_cell = linear(cell, w, "pooler.cell")
    return x, (of_cell if paper else gated(swish(of_cell), w, "pooler.gated")) + pooled, cell  # eq. 10
