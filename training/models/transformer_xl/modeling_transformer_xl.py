"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860) in plain PyTorch, with adaptive input and softmax.

With three things of later papers: enhanced recurrence (ERNIE-Doc, Ding et al. 2021, section 3.3), positions in
sentences and paragraphs (Segatron, Bai et al. 2021), windows (Longformer, Beltagy et al. 2020, section 4). The model
that is trained and, copied beside the weights, exported; it contains nothing of parallelism. Runs on transformers 4.40
to 5.

Shapes: B rows, T tokens of the segment, M slots of memory, S = M + T keys, D hidden size, N heads, h head size,
V vocabulary, d a distance, query minus key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from ..blocks import GradientCheckpointingLayer, attention_weights, given_once, remembers_output, returned
from .attention_transformer_xl import Positions, TransformerXLSelfAttention, sinusoids
from .configuration_transformer_xl import TransformerXLConfig
from .windows_transformer_xl import WindowedSelfAttention

Mems = tuple[Tensor, ...]


def norm(config: TransformerXLConfig, here: bool) -> nn.Module:
    """Layer norm, or nothing where it has its other place (`norm_first`)."""
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon) if here else nn.Identity()


class TransformerXLOutput(nn.Module):
    """The end of both halves of a layer: LN(residual + dropout(W x + b)), without b after attention."""

    def __init__(self, config: TransformerXLConfig, size: int, bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.d_model, bias=bias)
        self.LayerNorm = norm(config, not config.norm_first)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class TransformerXLAttention(nn.Module):
    def __init__(self, config: TransformerXLConfig, number: int) -> None:
        super().__init__()
        windows = config.windows
        self.LayerNorm = norm(config, config.norm_first)
        self.self = (
            TransformerXLSelfAttention(config) if windows is None else WindowedSelfAttention(config, *windows[number])
        )
        self.output = TransformerXLOutput(config, config.n_head * config.d_head, bias=False)

    def forward(self, hidden: Tensor, memory: Tensor, weights: Tensor | None = None, **shared: Any) -> Tensor:
        seen = self.self(self.LayerNorm(hidden), self.LayerNorm(memory), weights=weights, **shared)
        return self.output(seen, hidden)

    def probabilities(self, hidden: Tensor, memory: Tensor, **shared: Any) -> Tensor:
        return self.self.probabilities(self.LayerNorm(hidden), self.LayerNorm(memory), **shared)


class TransformerXLIntermediate(nn.Module):
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_inner)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = F.gelu if config.hidden_act == "gelu" else F.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.activation(self.dense(x)))


class TransformerXLLayer(GradientCheckpointingLayer):
    def __init__(self, config: TransformerXLConfig, number: int) -> None:
        super().__init__()
        self.attention = TransformerXLAttention(config, number)
        self.LayerNorm = norm(config, config.norm_first)
        self.intermediate = TransformerXLIntermediate(config)
        self.output = TransformerXLOutput(config, config.d_inner, bias=True)

    def forward(self, hidden: Tensor, memory: Tensor, weights: Tensor | None = None, **shared: Any) -> Tensor:
        hidden = self.attention(hidden, memory, weights, **shared)
        return self.output(self.intermediate(self.LayerNorm(hidden)), hidden)


@dataclass
class TransformerXLModelOutput(ModelOutput):
    """`mems`, `attentions`: see `TransformerXLModel.forward`; `hidden_states` are the embeddings and each layer's
    output, [B, T, D]."""

    last_hidden_state: Tensor | None = None
    mems: Mems | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class TransformerXLLMOutput(ModelOutput):
    """`loss` is the mean of `losses` [B, T]; `logits` are log-probabilities [B, T, V]."""

    loss: Tensor | None = None
    losses: Tensor | None = None
    logits: Tensor | None = None
    mems: Mems | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransformerXLPreTrainedModel(PreTrainedModel):
    config_class = TransformerXLConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["TransformerXLLayer"]
    config: TransformerXLConfig
    mems_dim = 1
    """The batch dimension of `mems`."""

    def empty_mems(self, rows: int) -> Mems:
        """The memory before the first segment of `rows` texts."""
        config = self.config
        if config.recurrence == "none":
            return ()
        weight = next(self.parameters())
        slots = weight.new_zeros(config.mem_len, rows, config.d_model)
        mems = tuple(slots.clone() for _ in range(config.n_layer))
        if config.positions == "token":
            return mems
        return (*mems, torch.zeros(config.mem_len, rows, 3, dtype=torch.long, device=weight.device))

    def _init_weights(self, module: nn.Module) -> None:
        # torch.nn.init, which transformers 5 patches to skip loaded tensors. The authors' distributions.
        deviation = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=deviation)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.ParameterList | nn.ParameterDict):  # transformers 5 skips modules that own only these
            for projection in module.parameters():
                nn.init.normal_(projection, std=self.config.proj_initializer_range)
        if isinstance(module, AdaptiveSoftmax):
            nn.init.zeros_(module.bias)
            if module.clusters[1:]:
                nn.init.normal_(module.cluster_weight, std=deviation)
                nn.init.zeros_(module.cluster_bias)
        if isinstance(module, TransformerXLModel):
            nn.init.normal_(module.content_bias, std=deviation)
            nn.init.normal_(module.position_bias, std=deviation)


