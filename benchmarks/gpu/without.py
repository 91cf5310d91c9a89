"""Training without some of our kernels or with one that is not installed, for comparison alone: the tables that install
them have other rows for a while."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu import ernie_doc_attention as attention
from reread.training.kernels.layers import LAYERS, Layer, dropout_seed
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


def attending(in_one_kernel: bool) -> AbstractContextManager[Any]:
    """Within this context ERNIE-Doc's attention is that of ernie_doc_attention.py, if it is to be."""
    if not in_one_kernel:
        return nullcontext()
    row = LAYERS.get(ErnieDocSelfAttention, Layer())._replace(functions={"attend": _attend})
    return patch.dict(LAYERS, {ErnieDocSelfAttention: row})


def _attend(*given: Any, dropout: float, official: bool, gap: int) -> Tensor:
    assert not official and not gap
    seed = dropout_seed(given[0].device) if dropout else 0
    return attention.relative_attention(*given, seed, dropout=dropout)
