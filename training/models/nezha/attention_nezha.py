"""NEZHA's attention: relative positions are added to keys and values (Wei et al. 2019, section 3.1).

Copied beside exported weights.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, K `max_relative_position`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import at_least_float32, exporting, rotate
from .configuration_nezha import NezhaConfig

# Added to masked scores: the least number of float16, finite in every type, so that a row of nothing but padding does
# not divide zero by zero.
MASKED = -65504.0


class Rotations(NamedTuple):
    """Unclipped functional positions, for `rotated_attention`."""

    features: Tensor
    """R[j + s] [L, h]."""
    turns: Tensor
    """Cosines and sines of the angles i w, [L, h/2, 2]."""


class Tables(NamedTuple):
    """Rows of clipped distances -K to K, [2K + 1, h] each, for `clipped_attention`."""

    keys: Tensor
    values: Tensor


Positions = Rotations | Tables | None


def sinusoids(positions: Tensor, head_size: int) -> Tensor:
    """Rows R[p] of the paper's table (eq. 6-7) for positions [n] -> float64 [n, h]: sin at even, cos at odd columns.

    In float64, since a float32 angle has an error of 5e-4 at position 8192.
    """
    frequencies = 10000.0 ** (-torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float64) / head_size)
    angles = positions[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def rotated_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Rotations, mask: Tensor | None, *, dropout: float
) -> Tensor:
    """The paper's attention without an L x L x h tensor, and without an L x L one if the kernel needs none:

        z_i = sum_j a_ij (v_j + R[j - i + s])    a_i = softmax_j((q_i k_j + q_i R[j - i + s]) / sqrt(h))

    With each pair (sin, cos) of R as a complex number, R[j - i + s] is R[j + s] rotated by the angles i w. Rotating
    the query back instead gives the same product: append the rotated query to q and R[j + s] to k and v, run ordinary
    attention at twice the head size, and rotate the second half of the output. R is rounded to half precision once,
    with the same error at every position.

    q, k, v [B, N, L, h]; mask [B, 1, 1, L].
    """
    features, turns = positions
    features = features.to(k.dtype).expand_as(k)
    output = F.scaled_dot_product_attention(
        torch.cat([q, rotate(q, turns, back=True)], dim=-1),
        torch.cat([k, features], dim=-1),
        torch.cat([v, features], dim=-1),
        attn_mask=mask,
        dropout_p=dropout,
        scale=q.shape[-1] ** -0.5,
    )
    content, relative = output.chunk(2, dim=-1)
    return content + rotate(relative, turns)


class _Spread(torch.autograd.Function):
    """[..., L, 2K+1] -> [..., L, L]: column clip(j - i) + K of row i goes to (i, j)."""

    @staticmethod
    def forward(ctx: Any, binned: Tensor) -> Tensor:
        length, clip = binned.shape[-2], binned.shape[-1] // 2
        positions = torch.arange(length, device=binned.device)
        columns = (positions - positions[:, None]).clamp(-clip, clip) + clip
        ctx.clip = clip
        return binned.gather(-1, columns.expand(*binned.shape[:-1], length))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Collect.apply(gradients[0], ctx.clip)


class _Collect(torch.autograd.Function):
    """[..., L, L] -> [..., L, 2K+1]: sums row i over all j with equal clip(j - i) + K; the adjoint of `_Spread`.

    A gather and two row sums: unlike scatter_add, it adds in a fixed order on every device.
    """

    @staticmethod
    def forward(ctx: Any, square: Tensor, clip: int) -> Tensor:
        length = square.shape[-1]
        positions = torch.arange(length, device=square.device)
        columns = positions[:, None] + torch.arange(-clip, clip + 1, device=square.device)
        inside = (columns >= 0) & (columns < length)
        binned = square.gather(-1, columns.clamp(0, length - 1).expand(*square.shape[:-1], -1)) * inside
        if exporting() or length > clip + 1:
            distances = positions - positions[:, None]
            beyond = torch.stack([distances < -clip, distances > clip], dim=-1).to(square.dtype)
            ends = torch.einsum("...ij,ije->...ie", square, beyond)
            binned[..., 0] += ends[..., 0]
            binned[..., -1] += ends[..., 1]
        return binned

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0]), None


def clipped_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tables, mask: Tensor | None, *, dropout: float
) -> Tensor:
    """Attention with clipped distances, p = clip(j - i, -K, K) + K:

        z_i = sum_j a_ij (v_j + values[p])    a_i = softmax_j((q_i k_j + q_i keys[p]) / sqrt(h))

    Products are taken with the 2K + 1 rows of the tables and spread over (i, j), and probabilities are collected into
    2K + 1 bins: memory grows as L (L + 2K), never as L L h. Softmax in float32 whatever the type.

    q, k, v [B, N, L, h]; mask [B, 1, 1, L].
    """
    q = q * q.shape[-1] ** -0.5
    probabilities = _softmax(q @ k.transpose(-1, -2) + _Spread.apply(q @ positions.keys.to(q.dtype).T), mask)
    probabilities = probabilities.to(v.dtype)
    return weighted(F.dropout(probabilities, dropout) if dropout else probabilities, v, positions)


def weighted(probabilities: Tensor, v: Tensor, positions: Positions) -> Tensor:
    """z_i = sum_j a_ij (v_j + its position's row) [B, N, L, h], for probabilities a [B, N, L, L] and v [B, N, L, h]."""
    if positions is None:
        return probabilities @ v
    if isinstance(positions, Rotations):
        features = positions.features.to(v.dtype).expand_as(v)
        content, relative = (probabilities @ torch.cat([v, features], dim=-1)).chunk(2, dim=-1)
        return content + rotate(relative, positions.turns)
    table = positions.values.to(v.dtype)
    return probabilities @ v + _Collect.apply(probabilities, len(table) // 2) @ table


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Probabilities, at least float32, of scores [B, N, L, L]."""
    scores = at_least_float32(scores)
    return (scores if mask is None else scores + mask).softmax(-1)


class NezhaSelfAttention(nn.Module):
    """Attention whose only randomness is dropout of probabilities, which differs between split heads."""

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.relative_keys = self.relative_values = None
        if config.position_type == "parametric_relative" and config.max_relative_position is not None:
            rows = 2 * config.max_relative_position + 1
            self.relative_keys = nn.Embedding(rows, self.head_size)
            self.relative_values = nn.Embedding(rows, self.head_size)

    def forward(
        self, hidden: Tensor, mask: Tensor | None, positions: Positions, weights: Tensor | None = None
    ) -> Tensor:
        """hidden [B, L, D], mask [B, 1, 1, L] -> [B, L, D], or this device's heads of it.

        With `weights`, which `probabilities` returns for the same arguments, no fused kernel computes them again."""
        dropout = self.dropout if self.training else 0.0
        positions = self._tables() or positions
        if weights is not None:
            v = self._heads(self.value(hidden))
            return weighted(F.dropout(weights.to(v.dtype), dropout), v, positions).transpose(1, 2).flatten(2)
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        mask = None if mask is None else mask.to(q.dtype)
        if positions is None:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        elif isinstance(positions, Rotations):
            z = rotated_attention(q, k, v, positions, mask, dropout=dropout)
        else:
            z = clipped_attention(q, k, v, positions, mask, dropout=dropout)
        return z.transpose(1, 2).flatten(2)

    def probabilities(self, hidden: Tensor, mask: Tensor | None, positions: Positions) -> Tensor:
        """a_ij [B, N, L, L] without dropout, for the arguments of `forward`, whose fused kernels do not return them."""
        q, k = (self._heads(project(hidden)) for project in (self.query, self.key))
        q = q * self.head_size**-0.5
        positions = self._tables() or positions
        if positions is None:
            return _softmax(q @ k.transpose(-1, -2), mask)
        if isinstance(positions, Rotations):
            q = torch.cat([q, rotate(q, positions.turns, back=True)], dim=-1)
            k = torch.cat([k, positions.features.to(k.dtype).expand_as(k)], dim=-1)
            return _softmax(q @ k.transpose(-1, -2), mask)
        return _softmax(q @ k.transpose(-1, -2) + _Spread.apply(q @ positions.keys.to(q.dtype).T), mask)

    def _tables(self) -> Tables | None:
        """The learned tables of distances of keys and of values, if this layer has them."""
        if self.relative_keys is None or self.relative_values is None:
            return None
        rows = torch.arange(self.relative_keys.num_embeddings, device=self.relative_keys.weight.device)
        return Tables(self.relative_keys(rows), self.relative_values(rows))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)
