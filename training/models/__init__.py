"""The models by name. Torch is imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """The class that an exported folder gives by AutoModelForMaskedLM or AutoModelForCausalLM."""
    tensor_plan: dict[str, str]
    """Globs of module and parameter names -> how they are split (training/parallel/tensor.py)."""
    flops: Callable[[Any, int, Mapping[str, float]], float]
    """(config, length of a row, summed figures of the task) -> training FLOPs."""
    data: str = "rows"
    """The `data.kind` that it learns from."""


def model_spec(name: str) -> ModelSpec:
    """Raises `UserError` for an unknown name."""
    if name in _SPECS:
        return _SPECS[name]()
    raise UserError(f"model type `{name}` is unknown; {nearest(name.lower(), _SPECS)}")


def _nezha() -> ModelSpec:
    from training.models.nezha import NezhaConfig, NezhaForMaskedLM, NezhaForPreTraining
    from training.models.nezha.plan import TENSOR_PLAN, flops

    return ModelSpec("nezha", NezhaConfig, NezhaForPreTraining, NezhaForMaskedLM, TENSOR_PLAN, flops)


def _ernie_doc() -> ModelSpec:
    from training.models.ernie_doc import ErnieDocConfig, ErnieDocForMaskedLM, ErnieDocForPreTraining
    from training.models.ernie_doc.plan import TENSOR_PLAN, flops

    return ModelSpec(
        "ernie_doc", ErnieDocConfig, ErnieDocForPreTraining, ErnieDocForMaskedLM, TENSOR_PLAN, flops, "segments"
    )


def _transformer_xl() -> ModelSpec:
    from training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
    from training.models.transformer_xl.plan import TENSOR_PLAN, flops

    causal = TransformerXLForCausalLM
    return ModelSpec("transformer_xl", TransformerXLConfig, causal, causal, TENSOR_PLAN, flops, "stream")


_SPECS = {"nezha": _nezha, "ernie_doc": _ernie_doc, "transformer_xl": _transformer_xl}
