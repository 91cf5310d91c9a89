"""Longformer: RoBERTa with sliding-window and global attention (Beltagy et al. 2020, arXiv:2004.05150).

Configuration, parameter names and masks are those of transformers' Longformer, so weights go either way. What is made
anew is attention: ordinary scaled_dot_product_attention over chunks of queries whose windows of keys overlap, so that
time and memory grow with the length and not with its square, on any device and at any length, without padding of the
text to a multiple of the window. The file knows nothing of parallelism: a layer takes its number of heads from the
tensor it gets, so Linear layers can be swapped for split ones from outside. Runs on transformers 4.40 to 5.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, V vocabulary, w the window to each side
(half of `attention_window`), G the most global tokens of a row; C chunks a row of c queries, each of which meets the
k = c + 2w keys around its chunk.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LongformerConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.utils import ModelOutput

# What a masked score is lowered by: finite, also when float16 adds a score to it, so that a token that sees nothing
# attends to something instead of dividing zero by zero.
MASKED = -3e4

# Least queries of a chunk. Chunks of w / 2 are among the fastest for every window tried (benchmarks/): larger ones take
# more products of which masks hide the result, smaller ones more copies of gradients.
CHUNK = 64

# Scores made at a time where they are written out: few enough for a cache
SCORES = 2**20


def windows(config: LongformerConfig) -> list[int]:
    """w of each layer. Raises ValueError where `attention_window` does not fit the layers or is no even number."""
    both_sides, layers = config.attention_window, config.num_hidden_layers
    sizes = [both_sides] * layers if isinstance(both_sides, int) else list(both_sides)
    if len(sizes) != layers:
        raise ValueError(f"attention_window: {len(sizes)} windows for {layers} layers; give one number or one a layer")
    if any(size <= 0 or size % 2 for size in sizes):
        raise ValueError(f"attention_window: {both_sides} counts both sides and must be even and above 0")
    return [size // 2 for size in sizes]


class Chunks:
    """How rows of L tokens are cut for a window of w tokens to each side.

    Rows short enough are one chunk with no keys beside it. Otherwise rows lie end to end, each filled up to C chunks,
    and the keys of a chunk are its own tokens and the w on either side, be they of another row: masks hide those.
    """

    def __init__(self, length: int, window: int) -> None:
        size = max(CHUNK, window // 2)
        self.length, self.window = length, window
        self.count = 1 if length <= size + 2 * window else -(-length // size)
        self.size = length if self.count == 1 else -(-length // self.count // 16) * 16  # for aligned tensors
        self.beside = 0 if self.count == 1 else window

    def queries(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> [B C, c, ...]."""
        return self._filled(x).reshape(-1, self.size, *x.shape[2:])

    def keys(self, x: Tensor) -> Tensor:
        """[B, L, ...] -> [B C, k, ...], a view of one copy."""
        flat = self._filled(x).flatten(0, 1)
        if self.beside:
            flat = F.pad(flat, (*(0, 0) * (x.dim() - 2), self.beside, self.beside))
        return flat.unfold(0, self.size + 2 * self.beside, self.size).movedim(-1, 1)

    def rows(self, x: Tensor) -> Tensor:
        """[B C, c, ...] -> [B, L, ...]."""
        return x.reshape(-1, self.count * self.size, *x.shape[2:])[:, : self.length]

    def near(self, device: torch.device) -> Tensor:
        """Which keys lie in their row and in the window of a query: bool [C, c, k]."""
        starts = torch.arange(self.count, device=device)[:, None, None] * self.size
        queries = torch.arange(self.size, device=device)[:, None]
        keys = torch.arange(-self.beside, self.size + self.beside, device=device)
        inside = (starts + keys >= 0) & (starts + keys < self.length)
        return inside & ((queries - keys).abs() <= self.window)

    def _filled(self, x: Tensor) -> Tensor:
        missing = self.count * self.size - self.length
        return F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing)) if missing else x


