"""Longformer's attention: a sliding window, dilated or not, and global tokens (Beltagy et al. 2020, section 3).

Ordinary scaled_dot_product_attention over chunks of queries whose windows of keys overlap, so that time and memory grow
with the length and not with its square, on any device and at any length, without padding of the text to a multiple of
the window.

A window with dilation d holds every d-th token. Such a row is d strands, each of every d-th of its tokens, and within a
strand the window is an ordinary one.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, w the window to each side, d the dilation, G the
most global tokens of a row; C chunks a strand of c queries, each of which meets the k = c + 2w keys around its chunk.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerConfig

from ..blocks import chosen_first, exporting, rejoined, strands

# Added to masked scores: finite, also after float16 adds a score, so that a token that sees nothing does not divide
# zero by zero.
MASKED = -3e4

# The fewest queries of a chunk. Chunks of w / 2 are among the fastest for every window tried (benchmarks/): larger ones
# compute more masked scores, smaller ones copy more gradients.
CHUNK = 64

# Scores computed at a time where they are materialised: few enough for a cache
SCORES = 2**20


class Chunks:
    """The cut of rows of L tokens for a window of w tokens to each side, of which neighbours are d tokens apart.

    A short strand is one chunk with no keys beside it. Otherwise strands are concatenated, each padded to C chunks, and
    the keys of a chunk are its own tokens and the w on either side; masks hide those of another strand. Recorded by
    torch.export, rows of any length are cut into chunks of one size.
    """

    def __init__(self, length: int, window: int, dilation: int = 1) -> None:
        size = max(CHUNK, window // 2)
        self.tokens, self.window, self.dilation = length, window, dilation
        self.length = length = -(-length // dilation)
        if exporting():
            self.count, self.size, self.beside = (length + size - 1) // size, size, window
            return
        self.count = 1 if length <= size + 2 * window else -(-length // size)
        self.size = length if self.count == 1 else -(-length // self.count // 16) * 16  # for aligned tensors
        self.beside = 0 if self.count == 1 else window

    @property
    def parts(self) -> int:
        """d C, the chunks of a row."""
        return self.dilation * self.count

    def queries(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> [B d C, c, ...]."""
        return self._filled(x).reshape(-1, self.size, *x.shape[2:])

    def keys(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> [B d C, k, ...], a view of one copy."""
        flat = self._filled(x).flatten(0, 1)
        if self.beside:
            flat = F.pad(flat, (*(0, 0) * (x.dim() - 2), self.beside, self.beside))
        if exporting():  # ONNX has no such view
            starts = torch.arange(x.shape[0] * self.parts, device=x.device)[:, None] * self.size
            return flat[starts + torch.arange(self.size + 2 * self.beside, device=x.device)]
        return flat.unfold(0, self.size + 2 * self.beside, self.size).movedim(-1, 1)

    def each(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B d C, ...], the same for all chunks of a row."""
        return x[:, None].expand(-1, self.parts, *x.shape[1:]).flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """[B d C, c, ...] -> [B, L, ...]."""
        x = x.reshape(-1, self.count * self.size, *x.shape[2:])
        return rejoined(x, self.dilation)[:, : self.tokens]

    def near(self, device: torch.device) -> Tensor:
        """Whether a key is in the row and in the window of a query: bool [d C, c, k]."""
        starts = torch.arange(self.count, device=device)[:, None, None] * self.size
        queries = torch.arange(self.size, device=device)[:, None]
        keys = torch.arange(-self.beside, self.size + self.beside, device=device)
        strand = torch.arange(self.dilation, device=device)[:, None, None, None]
        inside = (starts + keys >= 0) & ((starts + keys) * self.dilation + strand < self.tokens)
        return (inside & ((queries - keys).abs() <= self.window)).flatten(0, 1)

    @property
    def sees_all(self) -> bool:
        """Whether a query sees all keys of its chunk: its whole strand, and no padding."""
        return not exporting() and self.length <= self.window + 1 and self.length * self.dilation == self.tokens

    def _filled(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> its strands [B d, C c, ...], padded."""
        missing = self.parts * self.size - self.tokens
        return strands(F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing)) if exporting() or missing else x, self.dilation)


class Sight:
    """The masks of attention, computed once a forward pass for all layers.

    marks [B, L]: 0 for padding, 1 for a token with a window, 2 for a global one; None if all are 1. With marks, the
    host waits for the device once, for whether there is padding and how many tokens are global. Booleans need no wait:
    no token is global, and there is padding. torch.export cannot know either: what it records has masks for padding
    and, if `may_be_global`, as many columns as a row has global tokens at most, two or more.
    """

    real: Tensor | None = None
    """bool [B, L]: False at padding; None without padding."""
    positions: Tensor | None = None
    """int64 [B, G]: positions of the global tokens, then other positions; None without global tokens."""
    chosen: Tensor
    """bool [B, G]: whether a position is that of a global token."""

    def __init__(self, marks: Tensor | None, may_be_global: bool = True) -> None:
        self._masks: dict[tuple[int, int, torch.dtype], Tensor | None] = {}
        if marks is None:
            return
        count = (marks > 1).sum(1)
        if exporting():
            padded, most = True, _most(count, marks.shape[1]) if may_be_global else 0
        elif marks.dtype == torch.bool:
            padded, most = True, 0
        else:
            padded, most = torch.stack([(marks <= 0).any(), count.max()]).tolist()
            most = min(-(-most // 16) * 16, marks.shape[1])  # for aligned tensors
        if padded:
            self.real = marks > 0
        if most:
            self.positions = chosen_first(marks > 1)[:, :most]
            self.chosen = torch.arange(most, device=marks.device) < count[:, None]

    def local(self, chunks: Chunks, like: Tensor) -> Tensor | None:
        """The term [B d C, 1, c, k (+ G)] of the scores of all queries; None if each sees its whole strand.

        A global key is masked in the window and has a column of its own at the end.
        """
        key = chunks.window, chunks.dilation, like.dtype
        if key not in self._masks:
            self._masks[key] = self._local(chunks, like)
        return self._masks[key]

    def _local(self, chunks: Chunks, like: Tensor) -> Tensor | None:
        if self.real is None and self.positions is None and chunks.sees_all:
            return None
        seen = chunks.near(like.device).repeat(like.shape[0], 1, 1)
        by_window = self.real
        if self.positions is not None:
            if by_window is None:
                by_window = torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
            by_window = by_window.scatter(1, self.positions, by_window.gather(1, self.positions) & ~self.chosen)
        if by_window is not None:
            seen = seen & chunks.keys(by_window)[:, None]
        if self.positions is not None:
            columns = chunks.each(self.chosen)[:, None].expand(-1, chunks.size, -1)
            seen = torch.cat([seen, columns], dim=-1)
        seen = seen | ~seen.any(-1, keepdim=True)  # padding among padding: cuDNN's gradient of a masked row is NaN
        return _term(seen, like)[:, None]

    def whole(self, like: Tensor) -> Tensor | None:
        """The term [B, 1, 1, L] of the scores of global queries, which see all but padding."""
        return None if self.real is None else _term(self.real, like)[:, None, None]


def _most(count: Tensor, length: int) -> int:
    """The most of `count` [B], from 2 to `length`, as a size that torch.export records."""
    most = count.amax(0).clamp(min=2).item()
    torch._check(most >= 2)
    torch._check(most <= length)
    return most  # type: ignore[return-value]


def _term(seen: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, MASKED)


def _take(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, L, n], positions [B, G] -> [B, G, n]."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


class LongformerSelfAttention(nn.Module):
    """Attention whose only randomness is dropout of probabilities, which differs between split heads."""

    def __init__(self, config: LongformerConfig, window: int, dilation: int = 1, dilated: int = 0) -> None:
        """The first `dilated` heads have windows with this dilation."""
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.window, self.dilation, self.dilated = window, dilation, dilated
        self.shares = getattr(config, "global_attention", "own") == "shared"
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.query_global = nn.Linear(config.hidden_size, config.hidden_size)
        self.key_global = nn.Linear(config.hidden_size, config.hidden_size)
        self.value_global = nn.Linear(config.hidden_size, config.hidden_size)

    def keep_heads(self, first: int, count: int) -> None:
        """Keep `count` heads from `first` on, whose projections this device has."""
        self.dilated = min(max(self.dilated - first, 0), count)

    def forward(self, hidden: Tensor, sight: Sight) -> Tensor:
        """hidden [B, L, D] -> [B, L, D], or this device's heads of it; zeros for padding."""
        z = self._local(hidden, sight)
        if sight.positions is not None:
            rows = self._global(hidden, sight.positions, sight)
            rows = torch.where(sight.chosen[..., None], rows, _take(z, sight.positions))
            z = z.scatter(1, sight.positions[..., None].expand_as(rows), rows)
        return z if sight.real is None else z.masked_fill(~sight.real[..., None], 0.0)

    def _local(self, hidden: Tensor, sight: Sight) -> Tensor:
        """One softmax over a token's window and the global tokens, here with the local keys and values."""
        q, k, v = self.query(hidden), self.key(hidden), self.value(hidden)
        width = self.dilated * self.head_size  # the dilated heads are the first
        dilated = (x[..., :width] for x in (q, k, v))
        plain = (x[..., width:] for x in (q, k, v))
        if not width:
            return self._windows(q, k, v, sight, 1)
        if width == q.shape[-1]:
            return self._windows(q, k, v, sight, self.dilation)
        return torch.cat([self._windows(*dilated, sight, self.dilation), self._windows(*plain, sight, 1)], dim=-1)

    def _windows(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, dilation: int) -> Tensor:
        """q, k, v [B, L, n h] of n heads with windows of this dilation -> [B, L, n h]."""
        chunks = Chunks(q.shape[1], self.window, dilation)
        keys = [chunks.keys(x) for x in (k, v)]
        if sight.positions is not None:
            columns = [chunks.each(_take(x, sight.positions)) for x in (k, v)]
            keys = [torch.cat(pair, dim=1) for pair in zip(keys, columns, strict=True)]
        return chunks.rows(self._attend(chunks.queries(q), keys[0], keys[1], sight.local(chunks, q)))

    def _global(self, hidden: Tensor, positions: Tensor, sight: Sight) -> Tensor:
        """[B, G, D]: global tokens attend to all tokens, with projections of their own, or those of all tokens where
        `config.global_attention` is "shared"."""
        query, key, value = self.query_global, self.key_global, self.value_global
        if self.shares:
            query, key, value = self.query, self.key, self.value
        q = query(_take(hidden, positions))
        return self._attend(q, key(hidden), value(hidden), sight.whole(q))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (x.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for x in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        attend = partial(F.scaled_dot_product_attention, dropout_p=dropout)
        if dropout and mask is not None and q.device.type == "cpu":  # no fused kernel has dropout there
            few = max(1, SCORES // (q.shape[1] * q.shape[2] * k.shape[2]))
            parts = zip(*(x.split(few) for x in (q, k, v, mask)), strict=True)
            z = torch.cat([attend(*part) for part in parts])
        else:
            z = attend(q, k, v, mask)
        return z.transpose(1, 2).flatten(2)
