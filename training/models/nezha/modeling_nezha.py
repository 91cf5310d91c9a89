"""NEZHA: a BERT encoder with functional relative positions (Wei et al. 2019, arXiv:1909.00204), in plain PyTorch.

This one file is trained, split over devices and copied beside exported weights. It knows nothing of parallelism: a
layer takes its number of heads from the tensor it gets, so Linear layers can be swapped for split ones from outside.
Parameters bear the names of transformers 4.40's Nezha. Runs on transformers 4.40 to 5.

Shapes: B rows, L tokens, D hidden size, N heads, h = D / N head size, V vocabulary, K `max_relative_position`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.utils import ModelOutput

from .configuration_nezha import SPAN_POSITION_SIZE, SPAN_POSITIONS, NezhaConfig

# What a masked score is lowered by: the least number of float16, so that it is finite in every type and a row of
# padding alone attends to something instead of dividing zero by zero.
MASKED = -65504.0

Positions = tuple[Tensor, Tensor] | None


def sinusoids(positions: Tensor, head_size: int) -> Tensor:
    """Rows R[p] of the paper's table (eq. 6-7) for positions [n] -> float64 [n, h]: sin at even, cos at odd columns.

    In float64, for a float32 angle is off by 5e-4 at position 8192.
    """
    frequencies = 10000.0 ** (-torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float64) / head_size)
    angles = positions[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Multiply pairs of columns of x [..., L, h], taken as complex numbers, by turns [L, h/2]."""
    pairs = torch.view_as_complex(x.to(turns.real.dtype).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def rotated_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor | None, *, dropout: float
) -> Tensor:
    """The paper's attention without an L x L x h tensor, or an L x L one where the kernel needs none:

        z_i = sum_j a_ij (v_j + R[j - i + s])    a_i = softmax_j((q_i k_j + q_i R[j - i + s]) / sqrt(h))

    With each pair (sin, cos) of R as a complex number, R[j - i + s] is R[j + s] turned by the angles i w. Turning
    the query back instead gives the same product: append the turned query to q and R[j + s] to k and v, run ordinary
    attention at twice the head size, and turn the second half of the output. R is rounded to half precision once, to
    the same error at every position.

    q, k, v [B, N, L, h]; mask [B, 1, 1, L]; positions: R[j + s] [L, h] and the complex turns by -i w [L, h/2].
    """
    features, turns = positions
    features = features.to(k.dtype).expand_as(k)
    output = F.scaled_dot_product_attention(
        torch.cat([q, _rotate(q, turns)], dim=-1),
        torch.cat([k, features], dim=-1),
        torch.cat([v, features], dim=-1),
        attn_mask=mask,
        dropout_p=dropout,
        scale=q.shape[-1] ** -0.5,
    )
    content, relative = output.chunk(2, dim=-1)
    return content + _rotate(relative, turns.conj())


class _Spread(torch.autograd.Function):
    """[..., L, 2K+1] -> [..., L, L]: column clip(j - i) + K of row i goes to (i, j)."""

    @staticmethod
    def forward(ctx: Any, binned: Tensor) -> Tensor:
        length, clip = binned.shape[-2], binned.shape[-1] // 2
        places = torch.arange(length, device=binned.device)
        columns = (places - places[:, None]).clamp(-clip, clip) + clip
        ctx.clip = clip
        return binned.gather(-1, columns.expand(*binned.shape[:-1], length))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Collect.apply(gradients[0], ctx.clip)