class TransformerXLModel(TransformerXLPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^softmax\."]

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        shape = config.clusters, config.d_model, config.d_embed, config.div_val
        self.embeddings = AdaptiveEmbedding(*shape, scale=config.d_model**0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.content_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))  # u and v, shared by all layers
        self.position_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.layer = nn.ModuleList(TransformerXLLayer(config, number) for number in range(config.n_layer))
        self.LayerNorm = norm(config, config.norm_first)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        sentence_ends: Tensor | None = None,
        paragraph_ends: Tensor | None = None,
        mem_len: int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """One segment of each row's text, input_ids [B, T]: last_hidden_state [B, T, D] and new mems.

        mems: what the call before returned for the text before: a tensor [M, B, D] a layer and, with Segatron's
            positions, one more [M, B, 3] of integers: the tokens', sentences' and paragraphs' indices, counted from
            this segment's first token. M is free. A slot of zeros is empty: zero a row to reset it.
        sentence_ends, paragraph_ends (bool [B, T]): whether a token is the last of its sentence or paragraph; needed
            by Segatron's positions alone.
        inputs_embeds [B, T, D]: what the table of words gives, instead of input_ids.
        mem_len: slots of the new mems, instead of the configuration's; slots without a token are zero.
        output_attentions: whether to return each layer's probabilities [B, N, T, S], at least float32, before dropout;
            layers then attend by them, and not by a fused kernel that has none to return.
        Raises ValueError for mems of another model, if the ends are missing, and for attentions of windows.
        """
        # Embeddings, and the memory of each layer
        config = self.config
        length = config.mem_len if mem_len is None else mem_len
        given_once(input_ids, inputs_embeds)
        hidden = self.dropout(self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds)
        memories, past = self._recall(mems, hidden, length)
        memory_length, seen = memories[0].shape[1], hidden.shape[1]
        # Segatron's indices of tokens, sentences and paragraphs, counted on from the memory
        indices = None
        if past is not None:
            if sentence_ends is None or paragraph_ends is None:
                raise ValueError(f"positions {config.positions} need sentence_ends and paragraph_ends")
            ends = torch.stack([torch.ones_like(sentence_ends), sentence_ends, paragraph_ends], dim=-1).long()
            counts = ends.cumsum(dim=1)
            indices = torch.cat([past, counts - ends], dim=1)
        shared: dict[str, Any] = {
            "biases": (self.content_bias, self.position_bias),
            "positions": self._positions(memory_length, seen, indices, like=hidden),
            "masked": self._empty(memories[-1]) if config.windows else self._masked(memories[-1], seen, length),
        }
        # The layers; the new memory of each is its input, or its output with the enhanced recurrence.
        every = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = [hidden] if every else []
        new, weights = [], attention_weights(output_attentions, config)
        layer: Any
        for number, (layer, memory) in enumerate(zip(self.layer, memories, strict=True)):
            before = hidden
            if weights is not None:
                weights.append(layer.attention.probabilities(hidden, memory, **shared))
            hidden = layer(hidden, memory, weights[-1] if weights else None, **shared)
            if every:
                states.append(hidden)
            new.append(_last(memory, hidden if remembers_output(config.recurrence, number) else before, length))
        if indices is not None:
            new.append(_last(indices[:, :0], indices - counts[:, -1:], length))
        output = TransformerXLModelOutput(
            last_hidden_state=self.dropout(self.LayerNorm(hidden)),
            mems=() if config.recurrence == "none" else tuple(new),
            hidden_states=tuple(states) if every else None,
            attentions=None if weights is None else tuple(weights),
        )
        return returned(self, output, return_dict)

    def _recall(self, mems: Sequence[Tensor] | None, hidden: Tensor, length: int) -> tuple[list[Tensor], Tensor | None]:
        """Memory of each layer [B, M, D], and with Segatron's positions the indices [B, M, 3] in it."""
        config, rows = self.config, len(hidden)
        segatron = config.positions != "token"
        if not mems or config.recurrence == "none":
            slots = length if config.official_memory and config.recurrence != "none" else 0
            empty = hidden.new_zeros(rows, slots, config.d_model)
            past = torch.zeros(rows, slots, 3, dtype=torch.long, device=hidden.device)
            return [empty] * config.n_layer, past if segatron else None
        if len(mems) != config.n_layer + segatron:
            raise ValueError(f"{len(mems)} mems; this model has {config.n_layer + segatron}")
        memories = [memory.transpose(0, 1).to(hidden.dtype) for memory in mems[: config.n_layer]]
        return memories, mems[-1].transpose(0, 1).long() if segatron else None

    def _masked(self, memory: Tensor, seen: int, length: int) -> Tensor:
        """True where a query must not look [T, S] or [B, 1, T, S]: later tokens, empty slots, beyond same_length."""
        past = memory.shape[1]
        positions = torch.arange(past + seen, device=memory.device)
        distances = positions[past:, None] - positions
        masked = distances < 0
        if self.config.same_length and not self.training and length:
            masked = masked | (distances >= length)
        empty = self._empty(memory)
        return masked if empty is None else masked | F.pad(empty, (0, seen))[:, None, None]

    def _empty(self, memory: Tensor) -> Tensor | None:
        """bool [B, M]: the slots of the last layer's memory that are empty, and that no token sees; None for none. What
        is in a slot is never 0: it comes from a layer norm, or is a sum of what the layers have computed."""
        if self.config.official_memory or not memory.shape[1]:
            return None
        return (memory == 0).all(dim=-1)

    def _positions(self, past: int, seen: int, indices: Tensor | None, like: Tensor) -> Positions:
        """Sinusoids for `past` slots and `seen` tokens; not buffers, which load as garbage outside checkpoints.

        indices [B, S, 3] of tokens, sentences and paragraphs.
        """
        config, dropout = self.config, self.config.dropout if self.training else 0.0
        distances = torch.arange(past + seen, -1, -1, device=like.device)
        if config.clamp_len is not None and not self.training:
            distances = distances.clamp(max=config.clamp_len)
        tokens = sinusoids(distances, config.widths[0])
        if indices is None:
            return Positions(F.dropout(tokens.to(like.dtype), dropout))
        streams = list(zip(indices[..., 1:].unbind(-1), config.widths[1:], strict=True))
        if config.positions == "segatron-official":
            positions = torch.arange(past + seen + 1, device=like.device)
            parts = [tokens.expand(len(indices), -1, -1)]
            for index, width in streams:
                to_last = F.pad(index[:, -1:] - index, (1, 0))
                parts.append(F.embedding(to_last, sinusoids(positions, width)))
            return Positions(F.dropout(torch.cat(parts, dim=-1).to(like.dtype), dropout))
        positions = torch.arange(-past, seen, device=like.device)
        both = []
        for index, width in streams:
            table = sinusoids(positions, width).to(torch.promote_types(like.dtype, torch.float32))
            keys = F.embedding(index + past, table)[:, None]
            queries = keys[..., past:, :]
            # Sine and cosine of a key and frequency are dropped together, so that for all queries R(d) itself is
            kept = F.dropout(torch.ones_like(keys[..., ::2]), dropout).repeat(1, 1, 1, 2)
            both.append((queries, (keys * kept).to(like.dtype)))
        return Positions(F.dropout(tokens.to(like.dtype), dropout), tuple(both))


