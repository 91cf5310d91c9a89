"""NEZHA: a BERT encoder with functional relative positions (Wei et al. 2019, arXiv:1909.00204), in plain PyTorch.

The model that is trained and, copied beside the weights, exported. It contains nothing of parallelism: a layer takes
its number of heads from its input, so Linear layers can be replaced by split ones from outside. Parameters have the
names of transformers 4.40's Nezha. Runs on transformers 4.40 to 5.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, V vocabulary, K `max_relative_position`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.utils import ModelOutput

from ..blocks import (
    PostNormLayer,
    Predictions,
    Transform,
    at_least_float32,
    attention_weights,
    chosen,
    cross_entropy,
    exporting,
    given_once,
    initialise,
    returned,
)
from ..coreference import ForCoreference
from ..crf import ForTokenClassification
from ..heads import ForKeyPhrases, ForMultipleChoice, ForQuestionAnswering, ForSequenceClassification, TaskHead
from ..vectors import ForEmbedding
from .attention_nezha import MASKED, NezhaSelfAttention, Positions, Rotations, Tables, sinusoids
from .configuration_nezha import SPAN_POSITION_SIZE, SPAN_POSITIONS, NezhaConfig


class NezhaEmbeddings(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        # No padding_idx: whether [PAD]'s row learns must not depend on how the table is split
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.position_embeddings = None
        if config.position_type == "parametric_absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """words [B, L, D], of `word_embeddings`, and token_type_ids [B, L] -> [B, L, D]."""
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        embeddings = words + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            length, rows = words.shape[1], self.position_embeddings.num_embeddings
            if length > rows:
                raise ValueError(f"{length} tokens, but parametric_absolute positions end at {rows}")
            embeddings = embeddings + self.position_embeddings(torch.arange(length, device=words.device))
        return self.dropout(self.LayerNorm(embeddings))


class NezhaLayer(PostNormLayer):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__(config, NezhaSelfAttention(config))

    def forward(
        self, hidden: Tensor, mask: Tensor | None, positions: Positions, weights: Tensor | None = None
    ) -> Tensor:
        return self.behind(self.attention.self(hidden, mask, positions, weights), hidden)


class NezhaEncoder(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(NezhaLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, hidden: Tensor, mask: Tensor | None, every: bool = False, weights: list[Tensor] | None = None
    ) -> list[Tensor]:
        """hidden [B, L, D], mask [B, 1, 1, L] -> the last layer's output [B, L, D]; `every`: after all before it.

        The probabilities of each layer [B, N, L, L], by which it then attends, are appended to `weights`."""
        positions = self._positions(hidden.shape[1], hidden)
        states = [hidden]
        layer: Any
        for layer in self.layer:
            if weights is not None:
                weights.append(layer.attention.self.probabilities(hidden, mask, positions))
            hidden = layer(hidden, mask, positions, weights[-1] if weights else None)
            states = [*states, hidden] if every else [hidden]
        return states

    def _positions(self, length: int, like: Tensor) -> Positions:
        """The sinusoids for all layers; not a buffer, since one that is not in the checkpoint loads as garbage."""
        if self.config.position_type != "functional":
            return None
        clip = self.config.max_relative_position
        head_size = self.config.hidden_size // self.config.num_attention_heads
        real = torch.promote_types(like.dtype, torch.float32)
        if clip is not None and (exporting() or length > clip + 1):
            table = sinusoids(torch.arange(2 * clip + 1, device=like.device), head_size).to(real)
            return Tables(table, table)
        # Nothing is clipped; tables of clipped checkpoints begin at -K, which shifts the argument by K
        positions = torch.arange(length, device=like.device)
        features = sinusoids(positions + (clip or 0), head_size).to(real)
        sines, cosines = sinusoids(positions, head_size).to(real).unflatten(-1, (-1, 2)).unbind(-1)
        return Rotations(features, torch.stack([cosines, sines], dim=-1))


class NezhaPooler(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, D] -> [B, D], from the first token."""
        return self.dense(hidden[:, 0]).tanh()


