"""The models by name. Torch is imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preprocessing.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    """All that the trainer, the converter and the exporter know of a model."""

    name: str
    config: type[PretrainedConfig]
    pretraining: type[PreTrainedModel]
    """The class that is trained: `forward` takes a batch and `masked_positions`."""
    exported: type[PreTrainedModel]
    """The class that `AutoModelForMaskedLM` gives for an exported folder."""
    tensor_plan: dict[str, str]
    """Globs of module and parameter names -> how they are split (training/parallel/tensor.py)."""
    flops: Callable[[Any, float, int, float], float]
    """(config, rows, length, predicted) -> training FLOPs of a batch."""


def model_spec(name: str) -> ModelSpec:
    """Raises `UserError` for an unknown name."""
    if name in _SPECS:
        return _SPECS[name]()
    raise UserError(f"model type `{name}` is unknown; {nearest(name.lower(), _SPECS)}")


def _nezha() -> ModelSpec:
    from training.models.nezha import NezhaConfig, NezhaForMaskedLM, NezhaForPreTraining
    from training.models.nezha.plan import TENSOR_PLAN, flops

    return ModelSpec("nezha", NezhaConfig, NezhaForPreTraining, NezhaForMaskedLM, TENSOR_PLAN, flops)


_SPECS = {"nezha": _nezha}