class _Collect(torch.autograd.Function):
    """[..., L, L] -> [..., L, 2K+1]: sums row i over all j with equal clip(j - i) + K; the adjoint of `_Spread`.

    A gather and two row sums: unlike scatter_add, it adds in a fixed order on every device.
    """

    @staticmethod
    def forward(ctx: Any, square: Tensor, clip: int) -> Tensor:
        length = square.shape[-1]
        places = torch.arange(length, device=square.device)
        columns = places[:, None] + torch.arange(-clip, clip + 1, device=square.device)
        inside = (columns >= 0) & (columns < length)
        binned = square.gather(-1, columns.clamp(0, length - 1).expand(*square.shape[:-1], -1)) * inside
        if length > clip + 1:
            distances = places - places[:, None]
            beyond = torch.stack([distances < -clip, distances > clip], dim=-1).to(square.dtype)
            ends = torch.einsum("...ij,ije->...ie", square, beyond)
            binned[..., 0] += ends[..., 0]
            binned[..., -1] += ends[..., 1]
        return binned

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0]), None


def clipped_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor | None, *, dropout: float
) -> Tensor:
    """Attention with clipped distances, p = clip(j - i, -K, K) + K:

        z_i = sum_j a_ij (v_j + values[p])    a_i = softmax_j((q_i k_j + q_i keys[p]) / sqrt(h))

    Products are taken with the 2K + 1 rows of the tables and spread over (i, j), and probabilities are collected into
    2K + 1 bins: memory grows as L (L + 2K), never as L L h. Softmax in float32 whatever the type.

    q, k, v [B, N, L, h]; positions: tables of keys and of values, both [2K + 1, h]; mask [B, 1, 1, L].
    """
    key_table, value_table = (table.to(q.dtype) for table in positions)
    q = q * q.shape[-1] ** -0.5
    scores = _at_least_float32(q @ k.transpose(-1, -2) + _Spread.apply(q @ key_table.T))
    probabilities = (scores if mask is None else scores + mask).softmax(-1).to(v.dtype)
    probabilities = F.dropout(probabilities, dropout) if dropout else probabilities
    return probabilities @ v + _Collect.apply(probabilities, len(value_table) // 2) @ value_table


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

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """input_ids, token_type_ids [B, L] -> [B, L, D]."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            length, rows = input_ids.shape[1], self.position_embeddings.num_embeddings
            if length > rows:
                raise ValueError(f"{length} tokens, but parametric_absolute positions end at {rows}")
            embeddings = embeddings + self.position_embeddings(torch.arange(length, device=input_ids.device))
        return self.dropout(self.LayerNorm(embeddings))


class NezhaSelfAttention(nn.Module):
    """The only randomness in here is dropout of attention probabilities, which differs between split heads."""

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.relative_keys = self.relative_values = None
        if config.position_type == "parametric_relative" and config.max_relative_position is not None:
            rows = 2 * config.max_relative_position + 1
            self.relative_keys = nn.Embedding(rows, self.head_size)
            self.relative_values = nn.Embedding(rows, self.head_size)

    def forward(self, hidden: Tensor, mask: Tensor | None, positions: Positions) -> Tensor:
        """hidden [B, L, D], mask [B, 1, 1, L] -> [B, L, D], or this device's heads of it."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        mask = None if mask is None else mask.to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        if self.relative_keys is not None and self.relative_values is not None:
            rows = torch.arange(self.relative_keys.num_embeddings, device=hidden.device)
            tables = self.relative_keys(rows), self.relative_values(rows)
            z = clipped_attention(q, k, v, tables, mask, dropout=dropout)
        elif positions is None:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        elif positions[1].is_complex():
            z = rotated_attention(q, k, v, positions, mask, dropout=dropout)
        else:
            z = clipped_attention(q, k, v, positions, mask, dropout=dropout)
        return z.transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class NezhaOutput(nn.Module):
    """The end of both halves of a layer: LN(residual + dropout(W x + b))."""

    def __init__(self, config: NezhaConfig, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class NezhaAttention(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.self = NezhaSelfAttention(config)
        self.output = NezhaOutput(config, config.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor | None, positions: Positions) -> Tensor:
        return self.output(self.self(hidden, mask, positions), hidden)


class NezhaActivated(nn.Module):
    """activation(W x + b)."""

    def __init__(self, config: NezhaConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        if self.activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if self.activation == "gelu_new" else "none")


class NezhaLayer(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.attention = NezhaAttention(config)
        self.intermediate = NezhaActivated(config, config.hidden_size, config.intermediate_size)
        self.output = NezhaOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, mask: Tensor | None, positions: Positions) -> Tensor:
        hidden = self.attention(hidden, mask, positions)
        return self.output(self.intermediate(hidden), hidden)


class NezhaEncoder(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(NezhaLayer(config) for _ in range(config.num_hidden_layers))
        self.gradient_checkpointing = False

    def forward(self, hidden: Tensor, mask: Tensor | None, every: bool = False) -> list[Tensor]:
        """hidden [B, L, D], mask [B, 1, 1, L] -> the last layer's output [B, L, D]; `every`: after all before it."""
        positions = self._positions(hidden.shape[1], hidden)
        states = [hidden]
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, mask, positions, use_reentrant=False)
            else:
                hidden = layer(hidden, mask, positions)
            states = [*states, hidden] if every else [hidden]
        return states

    def _positions(self, length: int, like: Tensor) -> Positions:
        """What every layer needs of the sinusoids; computed here, as buffers outside checkpoints load as garbage."""
        if self.config.position_type != "functional":
            return None
        clip = self.config.max_relative_position
        head_size = self.config.hidden_size // self.config.num_attention_heads
        real = torch.promote_types(like.dtype, torch.float32)
        if clip is not None and length > clip + 1:
            table = sinusoids(torch.arange(2 * clip + 1, device=like.device), head_size).to(real)
            return table, table
        # Nothing is clipped; the tables of clipped checkpoints begin at -K, which shifts the argument by K
        places = torch.arange(length, device=like.device)
        features = sinusoids(places + (clip or 0), head_size).to(real)
        turns = torch.view_as_complex(sinusoids(places, head_size).unflatten(-1, (-1, 2))) * -1j
        return features, turns.to(torch.complex128 if real == torch.float64 else torch.complex64)


class NezhaPooler(nn.Module):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, D] -> [B, D], from the first token."""
        return self.dense(hidden[:, 0]).tanh()


class NezhaTransform(NezhaActivated):
    """LN(activation(W x + b))."""

    def __init__(self, config: NezhaConfig, inputs: int) -> None:
        super().__init__(config, inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(super().forward(x))


class NezhaPredictions(nn.Module):
    """The masked-language-model head; `decoder` shares its weight with the word embeddings, its bias with `bias`."""

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.transform = NezhaTransform(config, config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder.bias = self.bias

    def _tie_weights(self) -> None:  # transformers 4 calls it
        self.decoder.bias = self.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32 whatever the weights' type."""
        return self.decode(self.transform(hidden))

    def decode(self, features: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32."""
        return _at_least_float32(self.decoder(features))


class NezhaSpanBoundary(nn.Module):
    """SpanBERT's representation of a token of a masked span (Joshi et al. 2020, section 3.2):

    y_i = LN(gelu(W_2 LN(gelu(W_1 [x_{s-1}; x_{e+1}; p_{i-s+1}]))))

    with x the encoder's output and s ... e the span. The two linear maps have biases, as in SpanBERT's code.
    """

    def __init__(self, config: NezhaConfig) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(SPAN_POSITIONS, SPAN_POSITION_SIZE)
        self.inner = NezhaTransform(config, 2 * config.hidden_size + SPAN_POSITION_SIZE)
        self.outer = NezhaTransform(config, config.hidden_size)

    def forward(self, hidden: Tensor, boundaries: Tensor) -> Tensor:
        """hidden [B, L, D]; boundaries [3, n]: places s - 1 and e + 1 in [B * L], and i - s -> y [n, D]."""
        before, behind, inside = boundaries
        positions = self.position_embeddings(inside.clamp(max=SPAN_POSITIONS - 1))
        return self.outer(self.inner(torch.cat([_chosen(hidden, before), _chosen(hidden, behind), positions], dim=-1)))


class NezhaHeads(nn.Module):
    def __init__(self, config: NezhaConfig, pretraining: bool) -> None:
        super().__init__()
        self.predictions = NezhaPredictions(config)
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
        # torch.nn.init, which transformers 5 teaches to leave loaded tensors alone. Truncated as in NEZHA's own code.
        if isinstance(module, nn.Linear | nn.Embedding):
            deviation = self.config.initializer_range
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm):
            nn.init.zeros_(module.bias)
        if isinstance(module, NezhaPredictions):
            nn.init.zeros_(module.bias)


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
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, attention_mask (1 for tokens, 0 for padding), token_type_ids [B, L].

        Functional and relative positions take any length, whatever `max_position_embeddings` says.
        Returns last_hidden_state [B, L, D] and pooler_output [B, D].
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        mask = None
        if attention_mask is not None:
            mask = (1 - attention_mask[:, None, None].to(hidden.dtype)) * MASKED
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        states = self.encoder(hidden, mask, every)
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if every else None,
        )
        return _returned(self, output, return_dict)


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
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        masked_positions: Tensor | None = None,
        span_boundaries: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `NezhaModel`, with labels [B, L] (-100 where nothing is predicted) and next_sentence_label [B].

        masked_positions [n] int64, flat places in [B * L]: the head runs on these alone; labels are then [n].
        next_sentence_label: 0 where the second sentence follows the first, 1 where it is a random one.
        span_boundaries [3, n] int64, of a model with `span_boundary` and for each of the masked_positions: the flat
        places of the token before its span and of the one behind it, and how many tokens of the span are before it.
        Returns prediction_logits [B, L, V] or [n, V], seq_relationship_logits [B, 2] and, with span_boundaries,
        span_logits [n, V], all float32, and the sum of the mean losses whose labels are given; labels are those of
        span_logits, too.
        """
        encoded = self.nezha(
            input_ids, attention_mask, token_type_ids, output_hidden_states=output_hidden_states, return_dict=True
        )
        logits = self.cls.predictions(_chosen(encoded.last_hidden_state, masked_positions))
        relationship = _at_least_float32(self.cls.seq_relationship(encoded.pooler_output))
        span_logits = None
        if span_boundaries is not None:
            span_logits = self.cls.predictions.decode(
                self.cls.span_boundary(encoded.last_hidden_state, span_boundaries)
            )
        losses = []
        if labels is not None:
            losses += [_cross_entropy(one, labels) for one in (logits, span_logits) if one is not None]
        if next_sentence_label is not None:
            losses.append(_cross_entropy(relationship, next_sentence_label))
        output = NezhaForPreTrainingOutput(
            loss=sum(losses) if losses else None,  # type: ignore[arg-type]
            prediction_logits=logits,
            seq_relationship_logits=relationship,
            span_logits=span_logits,
            hidden_states=encoded.hidden_states,
        )
        return _returned(self, output, return_dict)


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
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `NezhaForPreTraining` without next sentences; logits [B, L, V] or [n, V]."""
        encoded = self.nezha(
            input_ids, attention_mask, token_type_ids, output_hidden_states=output_hidden_states, return_dict=True
        )
        logits = self.cls.predictions(_chosen(encoded.last_hidden_state, masked_positions))
        output = MaskedLMOutput(
            loss=None if labels is None else _cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
        )
        return _returned(self, output, return_dict)


def _chosen(hidden: Tensor, masked_positions: Tensor | None) -> Tensor:
    return hidden if masked_positions is None else hidden.flatten(0, 1).index_select(0, masked_positions)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _returned(model: PreTrainedModel, output: ModelOutput, return_dict: bool | None) -> Any:
    wanted = model.config.return_dict if return_dict is None else return_dict
    return output if wanted else output.to_tuple()
