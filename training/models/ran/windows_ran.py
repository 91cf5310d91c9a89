"""How a batch is cut into RAN's windows, which tokens see which, and rotary positions; copied beside exported weights.

Shapes: B rows, L tokens, D hidden size, h head size, n windows, W `window_size`, P positions in a window: W, or more
where the end of a text is read with its last full window.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..blocks import exporting
from .configuration_ran import RanConfig


@dataclass(frozen=True)
class RanWindows:
    """The positions of a batch's tokens in windows, and the masks. Nothing here waits for the device."""

    size: int
    """W, or L in a shorter batch."""
    count: int
    """n, for the longest row."""
    tail: int
    """P - W."""
    rotary: Tensor | None
    """Cosines and sines of the angles at positions 1 to P, [P, h / 2, 2] (Su et al. 2021, section 3.4); the cell is at
    0."""
    positions: Tensor | None = None
    """[B, L], each token's position among the n * P; None if tail is 0."""
    filled: Tensor | None = None
    """[B, n], whether a window has tokens; None if all have."""
    keys: Tensor | None = None
    """[B, n, 1, 1, 1 + P], whether there is a token; the cell, first, always is. None if all are."""
    visible: Tensor | None = None
    """[B, n, 1, 1 or P, 1 + P], what each token may attend to; None for everything."""
    reviewed: Tensor | None = None
    """[B, 1, 1, n], the cells that tokens may review; None for all. If ordered, [B, 1, L, 1 + n]."""
    blank: Tensor | None = None
    """[B, L, 1], 0 at padding, which in the authors' code reviews all cells equally; None if there is none."""
    ordered: bool = False
    """Whether tokens do not see all others; then all of them also review the cell that a layer begins with."""

    @classmethod
    def of(
        cls, config: RanConfig, like: Tensor, tokens: Tensor | None, segment_ids: Tensor | None, causal: bool
    ) -> "RanWindows":
        """For hidden states `like` [B, L, D]; tokens [B, L], False at padding; segment_ids [B, L], or causal, or all.

        With segment ids a token sees those whose cumulative sum of ids is no greater than its own: ids of 0 are a
        prefix in which all see each other, and from the first 1 on each token sees the prefix and the tokens before it.
        """
        # The number of windows, their size, and the tail by which the last one may be longer
        (rows, length), device = like.shape[:2], like.device
        ordered = causal or segment_ids is not None
        size = config.window_size if exporting() else min(config.window_size, length)
        shortest = 1 if ordered else config.min_window_size
        count = _windows(length, size, shortest)
        own = None if config.official_padding else tokens
        if own is not None:  # a row's windows follow from its own length
            ends = (own * torch.arange(1, length + 1, device=device)).amax(1, keepdim=True)
            tail = shortest - 1 if exporting() else min(shortest - 1, length - size)
        else:
            ends = torch.full((1, 1), length, device=device)
            tail = shortest - 1 if exporting() else max(length - count * size, 0)
        last = _windows(ends, size, shortest) - 1
        index, number = torch.arange(length, device=device), torch.arange(count, device=device)
        positions = None
        if tail:
            window = torch.minimum(index // size, last)  # padding may stand anywhere
            positions = (window * (size + tail) + index - window * size).expand(rows, -1)
        windows = cls(size, count, tail, _rotary(config, size + tail, like), positions, ordered=ordered)
        # Which of the n * P positions hold a token: these are the keys that can be seen, and the windows to review.
        at = number[:, None] * size + torch.arange(size + tail, device=device)  # [n, P], the token that may stand there
        there = (at < ends[..., None]) & (torch.minimum(at // size, last[..., None]) == number[:, None])
        if tokens is not None:
            there = there & windows.cut(tokens)
        if tokens is not None or count * (size + tail) != length:
            keys = F.pad(there, (1, 0), value=True).expand(rows, -1, -1)[:, :, None, None]
            windows = replace(windows, keys=keys, visible=keys)
        if own is not None:
            filled = there.any(-1)
            reviewed = filled | (number == 0)  # a row of nothing but padding reviews its first cell
            windows = replace(windows, filled=filled, reviewed=reviewed[:, None, None])
        elif tokens is not None:
            windows = replace(windows, blank=tokens[..., None])
        # A causal or a prefix mask
        if not ordered:
            return windows
        order = segment_ids.cumsum(1) if segment_ids is not None else index.expand(rows, -1) + 1
        return windows._in_order(order, tokens, config.window_size)

    def _in_order(self, order: Tensor, tokens: Tensor | None, window_size: int) -> "RanWindows":
        """The windows where a token sees those whose `order` [B, L] is no greater than its own; 0 is the prefix."""
        prefix = order == 0 if tokens is None else (order == 0) & tokens
        index, number = (torch.arange(size, device=order.device) for size in (order.shape[1], self.count))
        order = self.cut(order)
        visible = F.pad(order[:, :, None] <= order[..., None], (1, 0), value=True)[:, :, None]
        # Cells of windows before the token's own, and of windows that are all prefix
        before = number < (index // self.size)[:, None]
        whole = (number + 1) * window_size <= prefix.sum(1, keepdim=True)
        reviewed = before | whole[:, None]
        if self.filled is not None:  # padding may stand between tokens
            reviewed = reviewed & self.filled[:, None]
        reviewed = F.pad(reviewed, (1, 0), value=True)[:, None]
        return replace(self, visible=visible if self.keys is None else visible & self.keys, reviewed=reviewed)

    def cut(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> [B, n, P, ...]; zeros or the next window's tokens where a window has none."""
        blocks = self.count + (self.tail > 0)
        lacking = blocks * self.size - x.shape[1]  # not below 0 under torch.export, whose tail is the longest
        lacking = lacking if exporting() else max(lacking, 0)
        if exporting() or lacking:  # F.pad copies even if it adds nothing
            x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, lacking))
        x = x[:, : blocks * self.size].unflatten(1, (-1, self.size))
        return torch.cat([x[:, :-1], x[:, 1:, : self.tail]], dim=2) if self.tail else x

    @property
    def seen(self) -> Tensor | None:
        """[B, n, 1 or 1 + P, 1 + P], what the cell, first, and each token of a window may attend to; None for
        everything."""
        if self.visible is None or self.visible.shape[3] == 1:
            return None if self.visible is None else self.visible[:, :, 0]
        of_cell = torch.ones_like(self.visible[:, :, 0, :1]) if self.keys is None else self.keys[:, :, 0]
        return torch.cat([of_cell, self.visible[:, :, 0]], dim=2)

    def only(self, number: int) -> "RanWindows":
        """Those of one window as the tokens [B, P, D], which review the cells of windows up to it."""

        def window(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, number : number + 1]

        return RanWindows(
            *(self.size + self.tail, 1, 0, self.rotary),
            filled=window(self.filled),
            keys=window(self.keys),
            visible=window(self.visible),
            reviewed=None if self.reviewed is None else self.reviewed[..., : number + 1],
            blank=None if self.blank is None else self.cut(self.blank)[:, number],
        )

    def join(self, x: Tensor, length: int) -> Tensor:
        """[B, n, P, D] -> [B, L, D]."""
        x = x.flatten(1, 2)
        if self.positions is None:
            return x[:, :length]
        return x.gather(1, self.positions[..., None].expand(-1, -1, x.shape[-1]))

    def put(self, tokens: Tensor, x: Tensor) -> Tensor:
        """x [B, n, P, D] with tokens [B, L, D] where `join` takes them from."""
        flat = x.flatten(1, 2)
        if self.positions is None:
            return torch.cat([tokens, flat[:, tokens.shape[1] :]], dim=1).view_as(x)
        return flat.scatter(1, self.positions[..., None].expand_as(tokens), tokens).view_as(x)


def _windows(length: Any, size: int, shortest: int) -> Any:
    """The number of windows of texts of `length`, a number or a tensor."""
    if isinstance(length, torch.SymInt):
        return torch.sym_max((length + size - shortest) // size, 1)
    full = length // size
    return full + ((length % size >= shortest) | (full == 0))


def _rotary(config: RanConfig, positions: int, like: Tensor) -> Tensor | None:
    """The angles in float64, rounded once; not a buffer, since one that is not in the checkpoint loads as garbage."""
    if not config.rotary:
        return None
    columns = torch.arange(0, config.head_size, 2, device=like.device, dtype=torch.float64)
    angles = torch.arange(1, positions + 1, device=like.device)[:, None] * 10000.0 ** (-columns / config.head_size)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).to(dtype)
