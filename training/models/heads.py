"""Heads of the four tasks that a pretrained encoder is fine-tuned for; copied beside exported weights.

A model's class for a task joins what the heads of the model share (a subclass of its `PreTrainedModel` that names the
encoder's class as `body`) with a task, such as `ForSequenceClassification`. Parameters have transformers' names.

Shapes: B rows, L tokens, D hidden size, K labels, or options of a question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .blocks import at_least_float32, cross_entropy, returned


@dataclass
class HeadOutput(ModelOutput):
    """`loss` is a scalar; `logits` float32; `mems` as the encoder returns them, if it has a memory."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class SpanOutput(ModelOutput):
    """As `HeadOutput`, with logits [B, L] of the first and of the last token of an answer."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def head_dropout(config: Any) -> float:
    """`classifier_dropout`; None, or a configuration without it, stands for `hidden_dropout_prob`."""
    share: float | None = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if share is None else share)


class TaskHead(PreTrainedModel):
    """An encoder, dropout and a linear layer."""

    body: type[Any]
    """The encoder's class."""
    pooling = True
    """Whether the linear layer reads the pooled vector [B, D], or all hidden states [B, L, D]."""
    layer = "classifier"
    """The linear layer's name."""
    _keys_to_ignore_on_load_unexpected = [r"^(cls|lm_head|softmax|transform)\.", r"^[^.]+\.pooler\."]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, self.body(config, add_pooling_layer=self.pooling))
        self.dropout = nn.Dropout(head_dropout(config))
        setattr(self, self.layer, self.linear(config))
        self.post_init()

    def linear(self, config: Any) -> nn.Module:
        """The layer on top; one with an output for each label."""
        return nn.Linear(config.hidden_size, config.num_labels)

    def encode(self, rows: Mapping[str, Any]) -> Any:
        """The encoder's output for the arguments `rows`."""
        return self.base_model(**rows, return_dict=True)

    def logits(self, encoded: Any) -> Tensor:
        """[B, K] or [B, L, K], float32, from the encoder's output."""
        features = encoded.pooler_output if self.pooling else encoded.last_hidden_state
        return at_least_float32(getattr(self, self.layer)(self.dropout(features)))

    def read(self, rows: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The logits for the encoder's arguments, of which None are not given, and its other outputs."""
        encoded = self.encode({name: value for name, value in rows.items() if value is not None})
        others = ("mems", "hidden_states", "attentions")
        return self.logits(encoded), {name: getattr(encoded, name, None) for name in others}

    def classified(self, rows: Mapping[str, Any], labels: Tensor | None, return_dict: bool | None) -> Any:
        """What `forward` of all tasks but answers returns."""
        logits, others = self.read(rows)
        loss = None if labels is None else self.loss(logits, labels)
        return returned(self, HeadOutput(loss, logits, **others), return_dict)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over labels that are not -100."""
        return cross_entropy(logits, labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As the encoder, which raises TypeError for token types or memory that it does not know; with logits, and
        the loss if `labels` are given. Classes: logits [B, K], labels by `ForSequenceClassification.loss`. Tags:
        [B, L, K], labels [B, L], -100 where there is none. Options: inputs [B, K, L], logits [B, K], labels [B].
        """
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "mems": mems,
            "inputs_embeds": inputs_embeds,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.classified(rows, labels, return_dict)


class ForSequenceClassification(TaskHead):
    """Classes of a text or of a pair, from the pooled vector."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """By config.problem_type, or else num_labels and the type of `labels`: a mean square (labels [B], numbers),
        cross entropy ([B], classes) or binary cross entropy ([B, K], 1 for each class of the set)."""
        kind = self.config.problem_type
        if kind == "regression" or (kind is None and self.num_labels == 1):
            return F.mse_loss(logits.flatten(), labels.flatten().to(logits.dtype))
        if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return cross_entropy(logits, labels)


class ForTokenClassification(TaskHead):
    """A tag for each token."""

    pooling = False


class ForMultipleChoice(TaskHead):
    """A logit for each option of a question, from the pooled vector of the option's own row."""

    def linear(self, config: Any) -> nn.Module:
        return nn.Linear(config.hidden_size, 1)

    def read(self, rows: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """rows [B, K, L] -> logits [B, K]; `mems` and the other outputs have B * K rows."""
        given = rows["inputs_embeds"] if rows.get("input_ids") is None else rows["input_ids"]
        flat = {name: x.flatten(0, 1) if isinstance(x, Tensor) else x for name, x in rows.items()}
        logits, others = super().read(flat)
        return logits.view(given.shape[:2]), others


class ForQuestionAnswering(TaskHead):
    """The first and the last token of an answer."""

    pooling = False
    layer = "qa_outputs"

    def linear(self, config: Any) -> nn.Module:
        return nn.Linear(config.hidden_size, 2)

    def answered(
        self, rows: Mapping[str, Any], start: Tensor | None, end: Tensor | None, return_dict: bool | None
    ) -> Any:
        """What `forward` returns, for the places [B] of answers."""
        logits, others = self.read(rows)
        starts, ends = (x.contiguous() for x in logits.unbind(-1))
        loss = None
        if start is not None and end is not None:
            loss = (_place_loss(starts, start) + _place_loss(ends, end)) / 2
        return returned(self, SpanOutput(loss, starts, ends, **others), return_dict)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As the encoder, which raises TypeError for token types or memory that it does not know; with start_logits
        and end_logits [B, L], and the loss if the places [B] are given: the mean of two cross entropies over all L
        places. Places outside the row are left out."""
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "mems": mems,
            "inputs_embeds": inputs_embeds,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.answered(rows, start_positions, end_positions, return_dict)


def _place_loss(logits: Tensor, places: Tensor) -> Tensor:
    places = places.view(-1)
    return cross_entropy(logits, torch.where((places >= 0) & (places < logits.shape[1]), places, -100))
