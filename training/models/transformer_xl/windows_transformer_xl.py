"""Transformer-XL's attention to a window of earlier tokens, dilated or not: the character models of Longformer (Beltagy
et al. 2020, section 4).

Copied beside exported weights.

A window with dilation d holds every d-th token. The text is then d strands, each of every d-th of its tokens, and
within a strand the window is an ordinary one. A strand is cut into chunks of queries, and a chunk is to the w keys
before it what a segment is to its memory.

Shapes: B rows, T tokens of the segment, M slots of memory, D hidden size, N heads, h head size, w tokens before a token
in its window, d the dilation; C chunks a strand of c queries, each of which meets the k = w + c keys before and in it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..blocks import rejoined, strands
from .attention_transformer_xl import MASKED, Positions, TransformerXLSelfAttention, relative_shift
from .configuration_transformer_xl import TransformerXLConfig

# The fewest queries of a chunk
CHUNK = 64


class PastChunks:
    """The cut of T tokens after M slots of memory for a window of the w tokens before each, d apart.

    A short strand is one chunk with as much of the memory before it as its window reaches.
    """

    def __init__(self, length: int, memory: int, window: int, dilation: int) -> None:
        size, strand = max(CHUNK, window // 2), -(-length // dilation)
        reached = min(window, -(-memory // dilation))
        self.tokens, self.memory, self.window, self.dilation = length, memory, window, dilation
        self.count = 1 if strand + reached <= size + window else -(-strand // size)
        self.size = strand if self.count == 1 else -(-strand // self.count // 16) * 16  # for aligned tensors
        self.before = reached if self.count == 1 else window

    def queries(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [B d C, c, ...]."""
        return self._strands(x, 0).reshape(-1, self.size, *x.shape[2:])

    def keys(self, x: Tensor) -> Tensor:
        """[B, M + T, ...] -> [B d C, k, ...]."""
        before = self._strands(x, self.before * self.dilation - self.memory)
        return before.unfold(1, self.before + self.size, self.size).movedim(-1, 2).flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """[B d C, c, ...] -> [B, T, ...]."""
        return rejoined(x.reshape(-1, self.count * self.size, *x.shape[2:]), self.dilation)[:, : self.tokens]

    def near(self, device: torch.device) -> Tensor:
        """Whether a key of a chunk is in the window of a query: bool [c, k]."""
        queries = torch.arange(self.size, device=device)[:, None]
        keys = torch.arange(-self.before, self.size, device=device)
        return (keys <= queries) & (queries - keys <= self.window)

    def exist(self, device: torch.device) -> Tensor:
        """Whether a key is in memory or segment: bool [d C, k]."""
        starts = torch.arange(self.count, device=device)[:, None] * self.size
        keys = torch.arange(-self.before, self.size, device=device)
        places = (starts + keys) * self.dilation + torch.arange(self.dilation, device=device)[:, None, None]
        return ((places >= -self.memory) & (places < self.tokens)).flatten(0, 1)

    def distances(self, table: Tensor) -> Tensor:
        """R of the distances M + T, ..., 0 [M + T + 1, D] -> of those of keys, k d, ..., d, 0 [k + 1, D]; what lies
        further than the whole text is in no window."""
        steps = torch.arange(self.before + self.size, -1, -1, device=table.device) * self.dilation
        return table[(len(table) - 1 - steps).clamp(min=0)]

    def _strands(self, x: Tensor, missing: int) -> Tensor:
        """x, with so many tokens more at its beginning, or less, in strands, filled to whole chunks."""
        behind = self.count * self.size * self.dilation - self.tokens
        return strands(F.pad(x, (*(0, 0) * (x.dim() - 2), missing, behind)), self.dilation)  # a negative pad crops


class WindowedSelfAttention(TransformerXLSelfAttention):
    """Attention whose only randomness is dropout of probabilities, which differs between split heads."""

    def __init__(self, config: TransformerXLConfig, window: int, dilation: int, dilated: int) -> None:
        """The first `dilated` heads have windows with this dilation."""
        super().__init__(config)
        self.window, self.dilation, self.dilated = window, dilation, dilated

    def keep_heads(self, first: int, count: int) -> None:
        """Keep `count` heads from `first` on, whose projections this device has."""
        self.dilated = min(max(self.dilated - first, 0), count)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        *,
        biases: tuple[Tensor, Tensor],
        positions: Positions,
        masked: Tensor | None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """As `TransformerXLSelfAttention.forward`, with j in the window of i: i - j is 0, d, ..., w d.

        masked: bool [B, M], slots of memory that are empty. No tensor has more than T (w + c) numbers a head.
        """
        x = torch.cat([memory, hidden], dim=1)
        q, k, v = (self._split(y) for y in (self.query(hidden), self.key(x), self.value(x)))
        weight = self.position.weight.unflatten(0, (-1, self.head_size))  # [N, h, D]
        empty = None if masked is None else F.pad(masked, (0, hidden.shape[1]))
        parts = []
        for heads, dilation in ((slice(0, self.dilated), self.dilation), (slice(self.dilated, None), 1)):
            own = [y[:, :, heads] for y in (q, k, v)]
            if own[0].shape[2]:
                chunks = PastChunks(hidden.shape[1], memory.shape[1], self.window, dilation)
                table = torch.einsum("sd,nhd->nsh", chunks.distances(positions.distances), weight[heads])
                parts.append(self._windows(chunks, own, [bias[heads] for bias in biases], table, empty))
        return torch.cat(parts, dim=2).flatten(2)

    def probabilities(self, hidden: Tensor, memory: Tensor, **shared: object) -> Tensor:
        raise ValueError("attention to windows has no probabilities for all tokens; leave out output_attentions")

    def _windows(
        self, chunks: PastChunks, qkv: list[Tensor], biases: list[Tensor], table: Tensor, empty: Tensor | None
    ) -> Tensor:
        """q [B, T, n, h], k and v [B, M + T, n, h] of n heads, their biases [n, h] and W_r R [n, k + 1, h] of distances
        k d, ..., 0 -> [B, T, n, h]."""
        q = chunks.queries(qkv[0]).transpose(1, 2)
        k, v = (chunks.keys(y).transpose(1, 2) for y in qkv[1:])
        content, position = (q + bias[:, None] for bias in biases)
        scores = relative_shift(position * self.head_size**-0.5 @ table.transpose(-1, -2))
        exist = chunks.exist(q.device).repeat(len(qkv[0]), 1)
        if empty is not None:
            exist = exist & ~chunks.keys(empty)
        # One after the other: together they would be a mask as large as the scores
        scores = scores.masked_fill(~chunks.near(q.device), MASKED).masked_fill_(~exist[:, None, None], MASKED)
        z = F.scaled_dot_product_attention(
            content,
            k,
            v,
            attn_mask=scores,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return chunks.rows(z.transpose(1, 2))

    def _split(self, x: Tensor) -> Tensor:
        """[B, S, n h] -> [B, S, n, h]."""
        return x.unflatten(-1, (-1, self.head_size))
