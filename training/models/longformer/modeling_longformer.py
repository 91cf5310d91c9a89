"""Longformer: RoBERTa with sliding-window and global attention (Beltagy et al. 2020, arXiv:2004.05150).

Configuration, parameter names and masks are those of transformers' Longformer, so weights can be exchanged; attention
is our own (attention_longformer.py). The model contains nothing of parallelism: a layer takes its number of heads from
its input, so Linear layers can be replaced by split ones from outside. Runs on transformers 4.40 to 5.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, V vocabulary, w the window to each side
(half of `attention_window`).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput

from ..blocks import GradientCheckpointingLayer, ResidualOutput, at_least_float32, chosen, cross_entropy, returned
from ..coreference import ForCoreference
from ..crf import ForTokenClassification
from ..heads import (
    ForKeyPhrases,
    ForMultipleChoice,
    ForQuestionAnswering,
    ForSequenceClassification,
    TaskHead,
    head_dropout,
)
from .attention_longformer import LongformerSelfAttention, Sight
from .configuration_longformer import LongformerConfig


def windows(config: LongformerConfig) -> list[int]:
    """w of each layer. Raises ValueError where `attention_window` does not fit the layers or is no even number."""
    both_sides, layers = config.attention_window, config.num_hidden_layers
    sizes = [both_sides] * layers if isinstance(both_sides, int) else list(both_sides)
    if len(sizes) != layers:
        raise ValueError(f"attention_window: {len(sizes)} windows for {layers} layers; give one number or one a layer")
    if any(size <= 0 or size % 2 for size in sizes):
        raise ValueError(f"attention_window: {both_sides} counts both sides and must be even and above 0")
    return [size // 2 for size in sizes]


def dilations(config: LongformerConfig) -> list[tuple[int, int]]:
    """d of each layer, and how many of its heads, the first ones, have windows with it: 0 where d is 1.

    Raises ValueError where `attention_dilation` or `dilated_heads` does not fit the layers or heads.
    """
    stated, layers, heads = (
        getattr(config, "attention_dilation", 1),
        config.num_hidden_layers,
        config.num_attention_heads,
    )
    gaps = [stated] * layers if isinstance(stated, int) else list(stated)
    if len(gaps) != layers:
        raise ValueError(f"attention_dilation: {len(gaps)} numbers for {layers} layers; give one, or one a layer")
    if any(gap < 1 for gap in gaps):
        raise ValueError(f"attention_dilation: {stated}: 1 is a window without gaps, 2 one of every second token")
    dilated = getattr(config, "dilated_heads", None)
    if dilated is not None and not 0 <= dilated <= heads:
        raise ValueError(f"dilated_heads: {dilated} of {heads} heads")
    return [(gap, (heads if dilated is None else dilated) * (gap > 1)) for gap in gaps]


class LongformerEmbeddings(nn.Module):
    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        # No padding_idx: whether [PAD]'s row learns must not depend on how the table is split
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if config.pad_token_id is None:
            raise ValueError("pad_token_id: positions count from it; give one")
        self.padding = config.pad_token_id

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """All [B, L] -> [B, L, D]."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        if position_ids is None:
            position_ids = self._positions(input_ids)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings + self.token_type_embeddings(token_type_ids)))

    def _positions(self, input_ids: Tensor) -> Tensor:
        """RoBERTa's: tokens count from padding + 1, padding is at its own id."""
        is_text = input_ids.ne(self.padding).long()
        positions = is_text.cumsum(1) * is_text + self.padding
        longest = self.position_embeddings.num_embeddings - self.padding - 1
        if input_ids.shape[1] > longest and is_text.sum(1).max() > longest:
            raise ValueError(f"{int(is_text.sum(1).max())} tokens in a row, but positions end at {longest}")
        return positions


class LongformerAttention(nn.Module):
    def __init__(self, config: LongformerConfig, window: int, dilation: int = 1, dilated: int = 0) -> None:
        super().__init__()
        self.self = LongformerSelfAttention(config, window, dilation, dilated)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden: Tensor, sight: Sight) -> Tensor:
        return self.output(self.self(hidden, sight), hidden)


