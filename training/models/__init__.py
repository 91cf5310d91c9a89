"""The models by name. Torch is imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from preprocessing.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    """All that the trainer, the converter and the exporter know of a model."""

    name: str
    config: type[PretrainedConfig]
    heads: Mapping[str, type[PreTrainedModel]]
    """`data.kind` that it learns from -> the class that is trained."""
    tensor_plan: dict[str, str]
    """Globs of module and parameter names -> how they are split (training/parallel/tensor.py)."""
    flops: Callable[[Any, int, Mapping[str, float]], float]
    """(config, length of a row, summed figures of the task) -> training FLOPs."""
    frame: Literal["", "segments", "bare"] = ""
    """How its tokenizer puts a text: as the tokenizer has it, with [CLS] last, or without special tokens."""
    longest: Callable[[Any], int | None] = lambda config: getattr(config, "longest", None)
    """Configuration -> tokens a row may have; None where positions do not end."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Modules that no pretraining reaches -> those beside them whose weights they get when a run is exported."""

    def head(self, kind: str) -> type[PreTrainedModel]:
        """The class that learns from data of this kind. Raises `UserError` if none does."""
        if kind not in self.heads:
            kinds = " or ".join(self.heads)
            raise UserError(f"train.data.kind: {kind}, but {self.name} learns from {kinds}; set it to {kinds}")
        return self.heads[kind]

    @property
    def converted(self) -> type[PreTrainedModel]:
        """The class that `reread convert` makes."""
        return next(iter(self.heads.values()))


def model_spec(name: str) -> ModelSpec:
    """Raises `UserError` for an unknown name."""
    if isinstance(name, str) and name in _SPECS:
        return _SPECS[name]()
    raise UserError(f"train.model.type: model type `{name}` is unknown; {nearest(str(name).lower(), _SPECS)}")


def _nezha() -> ModelSpec:
    from training.models.nezha import NezhaConfig, NezhaForPreTraining
    from training.models.nezha.plan import TENSOR_PLAN, flops

    heads = {"rows": NezhaForPreTraining, "packed": NezhaForPreTraining}
    return ModelSpec("nezha", NezhaConfig, heads, TENSOR_PLAN, flops)


def _ernie_doc() -> ModelSpec:
    from training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining
    from training.models.ernie_doc.plan import TENSOR_PLAN, flops

    heads = {"segments": ErnieDocForPreTraining}
    return ModelSpec("ernie_doc", ErnieDocConfig, heads, TENSOR_PLAN, flops, "segments")


def _transformer_xl() -> ModelSpec:
    from training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
    from training.models.transformer_xl.plan import TENSOR_PLAN, flops

    heads = {"stream": TransformerXLForCausalLM}
    return ModelSpec("transformer_xl", TransformerXLConfig, heads, TENSOR_PLAN, flops, "bare")


def _ran() -> ModelSpec:
    from training.models.ran import RanConfig, RanForCausalLM, RanForMaskedLM
    from training.models.ran.plan import TENSOR_PLAN, flops

    heads = {"rows": RanForMaskedLM, "stream": RanForCausalLM}
    return ModelSpec("ran", RanConfig, heads, TENSOR_PLAN, flops, "bare")


def _longformer() -> ModelSpec:
    from transformers import LongformerConfig

    from training.models.longformer import LongformerForMaskedLM
    from training.models.longformer.plan import COPIED, TENSOR_PLAN, flops, longest

    heads = {"packed": LongformerForMaskedLM, "rows": LongformerForMaskedLM}
    return ModelSpec("longformer", LongformerConfig, heads, TENSOR_PLAN, flops, longest=longest, copied=COPIED)


_SPECS = {
    "nezha": _nezha,
    "ernie_doc": _ernie_doc,
    "transformer_xl": _transformer_xl,
    "ran": _ran,
    "longformer": _longformer,
}
