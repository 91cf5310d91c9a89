"""Transformer-XL's attention to a segment and its memory, by content and relative position (Dai et al. 2019).

Copied beside exported weights.

Shapes: B rows, T tokens of the segment, M slots of memory, S = M + T keys, D hidden size, N heads, h head size,
d a distance, query minus key.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_transformer_xl import TransformerXLConfig

# The least number of float16: finite in every type, so no kernel meets a block of keys that are all minus infinity
MASKED = -65504.0


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """R(p) for positions of any shape [...] -> float64 [..., width]: all sines, then all cosines.

    In float64, since a float32 angle has an error of 1e-4 at position 2000.
    """
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width)
    angles = positions[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def relative_shift(x: Tensor) -> Tensor:
    """x [..., T, S + 1], column c for the distance S - c -> [..., T, S], column j for key j.

    Query i is at M + i, so its distance to key j is in column 1 + j + T - 1 - i, which moves left by one in each row:
    the same numbers read in rows of S. Columns of later keys hold numbers of other rows.
    """
    queries, columns = x.shape[-2:]
    return x.reshape(*x.shape[:-2], columns, queries)[..., 1:, :].reshape(*x.shape[:-1], columns - 1)


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """y with y · R(b) = x · R(a - b) for every b, by the sum formulas of sine and cosine.

    x [B, N, T, w]; positions R(a) [B, 1, T, w] in float32.
    """
    x_sin, x_cos = x.chunk(2, dim=-1)
    sin, cos = positions.chunk(2, dim=-1)
    return torch.cat([x_cos * sin - x_sin * cos, x_sin * sin + x_cos * cos], dim=-1).to(x.dtype)


class Positions(NamedTuple):
    """The positions, for all layers."""

    distances: Tensor
    """R of the distances S, ..., 0 [S + 1, w] or [B, S + 1, w]; w < D where `streams` hold the rest of D."""
    streams: tuple[tuple[Tensor, Tensor], ...] = ()
    """Exact Segatron: for sentences and paragraphs, R of the queries' [B, 1, T, w] and the keys' index [B, 1, S, w]."""


class TransformerXLSelfAttention(nn.Module):
    """Attention whose only randomness is dropout of probabilities, which differs between split heads."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.head_size = config.d_head
        self.dropout = config.dropatt
        self.query, self.key, self.value, self.position = (
            nn.Linear(config.d_model, config.n_head * config.d_head, bias=False) for _ in range(4)
        )

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        *,
        biases: tuple[Tensor, Tensor],
        positions: Positions,
        masked: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """softmax_j([(q_i + u) k_j + (q_i + v) W_r R(d_ij)] / sqrt(h)) v_j, eq. of section 3.3 of the paper.

        hidden [B, T, D], memory [B, M, D], biases u and v [N, h], masked (bool) [T, S] or [B, 1, T, S]
        -> [B, T, N h], or this device's heads of it. No tensor has more than T S numbers a head.

        With `weights`, which `probabilities` returns for the same arguments, no fused kernel computes them again.
        """
        keys = torch.cat([memory, hidden], dim=1)
        dropout = self.dropout if self.training else 0.0
        if weights is not None:
            v = self._heads(self.value(keys))
            return (F.dropout(weights.to(v.dtype), dropout) @ v).transpose(1, 2).flatten(2)
        content, k, scores = self._terms(hidden, keys, biases, positions)
        v = self._heads(self.value(keys))
        z = F.scaled_dot_product_attention(
            content,
            k,
            v,
            attn_mask=scores.masked_fill(masked, MASKED),
            dropout_p=dropout,
        )
        return z.transpose(1, 2).flatten(2)

    def probabilities(
        self, hidden: Tensor, memory: Tensor, *, biases: tuple[Tensor, Tensor], positions: Positions, masked: Tensor
    ) -> Tensor:
        """The softmax [B, N, T, S] of `forward` for its arguments, at least float32 and without dropout."""
        content, k, scores = self._terms(hidden, torch.cat([memory, hidden], dim=1), biases, positions)
        scores = (scores + content @ k.transpose(-1, -2) * self.head_size**-0.5).masked_fill(masked, MASKED)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)

    def _terms(
        self, hidden: Tensor, keys: Tensor, biases: tuple[Tensor, Tensor], positions: Positions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q + u [B, N, T, h], k [B, N, S, h], and the scores of positions [B, N, T, S]."""
        q, k = self._heads(self.query(hidden)), self._heads(self.key(keys))
        content, position = (q + bias[:, None] for bias in biases)
        return content, k, self._position_scores(position * self.head_size**-0.5, positions)

    def _position_scores(self, q: Tensor, positions: Positions) -> Tensor:
        """q [B, N, T, h], v added -> q_i W_r R(d_ij) [B, N, T, S]."""
        weight = self.position.weight.unflatten(0, (-1, self.head_size))  # [N, h, D]
        distances, rest = positions.distances, weight.shape[-1] - positions.distances.shape[-1]
        table = torch.einsum("...sd,nhd->...nsh", distances, weight[..., : distances.shape[-1]])
        rows = "b" if distances.dim() == 3 else ""
        scores = relative_shift(torch.einsum(f"bnth,{rows}nsh->bnts", q, table))
        if rest:
            widths = [keys.shape[-1] for _, keys in positions.streams]
            products = torch.einsum("bnth,nhd->bntd", q, weight[..., -rest:]).split(widths, dim=-1)
            for product, (queries, keys) in zip(products, positions.streams, strict=True):
                scores = scores + turn(product, queries) @ keys.transpose(-1, -2)
        return scores

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
