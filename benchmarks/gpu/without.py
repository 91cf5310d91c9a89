"""Training without some of our kernels, for comparison alone: the tables that install them lose a row for a while."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reread.training.kernels.layers import LAYERS
from reread.training.models.blocks import Activated, Predictions, ResidualOutput
from reread.training.models.ernie_doc.attention_ernie_doc import ErnieDocSelfAttention
from reread.training.models.ernie_doc.modeling_ernie_doc import ErnieDocLayer
from reread.training.models.longformer.modeling_longformer import LongformerLMHead
from reread.training.models.nezha.attention_nezha import NezhaSelfAttention
from reread.training.models.nezha.modeling_nezha import NezhaLayer
from reread.training.models.ran.attention_ran import RanCellNorm, RanGatedResidual, RanLayer, RanLayerNorm
from reread.training.optim.flat import STEPS
from reread.training.optim.lamb import Lamb

KERNELS: dict[str, tuple[dict[Any, Any], tuple[type, ...]]] = {
    "update": (STEPS, (Lamb, torch.optim.AdamW)),
    "tail": (LAYERS, (NezhaLayer, ErnieDocLayer)),
    "residual": (LAYERS, (NezhaLayer, ErnieDocLayer, ResidualOutput)),
    "gelu": (LAYERS, (NezhaLayer, ErnieDocLayer, Activated)),
    "head": (LAYERS, (Predictions, LongformerLMHead)),
    "rotation": (LAYERS, (NezhaSelfAttention,)),
    "shift": (LAYERS, (ErnieDocSelfAttention,)),
    "ran": (LAYERS, (RanLayer, RanLayerNorm, RanCellNorm, RanGatedResidual)),
}
"""Kernels, and the rows of the table that install them; those of the update add gradients, too."""


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Within this context a model is assembled without these kernels; `all`: without any."""
    chosen = list(KERNELS) if "all" in (names := tuple(names)) else names
    rows = [(table, row) for table, rows in map(KERNELS.__getitem__, chosen) for row in rows]
    taken = [(table, row, table.pop(row)) for table, row in rows if row in table]
    try:
        yield
    finally:
        for table, row, value in taken:
            table[row] = value
