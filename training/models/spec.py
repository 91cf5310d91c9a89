"""The description of a model for the trainer, the converter and the exporter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    name: str
    config: type[PretrainedConfig]
    heads: Mapping[str, type[PreTrainedModel]]
    """Objective -> the class that is trained; `reread convert` makes the first. The objectives of fine-tuning are the
    tasks (`training/data/kinds.py`)."""
    tensor_plan: Mapping[str, str]
    """Globs of module and parameter names -> how they are split (training/parallel/tensor.py); others are whole."""
    flops: Callable[[Any, int, Mapping[str, float]], float]
    """(config, length of a row, summed figures of the objective) -> training FLOPs."""
    frame: Literal["", "segments", "bare"] = ""
    """Special tokens around a text: the tokenizer's default, [CLS] in the last position, or none."""
    longest: Callable[[Any], int | None] = lambda config: getattr(config, "longest", None)
    """Configuration -> maximum tokens in a row; None if positions are unlimited."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Modules that only global tokens reach -> their siblings, whose weights they get where no task trains them."""
    seldom: tuple[str, ...] = ()
    """Globs of parameters that only some rows reach. The gradients of others do not wait for theirs to be reduced."""
    one_token_type: bool = False
    """Whether it takes token types, but is pretrained with type 0 alone."""
    compiles: bool = False
    """Whether torch.compile makes a few graphs of its layers that serve rows of all shapes (`train.compile`). Of a
    layer with more graphs than torch's limit it runs the rest uncompiled."""
    usage: Mapping[str, str] = field(default_factory=dict)
    """Objective -> how an exported model is used, in Markdown, if that differs from the default."""

    @property
    def converted(self) -> type[PreTrainedModel]:
        """The class that `reread convert` makes."""
        return next(iter(self.heads.values()))

    def untrained(self, has_global_tokens: bool) -> Mapping[str, str]:
        """`copied` for an objective without global tokens (`Objective.has_global_tokens`); else nothing."""
        return {} if has_global_tokens else self.copied