def _last(memory: Tensor, new: Tensor, length: int) -> Tensor:
    """The last `length` of memory [B, M, ...] and new [B, T, ...] as [length, B, ...], zeros before them if too few."""
    joined = torch.cat([memory, new.detach()], dim=1).transpose(0, 1)
    return F.pad(joined, (0, 0, 0, 0, length - len(joined), 0))  # a negative pad crops


class TransformerXLForCausalLM(TransformerXLPreTrainedModel):
    memory_in_tokens = True
    """Whether memory is a number of tokens, which `predict_next` can change."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.transformer = TransformerXLModel(config)
        shape = config.clusters, config.d_model, config.d_embed, config.div_val
        self.softmax = AdaptiveSoftmax(*shape, tied=config.tie_projs)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_ends: Tensor | None = None,
        paragraph_ends: Tensor | None = None,
        mem_len: int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `TransformerXLModel`. Without labels, log-probabilities of the next token [B, T, V] as `logits`.

        labels [B, T]: the next tokens themselves, not shifted in here; -100 is left out. With them there are no
        logits but `losses` [B, T], negative log-likelihoods in nats in float32, 0 where left out, and their mean.
        """
        encoded = self.transformer(
            input_ids,
            mems,
            inputs_embeds=inputs_embeds,
            sentence_ends=sentence_ends,
            paragraph_ends=paragraph_ends,
            mem_len=mem_len,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden, embedding = encoded.last_hidden_state, self.transformer.embeddings
        loss, losses, logits = None, None, None
        if labels is None:
            logits = self.softmax(hidden, embedding)
        else:
            losses = self.softmax.losses(hidden.flatten(0, 1), labels.flatten(), embedding).view_as(labels)
            loss = losses.sum() / (labels != -100).sum().clamp(min=1)
        output = TransformerXLLMOutput(loss, losses, logits, encoded.mems, encoded.hidden_states, encoded.attentions)
        return returned(self, output, return_dict)

    def predict_next(
        self,
        input_ids: Tensor,
        next_ids: Tensor,
        mems: Sequence[Tensor] | None,
        *,
        sentence_ends: Tensor,
        paragraph_ends: Tensor,
        memory_length: int | None = None,
    ) -> TransformerXLLMOutput:
        """Of pretraining: `losses` [B, T] and mems; `memory_length` tokens of memory instead of the configuration's."""
        ends = {"sentence_ends": sentence_ends, "paragraph_ends": paragraph_ends}
        output = self(input_ids, mems, labels=next_ids, mem_len=memory_length, return_dict=True, **ends)
        return cast(TransformerXLLMOutput, output)
