"""transformers' own classes, with what training needs of them: the head on predicted tokens alone, documents of a row
apart, and heads for tasks that transformers has no class for.

Each class has the name of transformers' own, by which an export is loaded, and its parameters.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import ModelOutput

from reread.preprocessing.errors import UserError
from reread.training.models.blocks import at_least_float32, chosen
from reread.training.models.coreference import ForCoreference
from reread.training.models.crf import ForTokenClassification
from reread.training.models.heads import ForKeyPhrases, ForMultipleChoice, ForQuestionAnswering, TaskHead
from reread.training.models.hub.encoders import Encoder
from reread.training.models.hub.lengths import arguments

THEIRS = {
    "classify": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
    "choose": "ForMultipleChoice",
    "rank": "ForSequenceClassification",
}
"""Objective -> the suffix of transformers' class."""
OURS: dict[str, type[TaskHead]] = {"phrases": ForKeyPhrases, "coreference": ForCoreference}
"""Objective -> the head of ours, where transformers has no class."""
FURTHER: dict[str, type[TaskHead]] = {
    "tag": ForTokenClassification,
    "answer": ForQuestionAnswering,
    "choose": ForMultipleChoice,
}
"""The same where only some options need ours: tags as a chain, answers with marks, options in one row."""


@dataclass
class MaskedOutput(ModelOutput):
    """logits [n, V] of the predicted tokens, or [B, L, V] of all, float32 at least; [B, 2] of pairs."""

    logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None


class Trained:
    """What all classes here add to transformers' own."""

    encoder: Encoder
    config: Any
    base_model: Any
    by_lengths: bool = False
    """Whether it takes the borders of documents, and no mask, to read those of a row apart (`lengths.choose`)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        caches = "use_cache" in inspect.signature(self.base_model.forward).parameters
        self.base_model.register_forward_pre_hook(partial(_for_training, caches), with_kwargs=True)

    def to(self, *args: Any, **others: Any) -> Any:
        """As of any module, but tables that are computed, of rotary positions, stay in float32: rounded to bfloat16
        their angles would be others."""
        kept = [(module, name, table) for module in self.modules() for name, table in module._buffers.items()]  # type: ignore[attr-defined]
        moved = super().to(*args, **others)  # type: ignore[misc]
        for module, name, table in kept:
            if table is not None and table.dtype == torch.float32:
                module._buffers[name] = table.to(module._buffers[name].device)
        return moved


def _for_training(caches: bool, module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A mask [B, L] as one of [B, 1, L, L] for each kind of attention: transformers would look first whether all of it
    is 1, for which the host waits, and on `meta` there is nothing to look at. And no cache, of which it would warn."""
    given = {"use_cache": False, **given} if caches else given
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and module.config._attn_implementation != "flash_attention_2":
        rows, length = mask.shape
        seen = (mask != 0)[:, None, None].expand(rows, 1, length, length)
        given = {**given, "attention_mask": _masks(seen, module.config, module.dtype)}
    return args, given


def _masks(seen: Tensor, config: Any, dtype: torch.dtype) -> Any:
    """Which tokens see which, bool [B, 1, L, L], as transformers' attention takes it: booleans, or what is added to the
    scores; by kind of attention if there are two."""

    def taken(seen: Tensor) -> Tensor:
        if config._attn_implementation != "eager":
            return seen
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)

    if not hasattr(config, "local_attention"):
        return taken(seen)
    place = torch.arange(seen.shape[-1], device=seen.device)
    near = (place - place[:, None]).abs() <= config.local_attention // 2
    return {"full_attention": taken(seen), "sliding_attention": taken(seen & near)}


class Masked(Trained):
    """The class for masked words, and for pairs."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        masked_positions: Tensor | None = None,
        documents: Tensor | None = None,
        borders: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """As transformers' own with `labels`; without them logits alone, of all tokens or of masked_positions [n], flat
        indices into [B * L]. documents int [B, L]: tokens attend to those with the same number, and positions begin
        anew with each; `borders` [n + 1] of them (`data.rows.packed.borders`) take the place of a mask."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs = {name: value for name, value in inputs.items() if value is not None}
        if documents is not None:
            first = self.encoder.first_position(self.config)
            inputs |= apart(documents, first, self.config, self.base_model.dtype, borders)
        if "labels" in others:
            return super().forward(**inputs, **others)  # type: ignore[misc]
        encoded = self.base_model(**inputs, **{**others, "return_dict": True})
        states = chosen(encoded.last_hidden_state, masked_positions)
        for name in self.encoder.head:
            states = self.get_submodule(name)(states)  # type: ignore[attr-defined]
        pairs = None
        if hasattr(self, "cls") and hasattr(self.cls, "seq_relationship"):
            pairs = at_least_float32(self.cls.seq_relationship(encoded.pooler_output))
        return MaskedOutput(at_least_float32(states), pairs)


