"""The vector of a text of any length; copied beside exported weights.

Shapes: B rows, L tokens, D hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from .blocks import at_least_float32, returned
from .heads import TaskHead, Windows


def pooled_sums(states: Tensor, mask: Tensor | None, pooling: str, cls_is_last: bool) -> Tensor:
    """[B, D + 1]: the sum of the states [B, L, D] of the tokens that `pooling` takes of each row, and their number.

    "mean": all tokens of mask [B, L], special ones too, as sentence-transformers does; "cls": the first of them, or the
    last. Sums of windows of a text add up to its own. In float32 at least."""
    real = torch.ones_like(states[..., 0], dtype=torch.bool) if mask is None else mask != 0
    if pooling == "cls":
        count = real.flip(1).cumsum(1).flip(1) if cls_is_last else real.cumsum(1)
        real = real & (count == 1)
    states = at_least_float32(states)
    taken = real.to(states.dtype)[..., None]
    return torch.cat([(states * taken).sum(1), taken.sum(1)], dim=-1)


def pooled(sums: Tensor) -> Tensor:
    """The vectors [..., D] of `pooled_sums`, or of sums of them."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=1)


@dataclass
class VectorOutput(ModelOutput):
    """`last_hidden_state` [B, 1, D] is the vector of each text, as if it were the state of its only token, so that
    programs that pool states (sentence-transformers) return it; `sums` [B, D + 1] are of `pooled_sums`."""

    last_hidden_state: Tensor | None = None
    sums: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ForEmbedding(TaskHead):
    """An encoder whose output for a text, read in windows as in training, is one vector (config.task: `pooling`)."""

    cls_is_last = False
    """Whether [CLS] is a row's last token."""

    def __init__(self, config: Any) -> None:
        super(TaskHead, self).__init__(config)  # no layers of its own
        setattr(self, self.base_model_prefix, self.body(config, add_pooling_layer=False))
        self.post_init()

    @property
    def pooling(self) -> str:  # type: ignore[override]
        return str((getattr(self.config, "task", None) or {}).get("pooling", "mean"))

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        """`pooled_sums` of rows."""
        return pooled_sums(encoded.last_hidden_state, mask, self.pooling, self.cls_is_last)

    def whole(
        self, windows: list[Windows], logits: list[list[Tensor]], length: int, predict: str, options: int
    ) -> Tensor:
        return torch.stack([parts[-1] if predict == "last" else torch.stack(parts).sum(0) for parts in logits])

    def classified(self, rows: Mapping[str, Any], labels: Tensor | None, return_dict: bool | None) -> Any:
        """What `forward` returns; it learns from no labels."""
        sums, others = self.read(rows)
        return returned(self, VectorOutput(pooled(sums)[:, None], sums, **others), return_dict)