class LongformerIntermediate(nn.Module):
    """activation(W x + b)."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x))


class LongformerLayer(GradientCheckpointingLayer):
    def __init__(self, config: LongformerConfig, window: int, dilation: int = 1, dilated: int = 0) -> None:
        super().__init__()
        self.attention = LongformerAttention(config, window, dilation, dilated)
        self.intermediate = LongformerIntermediate(config)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, sight: Sight) -> Tensor:
        hidden = self.attention(hidden, sight)
        return self.output(self.intermediate(hidden), hidden)


class LongformerEncoder(nn.Module):
    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        each = zip(windows(config), dilations(config), strict=True)
        self.layer = nn.ModuleList(LongformerLayer(config, window, *dilated) for window, dilated in each)

    def forward(self, hidden: Tensor, sight: Sight, every: bool = False) -> list[Tensor]:
        """hidden [B, L, D] -> the last layer's output [B, L, D]; `every`: after all before it."""
        states = [hidden]
        for layer in self.layer:
            hidden = layer(hidden, sight)
            states = [*states, hidden] if every else [hidden]
        return states


class LongformerPooler(nn.Module):
    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, D] -> [B, D], from the first token."""
        return self.dense(hidden[:, 0]).tanh()


class LongformerLMHead(nn.Module):
    """The masked-language-model head; `decoder` shares its weight with the word embeddings, its bias with `bias`."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def _tie_weights(self) -> None:  # transformers 4 calls it
        self.decoder.bias = self.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32 whatever the weights' type."""
        return at_least_float32(self.decoder(self.layer_norm(F.gelu(self.dense(hidden)))))


class LongformerPreTrainedModel(PreTrainedModel):
    config_class = LongformerConfig
    base_model_prefix = "longformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["LongformerLayer"]
    config: LongformerConfig
    lm_head: LongformerLMHead

    def get_output_embeddings(self) -> Any:
        return self.lm_head.decoder if hasattr(self, "lm_head") else None

    def set_output_embeddings(self, value: Any) -> None:
        self.lm_head.decoder = value

    def _init_weights(self, module: nn.Module) -> None:
        # torch.nn.init, which transformers 5 patches to skip loaded tensors
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm):
            nn.init.zeros_(module.bias)
        if isinstance(module, LongformerLMHead):
            nn.init.zeros_(module.bias)


