"""The description of a model for the trainer, the converter and the exporter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from transformers import PretrainedConfig, PreTrainedModel

from reread.preprocessing.errors import UserError


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
    variants: Mapping[str, type[PretrainedConfig]] = field(default_factory=dict)
    """Keys of `own_keys` -> the configuration of a model where their value is not the default: as one of transformers'
    own it would be loaded without them."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Modules that only global tokens reach -> their siblings, whose weights they get where no task trains them."""
    seldom: tuple[str, ...] = ()
    """Globs of parameters that only some rows reach. The gradients of others do not wait for theirs to be reduced."""
    one_token_type: bool = False
    """Whether it takes token types, but is pretrained with type 0 alone."""
    compiles: bool = False
    """Whether torch.compile makes a few graphs of its layers that serve rows of all shapes (`train.compile`). Of a
    layer with more graphs than torch's limit it runs the rest uncompiled."""
    paired: type[PreTrainedModel] | None = None
    """Its class for rows that are pairs of sentences; None: it learns none."""
    further: Mapping[str, type[PreTrainedModel]] = field(default_factory=dict)
    """Objective -> its class for options of a task that the one in `heads`, transformers' own, has no head for."""
    separates: bool = False
    """Whether it reads the documents of a row apart (`PackedSettings.separate_documents`)."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its configuration with the one value that is supported."""
    merged: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda start, given: {**start, **given}
    """(values of the start's configuration, a recipe's) -> those of the model."""
    fused: Mapping[str, int] | None = None
    """Globs of parameters that hold several matrices above one another -> how many, for a larger model that is tiled
    from a smaller one; None: it is not."""
    layer: str = ""
    """The class of the layers that are compiled; default: those that the model names as not to be split."""
    special: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Special tokens by name -> further keys of its configuration for their ids."""
    usage: Mapping[str, str] = field(default_factory=dict)
    """Objective -> how an exported model is used, in Markdown, if that differs from the default."""

    def config_for(self, values: Mapping[str, Any]) -> type[PretrainedConfig]:
        """The class of the configuration with these values."""
        for key, variant in self.variants.items():
            if values.get(key, self.own_keys[key].default) != self.own_keys[key].default:
                return variant
        return self.config

    @property
    def model_types(self) -> tuple[str, ...]:
        """What `model_type` may be in a config.json."""
        return tuple(one.model_type for one in (self.config, *self.variants.values()))

    @property
    def converted(self) -> type[PreTrainedModel]:
        """The class that `reread convert` makes."""
        return self.paired or next(iter(self.heads.values()))

    def head(self, objective: str, data: Any) -> type[PreTrainedModel]:
        """The class that learns an objective of `heads` from such data (its settings). Raises `UserError` for pairs if
        it learns none."""
        if getattr(data, "next_sentence", False):
            if self.paired is None:
                raise UserError(
                    f"train.data.next_sentence: true, but {self.name} has no head for pairs of sentences; set "
                    "it to false"
                )
            return self.paired
        return self.further.get(objective, self.heads[objective]) if data.needs_own_head else self.heads[objective]

    def untrained(self, has_global_tokens: bool, config: Any) -> Mapping[str, str]:
        """`copied` for an objective without global tokens (`Objective.has_global_tokens`), or where these have no
        projections of their own; else nothing."""
        return {} if has_global_tokens and getattr(config, "global_attention", "own") == "own" else self.copied
