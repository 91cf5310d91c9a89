"""RAN's layer: attention in windows, the cell that goes from window to window, and memory review (Li et al. 2023).

Only the chain of cells is sequential: tokens of all windows are projected at once, then one query a window updates the
cell, then all windows attend in parallel. Copied beside exported weights.

Shapes: B rows, L tokens, D hidden size, N heads, h head size; n windows, W, P as in windows_ran.py.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import GradientCheckpointingLayer, at_least_float32, exporting, rotate
from .configuration_ran import RanConfig
from .windows_ran import RanWindows

# Columns of a head up to which GPUs have fused kernels that keep it in registers
LARGEST_FUSED = 256


def standardise(x: Tensor, config: RanConfig) -> Tensor:
    """(x - mean) / d over the last dimension, in float32 at least; the paper's standard normalisation, eq. 5."""
    exact = at_least_float32(x)
    if config.norm_denominator == "std":
        return F.layer_norm(exact, exact.shape[-1:], eps=config.layer_norm_eps).to(x.dtype)
    # torch.var_mean would do in one pass, and takes ten times as long on CPU
    square = exact.square().mean(-1, keepdim=True)
    return ((exact - exact.mean(-1, keepdim=True)) * (square + config.layer_norm_eps).rsqrt()).to(x.dtype)


def _activated(x: Tensor, activation: str) -> Tensor:
    return F.silu(x) if activation == "swish" else x


class RanLayerNorm(nn.Module):
    """`standardise` with a learned weight and bias."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return standardise(x, self.config) * self.weight + self.bias


class RanCellNorm(RanLayerNorm):
    """A norm whose bias is the cell that a text begins with; a class of its own so that it is initialised as such."""


class RanGatedLinear(nn.Module):
    """(W_t x + b_t) sigmoid(W_g x + b_g) (Dauphin et al. 2017)."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.gate = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.gate(x).sigmoid()


class RanGatedResidual(RanGatedLinear):
    """LN(y + GLU(x))."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__(config)
        self.LayerNorm = RanLayerNorm(config)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.LayerNorm(y + super().forward(x))


class RanPlainResidual(nn.Module):
    """LN(y + x)."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.LayerNorm = RanLayerNorm(config)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(y + x)


class RanHeads(nn.Module):
    """Attention without its projections; its dropout differs between split heads."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, weights: Tensor | None = None) -> Tensor:
        """q [B, N, Q, h], k and v [B, N, K, h], mask [B, 1, 1 or Q, K] -> [B, Q, N * h].

        With `weights`, the probabilities [B, N, Q, K] without dropout, no fused kernel computes them again."""
        dropout = self.dropout if self.training else 0.0
        if weights is not None:
            return (F.dropout(weights.to(v.dtype), dropout) @ v).transpose(1, 2).flatten(2)
        attend = F.scaled_dot_product_attention if q.shape[-1] <= LARGEST_FUSED else _plain_attention
        return attend(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).flatten(2)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float) -> Tensor:
    """As scaled_dot_product_attention, whose GPU kernels are slow for heads as large as the paper's 768 columns; a
    window's scores need less memory than its queries then."""
    return F.dropout(_probabilities(q, k, attn_mask).to(v.dtype), dropout_p) @ v