class NezhaSpanBoundary(nn.Module):
    """SpanBERT's representation of a token of a masked span (Joshi et al. 2020, section 3.2):

    y_i = LN(gelu(W_2 LN(gelu(W_1 [x_{s-1}; x_{e+1}; p_{i-s+1}]))))

    with x the encoder's output and s ... e the span. The two linear maps have biases, as in SpanBERT's code.
    """

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(SPAN_POSITIONS, SPAN_POSITION_SIZE)
        self.inner = Transform(config, 2 * config.hidden_size + SPAN_POSITION_SIZE, config.layer_norm_eps)
        self.outer = Transform(config, config.hidden_size, config.layer_norm_eps)

    def forward(self, hidden: Tensor, boundaries: Tensor) -> Tensor:
        """hidden [B, L, D]; boundaries [3, n]: positions s - 1 and e + 1 in [B * L], and i - s -> y [n, D]."""
        before, behind, inside = boundaries
        positions = self.position_embeddings(inside.clamp(max=SPAN_POSITIONS - 1))
        return self.outer(self.inner(torch.cat([chosen(hidden, before), chosen(hidden, behind), positions], dim=-1)))


class NezhaHeads(nn.Module):
    def __init__(self, config: NezhaConfig, pretraining: bool) -> None:
        super().__init__()
        transform = Transform(config, config.hidden_size, config.layer_norm_eps)
        self.predictions = Predictions(config, transform)
        if pretraining:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)
        if pretraining and config.span_boundary:
            self.span_boundary = NezhaSpanBoundary(config)


@dataclass
class NezhaForPreTrainingOutput(ModelOutput):
    """`loss` is a scalar; `hidden_states` are the embeddings and each layer's output, [B, L, D]."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    span_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    @property
    def logits(self) -> Tensor | None:
        """Those of the tokens, by the name that other heads give them."""
        return self.prediction_logits


class NezhaPreTrainedModel(PreTrainedModel):
    config_class = NezhaConfig
    base_model_prefix = "nezha"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["NezhaLayer"]
    config: NezhaConfig
    cls: NezhaHeads

    def get_output_embeddings(self) -> Any:
        return self.cls.predictions.decoder if hasattr(self, "cls") else None

    def set_output_embeddings(self, value: Any) -> None:
        self.cls.predictions.decoder = value

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, self.config.initializer_range)  # truncated as in NEZHA's own code


class NezhaModel(NezhaPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^cls\."]

    def __init__(self, config: NezhaConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = NezhaEmbeddings(config)
        self.encoder = NezhaEncoder(config)
        self.pooler = NezhaPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, attention_mask (1 for tokens, 0 for padding), token_type_ids [B, L].

        inputs_embeds [B, L, D]: word embeddings instead of input_ids. `attentions` are probabilities [B, N, L, L]
        before dropout; if they are asked for, layers attend by them, and not by a fused kernel that has none to return.

        Functional and relative positions take any length, whatever `max_position_embeddings` is.
        Returns last_hidden_state [B, L, D] and pooler_output [B, D].
        """
        given_once(input_ids, inputs_embeds)
        words = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = self.embeddings(words, token_type_ids)
        mask = None
        if attention_mask is not None:
            mask = (1 - attention_mask[:, None, None].to(hidden.dtype)) * MASKED
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        weights = attention_weights(output_attentions, self.config)
        states = self.encoder(hidden, mask, every, weights)
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if every else None,
            attentions=None if weights is None else tuple(weights),
        )
        return returned(self, output, return_dict)


