"""What the trainer, the converter and the exporter know of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    name: str
    config: type[PretrainedConfig]
    heads: Mapping[str, type[PreTrainedModel]]
    """Objective -> the class that is trained; the first is the one that `reread convert` makes."""
    tensor_plan: Mapping[str, str]
    """Globs of module and parameter names -> how they are split (training/parallel/tensor.py); the rest is whole."""
    flops: Callable[[Any, int, Mapping[str, float]], float]
    """(config, length of a row, summed figures of the objective) -> training FLOPs."""
    frame: Literal["", "segments", "bare"] = ""
    """How its tokenizer puts a text: as the tokenizer has it, with [CLS] last, or without special tokens."""
    longest: Callable[[Any], int | None] = lambda config: getattr(config, "longest", None)
    """Configuration -> tokens a row may have; None where positions do not end."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Modules that no pretraining reaches -> those beside them whose weights they get when a run is exported."""
    one_token_type: bool = False
    """Whether it takes token types, but is pretrained with type 0 alone."""
    usage: Mapping[str, str] = field(default_factory=dict)
    """Objective -> how an exported model is used, in Markdown, where that is not as usual."""

    @property
    def converted(self) -> type[PreTrainedModel]:
        """The class that `reread convert` makes."""
        return next(iter(self.heads.values()))