def apart(
    documents: Tensor, first: int | None, config: Any, dtype: torch.dtype, borders: Tensor | None = None
) -> dict[str, Any]:
    """The arguments of an encoder by which the documents of a row are read apart: their `borders`, or else a mask of
    L x L for each row, and positions that begin at `first` with each document (None: positions are relative)."""
    if borders is not None:
        inputs = arguments(borders, documents.shape[1], config)
    else:
        seen = documents[:, None, :, None] == documents[:, None, None, :]
        inputs = {"attention_mask": _masks(seen, config, dtype)}
    if first is not None:
        place = torch.arange(documents.shape[1], device=documents.device)
        begins = nn.functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
        inputs["position_ids"] = place - torch.where(begins, place, 0).cummax(1).values + first
    return inputs


class Task(Trained):
    """A class of transformers for a task; its logits are float32 at least, whatever its weights are."""

    layer = "classifier"
    """The last layer's name, as in our own heads."""

    def forward(self, *args: Any, **given: Any) -> Any:
        output = super().forward(*args, **given)  # type: ignore[misc]
        for name, value in output.items() if isinstance(output, ModelOutput) else ():
            if name.endswith("logits"):
                output[name] = at_least_float32(value)
        return output


class Spans(Task):
    """transformers' classes have as many outputs as labels, of which an answer has two."""

    def __init__(self, config: Any) -> None:
        config.num_labels = 2
        super().__init__(config)


class Own(Trained):
    """A head of ours on the encoder, with the layers that transformers puts before its heads for tokens."""

    def __init__(self, config: Any) -> None:
        for special in ("cls_token_id", "sep_token_id"):  # some configurations have no such keys
            setattr(config, special, getattr(config, special, None))
        super().__init__(config)
        if self.encoder.token_head:
            self.head = _module(self.encoder, self.encoder.token_head)(config)
            self.post_init()  # type: ignore[attr-defined]

    def encode(self, rows: Mapping[str, Any]) -> Any:
        encoded = super().encode(rows)  # type: ignore[misc]
        if self.encoder.token_head:
            encoded.last_hidden_state = self.head(encoded.last_hidden_state)
        return encoded


class OwnSpans(Own):
    def __init__(self, config: Any) -> None:
        config.num_labels = 2
        super().__init__(config)


def classes_of(encoder: Encoder) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Heads by objective, the class for pairs or None, and those with further options (`ModelSpec`)."""

    def masked(suffix: str) -> Any:
        return _joined(encoder, Masked, _theirs(encoder, suffix))

    heads = {"masked_lm": masked("ForMaskedLM")}
    for objective, suffix in THEIRS.items():
        if theirs := _theirs(encoder, suffix):  # transformers' first versions of an encoder lack some
            heads[objective] = _joined(encoder, Spans if objective == "answer" else Task, theirs)
    heads |= {objective: _ours(encoder, head) for objective, head in OURS.items()}
    body = _theirs(encoder, "Model")  # whose own `encoder` is a module
    heads["embed"] = type(body.__name__, (Trained, body), {"__module__": __name__})
    further = {objective: _ours(encoder, head) for objective, head in FURTHER.items()}
    return heads, masked("ForPreTraining") if encoder.pairs else None, further


def config_of(encoder: Encoder) -> Any:
    """transformers' class of its configuration. Raises `UserError` if the installed version is older than its encoder
    with masks of L x L, which came with 5.0 (BERT) to 5.3 (ModernBERT)."""
    config: Any = getattr(transformers, f"{encoder.stem}Config", None)
    if config is None or not hasattr(_modeling(config.model_type), "create_bidirectional_mask"):
        raise UserError(
            f"train.model.type: transformers {transformers.__version__} has an older {encoder.stem}; install 5.3"
        )
    return config


def _theirs(encoder: Encoder, suffix: str) -> Any:
    return getattr(transformers, f"{encoder.stem}{suffix}", None)


def _module(encoder: Encoder, name: str) -> Any:
    return getattr(_modeling(config_of(encoder).model_type), name)


def _modeling(kind: str) -> Any:
    return import_module(f"transformers.models.{kind}.modeling_{kind}")


def _joined(encoder: Encoder, *bases: Any, **values: Any) -> Any:
    """A class with the name of the last of the `bases`, transformers' own."""
    name = values.pop("name", bases[-1].__name__)
    return type(name, bases, {"__module__": __name__, "encoder": encoder, **values})


def _ours(encoder: Encoder, head: type[TaskHead]) -> Any:
    theirs = _theirs(encoder, "Model")
    pools = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(theirs.__init__).parameters else {}

    def body(config: Any, add_pooling_layer: bool = True) -> Any:
        """The heads made here read the states of all tokens."""
        return theirs(config, **pools)

    values = {"name": f"{encoder.stem}{head.__name__}", "body": staticmethod(body)}
    if head is ForQuestionAnswering:
        values["layer"] = encoder.answer_layer
    own = OwnSpans if head is ForQuestionAnswering else Own
    return _joined(encoder, own, _module(encoder, f"{encoder.stem}PreTrainedModel"), head, **values)