class NezhaForPreTraining(NezhaPreTrainedModel):
    """Masked language modelling, next-sentence prediction and, with `config.span_boundary`, span prediction, as NEZHA
    was pretrained (its Table 2)."""

    _keys_to_ignore_on_load_unexpected = [r"^cls\.span_boundary\."]

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "nezha.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__(config)
        self.nezha = NezhaModel(config)
        self.cls = NezhaHeads(config, pretraining=True)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        masked_positions: Tensor | None = None,
        span_boundaries: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `NezhaModel`, with labels [B, L] (-100 where nothing is predicted) and next_sentence_label [B].

        masked_positions [n] int64, flat indices into [B * L]: the head runs on these alone; labels are then [n].
        next_sentence_label: 0 where the second sentence follows the first, 1 where it is a random one.
        span_boundaries [3, n] int64, of a model with `span_boundary` and for each of the masked_positions: the flat
        indices of the tokens before and after its span, and how many tokens of the span are before it.
        Returns prediction_logits [B, L, V] or [n, V], seq_relationship_logits [B, 2] and, with span_boundaries,
        span_logits [n, V], all float32, and the sum of the mean losses whose labels are given; labels are those of
        span_logits, too.
        """
        encoded = self.nezha(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.cls.predictions(chosen(encoded.last_hidden_state, masked_positions))
        relationship = at_least_float32(self.cls.seq_relationship(encoded.pooler_output))
        span_logits = None
        if span_boundaries is not None:
            span_logits = self.cls.predictions.decode(
                self.cls.span_boundary(encoded.last_hidden_state, span_boundaries)
            )
        losses = []
        if labels is not None:
            losses += [cross_entropy(one, labels) for one in (logits, span_logits) if one is not None]
        if next_sentence_label is not None:
            losses.append(cross_entropy(relationship, next_sentence_label))
        output = NezhaForPreTrainingOutput(
            loss=sum(losses) if losses else None,  # type: ignore[arg-type]
            prediction_logits=logits,
            seq_relationship_logits=relationship,
            span_logits=span_logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return returned(self, output, return_dict)


class NezhaForMaskedLM(NezhaPreTrainedModel):
    """Masked language modelling alone; loads what `NezhaForPreTraining` saved."""

    _tied_weights_keys = NezhaForPreTraining._tied_weights_keys
    _keys_to_ignore_on_load_unexpected = [r"^nezha\.pooler\.", r"^cls\.(seq_relationship|span_boundary)\."]

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__(config)
        self.nezha = NezhaModel(config, add_pooling_layer=False)
        self.cls = NezhaHeads(config, pretraining=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `NezhaForPreTraining` without next sentences; logits [B, L, V] or [n, V]."""
        encoded = self.nezha(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.cls.predictions(chosen(encoded.last_hidden_state, masked_positions))
        output = MaskedLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return returned(self, output, return_dict)


class NezhaHead(NezhaPreTrainedModel, TaskHead):
    """What NEZHA's heads of tasks share: a row is [CLS] text [SEP], or [CLS] a [SEP] b [SEP] with types 0 and 1."""

    body = NezhaModel

    def content(self, ids: Tensor) -> tuple[int, int]:
        """The first part, behind [CLS]; what comes after the question, where that is first."""
        ends = self.ends(ids)
        return (ends[0] + 1, len(ids) - 1) if self.question_first else (1, ends[0])


class NezhaForSequenceClassification(NezhaHead, ForSequenceClassification):
    """Classes of a text or of a pair."""


class NezhaForTokenClassification(NezhaHead, ForTokenClassification):
    """A tag for each token."""


class NezhaForKeyPhrases(NezhaHead, ForKeyPhrases):
    """The key phrases of a text."""


class NezhaForCoreference(NezhaHead, ForCoreference):
    """Clusters of the mentions of a text."""


class NezhaForQuestionAnswering(NezhaHead, ForQuestionAnswering):
    """An answer within a text; a row is [CLS] question [SEP] text [SEP]."""


class NezhaForMultipleChoice(NezhaHead, ForMultipleChoice):
    """One of several options, with a row for each."""


class NezhaForEmbedding(NezhaHead, ForEmbedding):
    """The vector of a text."""
