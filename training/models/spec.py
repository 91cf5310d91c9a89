"""The description of a model for the trainer, the converter and the exporter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from transformers import PretrainedConfig, PreTrainedModel


class OwnKey(NamedTuple):
    """A key of a configuration."""

    type: Any
    default: Any
    sentence: str


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
    own_keys: Mapping[str, OwnKey] = field(default_factory=dict)
    """Keys of `train.model` that its configuration's class, one of transformers', does not have."""
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

    def untrained(self, has_global_tokens: bool, config: Any) -> Mapping[str, str]:
        """`copied` for an objective without global tokens (`Objective.has_global_tokens`), or where these have no
        projections of their own; else nothing."""
        return {} if has_global_tokens and getattr(config, "global_attention", "own") == "own" else self.copied