class LongformerModel(LongformerPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]

    def __init__(self, config: LongformerConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        if config.hidden_size % config.num_attention_heads:
            raise ValueError(f"hidden_size {config.hidden_size} is no multiple of {config.num_attention_heads} heads")
        self.embeddings = LongformerEmbeddings(config)
        self.encoder = LongformerEncoder(config)
        self.pooler = LongformerPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, token_type_ids, position_ids [B, L].

        attention_mask [B, L]: 1 for tokens, 0 for padding, 2 for global tokens; global_attention_mask [B, L]: 1 for
        global tokens, 0 for others. Reading masks waits for the device, unless attention_mask alone is given and is
        of booleans: leave them out if there is only text.
        Raises ValueError for more tokens than there are positions.
        Returns last_hidden_state [B, L, D] and pooler_output [B, D].
        """
        marks = attention_mask
        if global_attention_mask is not None:
            marks = global_attention_mask + 1
            marks = marks if attention_mask is None else marks * attention_mask
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        states = self.encoder(hidden, Sight(marks, global_attention_mask is not None), every)
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if every else None,
        )
        return returned(self, output, return_dict)


class LongformerForMaskedLM(LongformerPreTrainedModel):
    """Masked language modelling, as Longformer was pretrained: without global tokens."""

    _tied_weights_keys = {
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }
    _keys_to_ignore_on_load_unexpected = [r"^longformer\.pooler\."]

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config)
        self.longformer = LongformerModel(config, add_pooling_layer=False)
        self.lm_head = LongformerLMHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `LongformerModel`, with labels [B, L], -100 where nothing is predicted.

        masked_positions [n] int64, flat indices into [B * L]: the head runs on these alone; labels are then [n].
        Returns logits [B, L, V] or [n, V], float32, and the mean loss if labels are given.
        """
        encoded = self.longformer(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.lm_head(chosen(encoded.last_hidden_state, masked_positions))
        output = MaskedLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
        )
        return returned(self, output, return_dict)


class LongformerHead(LongformerPreTrainedModel, TaskHead):
    """What Longformer's heads of tasks share: without `global_attention_mask` the task chooses the global tokens, or
    there are none if `config.global_attention` is "none"; "shared": they have no projections of their own."""

    body = LongformerModel

    def encode(self, rows: Mapping[str, Any]) -> Any:
        if "global_attention_mask" not in rows and getattr(self.config, "global_attention", "own") != "none":
            chosen_tokens = self.global_tokens(rows["input_ids"])
            rows = rows if chosen_tokens is None else {**rows, "global_attention_mask": chosen_tokens.long()}
        return super().encode(rows)

    def global_tokens(self, input_ids: Tensor) -> Tensor | None:
        """Which of input_ids [B, L] are global tokens, bool [B, L]; None for none."""
        return None

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        word_starts: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `LongformerModel`, with logits and loss as `TaskHead.forward`."""
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "global_attention_mask": global_attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "word_starts": word_starts,
            "output_hidden_states": output_hidden_states,
        }
        return self.classified(rows, labels, return_dict)


class LongformerClassificationHead(nn.Module):
    """W tanh(V x + b) + c with x the first token, each map after dropout."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(head_dropout(config))
        labels: Any = config.num_labels
        self.out_proj = nn.Linear(config.hidden_size, labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, D] -> [B, labels]."""
        return self.out_proj(self.dropout(self.dense(self.dropout(hidden[:, 0])).tanh()))


class LongformerForSequenceClassification(LongformerHead, ForSequenceClassification):
    """Classes of a text or of a pair, from its first token, which is global."""

    pooling = False

    def linear(self, config: Any) -> nn.Module:
        return LongformerClassificationHead(config)

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        return at_least_float32(getattr(self, self.layer)(encoded.last_hidden_state))

    def global_tokens(self, input_ids: Tensor) -> Tensor | None:
        return (torch.arange(input_ids.shape[1], device=input_ids.device) == 0).expand_as(input_ids)


class LongformerForTokenClassification(LongformerHead, ForTokenClassification):
    """A tag for each token, without global tokens."""


class LongformerForKeyPhrases(LongformerHead, ForKeyPhrases):
    """The key phrases of a text, without global tokens; transformers has no such head."""


class LongformerForCoreference(LongformerHead, ForCoreference):
    """Clusters of the mentions of a text, without global tokens; transformers has no such head."""


class LongformerForQuestionAnswering(LongformerHead, ForQuestionAnswering):
    """An answer within a text; what stands before the first separator, the question, is global, and so are marks of
    paragraphs and sentences."""

    def __init__(self, config: LongformerConfig) -> None:
        config.num_labels = 2  # transformers' own class has as many outputs as labels
        super().__init__(config)

    def global_tokens(self, input_ids: Tensor) -> Tensor | None:
        chosen_tokens = self.separators(input_ids).cumsum(1) == 0
        for mark in ("paragraph_token_id", "sentence_token_id") if self.kinds else ():
            chosen_tokens |= input_ids == getattr(self.config, mark)
        return chosen_tokens

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `LongformerModel`, with logits and loss as `ForQuestionAnswering.forward`."""
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "global_attention_mask": global_attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "output_hidden_states": output_hidden_states,
        }
        return self.answered(rows, start_positions, end_positions, return_dict)


class LongformerForMultipleChoice(LongformerHead, ForMultipleChoice):
    """One of several options, with a row for each; what follows the text and its separators is global. Where all stand
    in one row, they are global like the question."""

    def global_tokens(self, input_ids: Tensor) -> Tensor | None:
        """Positions from the first token behind the first separator on: RoBERTa puts two there, and BERT one. Where
        all options stand in one row, those before it."""
        separators = self.separators(input_ids)
        if self.joined:
            return separators.cumsum(1) == 0
        behind = (separators.cumsum(1) > 0) & ~separators
        return behind.cumsum(1) > 0