def _probabilities(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Attention probabilities [B, N, Q, K], at least float32."""
    scores = at_least_float32((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2))
    return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)


def _by_token(a: Tensor, windows: RanWindows, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Probabilities a [B * n, N, P, 1 + P] of `rows` B of `length` L as those of tokens [B, N, L, 1 + P]; and as they
    were, but made of the tokens', so that these have a gradient."""
    by_window = a.unflatten(0, (rows, -1))
    by_token = joined_probabilities(by_window, windows, length)
    by_place = by_window.transpose(2, 3)  # [B, n, P, N, 1 + P]
    again = windows.put(by_token.transpose(1, 2).flatten(2), by_place.flatten(3)).view_as(by_place)
    return by_token, again.transpose(2, 3).flatten(0, 1)


def joined_probabilities(by_window: Tensor, windows: RanWindows, length: int) -> Tensor:
    """Probabilities of windows [B, n, N, P, 1 + P] as those of tokens [B, N, L, 1 + P]."""
    by_place = by_window.transpose(2, 3)
    return windows.join(by_place.flatten(3), length).unflatten(-1, by_place.shape[3:]).transpose(1, 2)


class RanAttention(nn.Module):
    """The projections of a window's attention (eq. 3 and 4); `RanLayer` calls its heads."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.activation = config.attention_activation
        width = config.num_attention_heads * config.head_size
        self.query = nn.Linear(config.hidden_size, width)
        self.key = nn.Linear(config.hidden_size, width)
        self.value = nn.Linear(config.hidden_size, width)
        self.heads = RanHeads(config)
        self.output = nn.Linear(width, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.residual = RanGatedResidual(config) if config.attention_residual else None

    def project(self, x: Tensor) -> list[Tensor]:
        """[B, ..., D] -> queries, keys and values [B, ..., N * h]."""
        return [_activated(linear(x), self.activation) for linear in (self.query, self.key, self.value)]

    def split(self, x: Tensor) -> Tensor:
        """[B, ..., P, N * h] -> [B, ..., N, P, h]."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(-3, -2)

    def finish(self, context: Tensor, x: Tensor) -> Tensor:
        """The heads' output [..., N * h] and the layer's input [..., D] -> [..., D]."""
        output = self.dropout(_activated(self.output(context), self.activation))
        return output if self.residual is None else self.residual(output, x)


class RanInitialCell(nn.Module):
    """The cell that a layer begins with (eq. 1)."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.always = config.cell_transform == "always"
        self.activation = config.cell_activation
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.LayerNorm = RanCellNorm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, cell: Tensor) -> Tensor:
        """[B, D], rows of zeros for empty cells -> [B, D]."""
        empty = (cell == 0).all(-1, keepdim=True)
        if self.always:  # not of an empty cell: the norm of zeros has gradients beyond float16
            given = self.dense(torch.where(empty, torch.ones_like(cell), cell))
            cell = self.dropout(self.LayerNorm(_activated(given, self.activation)))
        return torch.where(empty, self.dropout(torch.zeros_like(cell) + self.LayerNorm.bias), cell)


class RanCellResidual(nn.Module):
    """The cell's residual (eq. 6). The authors' code adds the window before's raw cell output, the paper its cell."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.gated = config.cell_residual == "gated"
        self.residual = RanGatedResidual(config) if self.gated else RanPlainResidual(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, raw: Tensor, raw_before: Tensor, cell_before: Tensor) -> Tensor:
        """The raw cell output of a window and of the window before, and the cell of the latter, all [B, D]."""
        return self.dropout(self.residual(raw, raw_before if self.gated else cell_before))


class RanReview(nn.Module):
    """Memory review: all tokens attend to cells with one head (eq. 8 and 9)."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.activation = config.review_activation
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.head = RanHeads(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = nn.Linear(config.hidden_size, config.hidden_size) if config.review_output else None
        self.residual = RanGatedResidual(config) if config.review_residual else None

    def forward(self, tokens: Tensor, cells: Tensor, windows: RanWindows) -> Tensor:
        """tokens [B, L, D], cells [B, n or 1 + n, D] -> [B, L, D]."""
        q = _activated(self.query(tokens), self.activation)
        k, v = (_activated(linear(cells), self.activation)[:, None] for linear in (self.key, self.value))
        looking = q if windows.blank is None else q * windows.blank
        review = self.head(looking[:, None], k, v, windows.reviewed)
        if self.output is not None:
            review = _activated(self.output(review), self.activation)
        review = self.dropout(review)
        return review if self.residual is None else self.residual(review, q)


class Chain(NamedTuple):
    """What a layer that reads a single window gets of those before it (`RanConfig.window_handover`)."""

    raw: Tensor
    """[B, D], the raw cell output that was handed on with the cell."""
    reviewed: tuple[Tensor, ...]
    """The layer's cells [B, D] that memory review reads, of the windows before."""


class RanLayer(GradientCheckpointingLayer):
    standardise = staticmethod(standardise)

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.config = config
        self.initial = RanInitialCell(config)
        self.LayerNorm = RanLayerNorm(config)
        self.attention = RanAttention(config)
        self.cell = None if config.cell_residual == "none" else RanCellResidual(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.review = RanReview(config) if config.memory_review else None
        if self.review is None:
            self.output_LayerNorm = RanLayerNorm(config)

    def forward(
        self,
        hidden: Tensor,
        cell: Tensor,
        windows: RanWindows,
        probabilities: bool = False,
        chain: Chain | None = None,
        reviews: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """hidden [B, L, D] and the cell [B, D] to begin with, zeros if empty; or, with `chain`, one window, not the
        first, and the cell handed on to it. Without `reviews` tokens are as they are before memory review.

        Returns tokens [B, L, D], the last cell [B, D], each window's raw cell output [B, n, D] and, if wanted, of each
        token the `probabilities` without dropout, by which it attends to the cell before its window and to the P
        positions of its window [B, N, L, 1 + P], at least float32.
        """
        z = self.dropout(self.LayerNorm(hidden))
        cells = _Cells(self, self.initial(cell) if chain is None else cell, windows, chain)
        outputs, by_token = self.attend(z, cells, windows, probabilities)
        outputs = windows.join(outputs, hidden.shape[1])
        outputs = self.review_of(outputs, cells.reviewed, windows) if reviews else outputs
        return outputs, cells.last, cells.raw_outputs, by_token

    def attend(
        self, z: Tensor, cells: "_Cells", windows: RanWindows, probabilities: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Go on with the chain of `cells` for tokens z [B, L, D]. Returns what memory review is of, by window
        [B, n, P, D], and the tokens' probabilities as `forward` does."""
        q, key, value, mask = self._operands(z, cells, windows)
        by_token = by_window = None
        if probabilities:
            by_token, by_window = _by_token(_probabilities(q, key, mask), windows, *z.shape[:2])
        context = self.attention.heads(q, key, value, mask, weights=by_window).unflatten(0, (z.shape[0], -1))
        return self.finish(context, windows.cut(z)), by_token

    def finish(self, context: Tensor, z: Tensor) -> Tensor:
        """The heads' output [..., N * h] and z [..., D] -> what memory review is of, or a raw cell output [..., D]."""
        return self.dropout(self.standardise(self.attention.finish(context, z), self.config))

    def _operands(
        self, z: Tensor, cells: "_Cells", windows: RanWindows
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Go on with the chain of `cells` for tokens z [B, L, D]. Returns what all windows attend with at once: queries
        [B * n, N, P, h], keys and values [B * n, N, 1 + P, h], and their mask."""
        q, k, v = (self.attention.split(windows.cut(x)) for x in self.attention.project(z))
        if windows.rotary is not None:
            q, k = rotate(q, windows.rotary), rotate(k, windows.rotary)
        if exporting() and isinstance(windows.count, torch.SymInt):
            keys, values = self._record(k, v, cells)
        else:
            of_cells = []
            # Unbound, since the gradient of each indexed window would be as large as that of all
            for number, (k_window, v_window) in enumerate(zip(k.unbind(1), v.unbind(1), strict=True)):
                mask = None if windows.keys is None else windows.keys[:, number]
                raw, *projected = self._look(cells.all[-1], k_window, v_window, mask)
                cells.update(raw)
                of_cells.append(projected)
            keys, values = (torch.stack(one, 1) for one in zip(*of_cells, strict=True))
        mask = None if windows.visible is None else windows.visible.flatten(0, 1)
        key, value = (torch.cat(pair, 3).flatten(0, 1) for pair in ((keys, k), (values, v)))
        return q.flatten(0, 1), key, value, mask

    def _look(self, cell: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The raw output [B, D] of a cell [B, D] before a window of keys k and values v [B, N, P, h], and the cell's
        own key and value [B, N, 1, h]."""
        z_cell = self.dropout(self.LayerNorm(cell))[:, None]
        q_cell, k_cell, v_cell = map(self.attention.split, self.attention.project(z_cell))  # at 0, so not rotated
        context = self.attention.heads(q_cell, torch.cat([k_cell, k], dim=2), torch.cat([v_cell, v], dim=2), mask)
        return self.finish(context, z_cell)[:, 0], k_cell, v_cell

    def _record(self, k: Tensor, v: Tensor, cells: "_Cells") -> tuple[Tensor, Tensor]:
        """The chain of `cells` for windows of keys and values [B, n, N, P, h], of which there is a mask, as one
        operation for any n, which torch.export records. Returns the cells' keys and values [B, n, N, 1, h]."""
        from torch._higher_order_ops.scan import scan

        number = torch.arange(k.shape[1], device=k.device)
        filled = cells.windows.filled
        filled = k.new_ones(k.shape[:2], dtype=torch.bool) if filled is None else filled

        def step(carried: list[Tensor], given: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            cell, before = carried
            k_window, v_window, mask, there, place = given
            raw, k_cell, v_cell = self._look(cell, k_window, v_window, mask)
            raw, new = cells.after(raw, before, cell, there[:, None], place > 0)
            return [new, raw], [new.clone(), raw.clone(), k_cell.clone(), v_cell.clone()]

        assert cells.windows.keys is not None
        by_window = [k.transpose(0, 1), v.transpose(0, 1), cells.windows.keys.transpose(0, 1), filled.transpose(0, 1)]
        initial = cells.all[0]
        (last, _), (new, raw, keys, values) = scan(step, [initial, initial.clone()], [*by_window, number])
        cells.recorded = last, new.transpose(0, 1), raw.transpose(0, 1)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def review_of(self, tokens: Tensor, cells: Tensor, windows: RanWindows) -> Tensor:
        """Memory review of `cells` [B, n, D] by tokens [B, L, D]."""
        if self.review is None:
            return self.output_LayerNorm(tokens)
        return self.review(tokens, cells, windows)


class _Cells:
    """The chain of a layer's cells, window by window."""

    def __init__(self, layer: RanLayer, initial: Tensor, windows: RanWindows, chain: Chain | None = None) -> None:
        self.layer, self.windows, self.chain = layer, windows, chain
        self.raw: list[Tensor] = []
        """G'_i [B, D], each window's raw cell output; a window without tokens repeats the one before."""
        self.all = [initial]
        """G_0, G_1, ... [B, D]."""
        self.recorded: tuple[Tensor, Tensor, Tensor] | None = None
        """Instead of these under torch.export: the last cell [B, D], G_1, G_2, ... and the raw outputs [B, n, D]."""

    def update(self, raw: Tensor) -> None:
        """Append the next window's raw cell output [B, D]; where it has no tokens, the cell stays."""
        handed = self.all[0] if self.chain is None else self.chain.raw
        before = self.raw[-1] if self.raw else handed
        filled = None if self.windows.filled is None else self.windows.filled[:, len(self.raw), None]
        raw, cell = self.after(raw, before, self.all[-1], filled, bool(self.raw or self.chain))
        self.raw.append(raw)
        self.all.append(cell)

    def after(
        self, raw: Tensor, raw_before: Tensor, cell_before: Tensor, filled: Tensor | None, later: bool | Tensor
    ) -> tuple[Tensor, Tensor]:
        """The raw cell output and the cell [B, D] behind a window, from its raw output and those before it; `later`:
        whether it is not the first."""
        cell = raw
        if self.layer.cell is not None and (self.layer.config.first_cell_residual or later is not False):
            cell = self.layer.cell(raw, raw_before, cell_before)
            if isinstance(later, Tensor) and not self.layer.config.first_cell_residual:
                cell = torch.where(later, cell, raw)
        if filled is not None:
            raw, cell = torch.where(filled, raw, raw_before), torch.where(filled, cell, cell_before)
        return raw, cell

    @property
    def last(self) -> Tensor:
        """[B, D]."""
        return self.all[-1] if self.recorded is None else self.recorded[0]

    @property
    def raw_outputs(self) -> Tensor:
        """[B, n, D]."""
        return torch.stack(self.raw, dim=1) if self.recorded is None else self.recorded[2]

    @property
    def reviewed(self) -> Tensor:
        """The cells that memory review reads [B, n, D], after the first one where tokens are ordered."""
        raw = self.layer.config.review_cells == "raw"
        if self.recorded is not None:
            cells = self.recorded[2 if raw else 1]
            return torch.cat([self.all[0][:, None], cells], dim=1) if self.windows.ordered else cells
        listed = self.raw if raw else self.all[1:]
        before = self.all[:1] if self.windows.ordered else self.chain.reviewed if self.chain else ()
        return torch.stack([*before, *listed], dim=1)