class Sight:
    """Which tokens see which, worked out once a forward pass for all layers.

    marks [B, L]: 0 for padding, 1 for a token with a window, 2 for a global one; None where all are 1. Given marks,
    the host waits for the device once, to know whether there is padding and how many tokens are global.
    """

    real: Tensor | None = None
    """bool [B, L]: what is no padding; None without padding."""
    places: Tensor | None = None
    """int64 [B, G]: where the global tokens are, then other places; None without global tokens."""
    chosen: Tensor
    """bool [B, G]: which of the places are those of global tokens."""

    def __init__(self, marks: Tensor | None) -> None:
        self._masks: dict[tuple[int, torch.dtype], Tensor | None] = {}
        if marks is None:
            return
        count = (marks > 1).sum(1)
        padded, most = torch.stack([(marks <= 0).any(), count.max()]).tolist()
        if padded:
            self.real = marks > 0
        if most:
            most = min(-(-most // 16) * 16, marks.shape[1])  # for aligned tensors
            self.places = (marks > 1).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
            self.chosen = torch.arange(most, device=marks.device) < count[:, None]

    def local(self, chunks: Chunks, like: Tensor) -> Tensor | None:
        """The term [B C, 1, c, k (+ G)] of the scores of all queries; None where each sees its row from end to end.

        A global key is hidden in the window: it is seen through a column of its own, which comes last.
        """
        key = chunks.window, like.dtype
        if key not in self._masks:
            self._masks[key] = self._local(chunks, like)
        return self._masks[key]

    def _local(self, chunks: Chunks, like: Tensor) -> Tensor | None:
        if self.real is None and self.places is None and chunks.length <= chunks.window + 1:
            return None
        seen = chunks.near(like.device).repeat(len(like), 1, 1)
        by_window = self.real
        if self.places is not None:
            if by_window is None:
                by_window = torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
            by_window = by_window.scatter(1, self.places, by_window.gather(1, self.places) & ~self.chosen)
        if by_window is not None:
            seen = seen & chunks.keys(by_window)[:, None]
        if self.places is not None:
            columns = self.chosen.repeat_interleave(chunks.count, 0)[:, None].expand(-1, chunks.size, -1)
            seen = torch.cat([seen, columns], dim=-1)
        return _term(seen, like)[:, None]

    def whole(self, like: Tensor) -> Tensor | None:
        """The term [B, 1, 1, L] of the scores of global queries, which see all that is real."""
        return None if self.real is None else _term(self.real, like)[:, None, None]


def _term(seen: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, MASKED)


def _take(x: Tensor, places: Tensor) -> Tensor:
    """x [B, L, n], places [B, G] -> [B, G, n]."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


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


class LongformerSelfAttention(nn.Module):
    """The only randomness in here is dropout of attention probabilities, which differs between split heads."""

    def __init__(self, config: LongformerConfig, window: int) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.window = window
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.query_global = nn.Linear(config.hidden_size, config.hidden_size)
        self.key_global = nn.Linear(config.hidden_size, config.hidden_size)
        self.value_global = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, sight: Sight) -> Tensor:
        """hidden [B, L, D] -> [B, L, D], or this device's heads of it; zeros for padding."""
        z = self._local(hidden, sight)
        if sight.places is not None:
            rows = self._global(hidden, sight.places, sight)
            rows = torch.where(sight.chosen[..., None], rows, _take(z, sight.places))
            z = z.scatter(1, sight.places[..., None].expand_as(rows), rows)
        return z if sight.real is None else z.masked_fill(~sight.real[..., None], 0.0)

    def _local(self, hidden: Tensor, sight: Sight) -> Tensor:
        """One softmax over a token's window and the global tokens, whose keys and values are the local ones here."""
        q, k, v = self.query(hidden), self.key(hidden), self.value(hidden)
        chunks = Chunks(hidden.shape[1], self.window)
        keys = [chunks.keys(x) for x in (k, v)]
        if sight.places is not None:
            columns = [_take(x, sight.places).repeat_interleave(chunks.count, 0) for x in (k, v)]
            keys = [torch.cat(pair, dim=1) for pair in zip(keys, columns, strict=True)]
        return chunks.rows(self._attend(chunks.queries(q), keys[0], keys[1], sight.local(chunks, q)))

    def _global(self, hidden: Tensor, places: Tensor, sight: Sight) -> Tensor:
        """[B, G, D]: global tokens meet all tokens, by projections of their own."""
        q = self.query_global(_take(hidden, places))
        return self._attend(q, self.key_global(hidden), self.value_global(hidden), sight.whole(q))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (x.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for x in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        attend = partial(F.scaled_dot_product_attention, dropout_p=dropout)
        if dropout and mask is not None and q.device.type == "cpu":  # no fused kernel drops there
            few = max(1, SCORES // (q.shape[1] * q.shape[2] * k.shape[2]))
            parts = zip(*(x.split(few) for x in (q, k, v, mask)), strict=True)
            z = torch.cat([attend(*part) for part in parts])
        else:
            z = attend(q, k, v, mask)
        return z.transpose(1, 2).flatten(2)


class LongformerOutput(nn.Module):
    """The end of both halves of a layer: LN(residual + dropout(W x + b))."""

    def __init__(self, config: LongformerConfig, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class LongformerAttention(nn.Module):
    def __init__(self, config: LongformerConfig, window: int) -> None:
        super().__init__()
        self.self = LongformerSelfAttention(config, window)
        self.output = LongformerOutput(config, config.hidden_size)

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


class LongformerLayer(nn.Module):
    def __init__(self, config: LongformerConfig, window: int) -> None:
        super().__init__()
        self.attention = LongformerAttention(config, window)
        self.intermediate = LongformerIntermediate(config)
        self.output = LongformerOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, sight: Sight) -> Tensor:
        hidden = self.attention(hidden, sight)
        return self.output(self.intermediate(hidden), hidden)


class LongformerEncoder(nn.Module):
    def __init__(self, config: LongformerConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(LongformerLayer(config, window) for window in windows(config))
        self.gradient_checkpointing = False

    def forward(self, hidden: Tensor, sight: Sight, every: bool = False) -> list[Tensor]:
        """hidden [B, L, D] -> the last layer's output [B, L, D]; `every`: after all before it."""
        states = [hidden]
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, sight, use_reentrant=False)
            else:
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
        self.decoder.bias = self.bias

    def _tie_weights(self) -> None:  # transformers 4 calls it
        self.decoder.bias = self.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32 whatever the weights' type."""
        return _at_least_float32(self.decoder(self.layer_norm(F.gelu(self.dense(hidden)))))


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
        # torch.nn.init, which transformers 5 teaches to leave loaded tensors alone
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
        global tokens, 0 for others. Without both, nothing is asked of the device: leave them out where all is text.
        Raises ValueError for more tokens than there are positions.
        Returns last_hidden_state [B, L, D] and pooler_output [B, D].
        """
        marks = attention_mask
        if global_attention_mask is not None:
            marks = global_attention_mask + 1
            marks = marks if attention_mask is None else marks * attention_mask
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        states = self.encoder(hidden, Sight(marks), every)
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if every else None,
        )
        return _returned(self, output, return_dict)


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

        masked_positions [n] int64, flat places in [B * L]: the head runs on these alone; labels are then [n].
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
        hidden = encoded.last_hidden_state
        if masked_positions is not None:
            hidden = hidden.flatten(0, 1).index_select(0, masked_positions)
        logits = self.lm_head(hidden)
        output = MaskedLMOutput(
            loss=None if labels is None else F.cross_entropy(logits.flatten(0, -2), labels.flatten()),
            logits=logits,
            hidden_states=encoded.hidden_states,
        )
        return _returned(self, output, return_dict)


def _returned(model: PreTrainedModel, output: ModelOutput, return_dict: bool | None) -> Any:
    wanted = model.config.return_dict if return_dict is None else return_dict
    return output if wanted else output.to_tuple()
