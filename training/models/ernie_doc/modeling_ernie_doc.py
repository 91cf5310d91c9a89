"""ERNIE-Doc: a BERT encoder that reads a document segment by segment (Ding et al. 2021, arXiv:2012.15688).

Each layer attends to the segment and to a memory of the segments before it. Positions are those of the authors' code:
Transformer-XL's form (Dai et al. 2019, section 3.3) over a learned table of distances to both sides, and a term for
the type of the key, each with biases.

This one file is trained, split over devices and copied beside exported weights. It knows nothing of parallelism: a
layer takes its number of heads from the tensor it gets, so Linear layers can be swapped for split ones from outside.
Runs on transformers 4.40 to 5.

Shapes: B rows, T tokens of a segment, M slots of memory, S = M + T keys, D hidden size, N heads, h = D / N head size,
V vocabulary, P = M + 2T distances between a query and a key, the last of them unused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .configuration_ernie_doc import ErnieDocConfig

# What a masked score is lowered by. Half of what float16 holds, so that the sum with a score is finite in every type
# and a row of padding alone attends to something instead of dividing zero by zero.
MASKED = -32768.0

# The authors' constant. Padding sees keys that are all lowered by it, so it attends by what float32's rounding, to
# multiples of 8, leaves of the scores; and official memory holds what comes of that.
OFFICIAL_MASKED = -1e8

# Queries that are multiplied with the table of distances at once
BLOCK = 64


class _Block(NamedTuple):
    """Queries start..end - 1, c of them, and the S + c rows of the table of distances that they meet.

    Row p of the table [P, N, h] is for distance M + T - 1 - p, so query i and key j meet in row T - 1 - i + j. In a
    block's product with its rows, [c, S + c], row i begins c - 1 - i columns later: the relative shift (Dai et al.
    2019, appendix B) is a view whose rows are one element shorter than the product's.
    """

    start: int
    end: int
    rows: slice

    @classmethod
    def all(cls, length: int, keys: int) -> Iterator["_Block"]:
        for start in range(0, length, BLOCK):
            end = min(start + BLOCK, length)
            yield cls(start, end, slice(length - end, length - start + keys))

    def of(self, q: Tensor) -> Tensor:
        """[B, T, N, h] -> [N, B * c, h]."""
        return q[:, self.start : self.end].permute(2, 0, 1, 3).flatten(1, 2)

    def product(self, q: Tensor, table: Tensor) -> Tensor:
        """[N, B, c, S + c]."""
        product = torch.bmm(self.of(q), table[self.rows].permute(1, 2, 0))
        return product.view(len(product), len(q), self.end - self.start, -1)

    def shifted(self, product: Tensor) -> Tensor:
        """The view [B, N, c, S] of a product."""
        heads, batch, count, width = product.shape
        strides = count * width, batch * count * width, width - 1, 1
        return product.as_strided((batch, heads, count, width - count), strides, count - 1)

    def backward(self, gradient: Tensor, q: Tensor, table: Tensor, d_q: Tensor, d_table: Tensor) -> None:
        """Fill this block of d_q [B, T, N, h] and add to d_table [N, P, h], from the product's gradient."""
        batch, _, heads, size = q.shape
        flat = gradient.flatten(1, 2)
        by_head = torch.bmm(flat, table[self.rows].transpose(0, 1)).view(heads, batch, -1, size)
        d_q[:, self.start : self.end] = by_head.permute(1, 2, 0, 3)
        d_table[:, self.rows] += torch.bmm(flat.transpose(1, 2), self.of(q))


def _relative_bias(q: Tensor, table: Tensor, added: Tensor | None) -> Tensor:
    """q [B, T, N, h], table [P, N, h], added [B, N or 1, 1, S] -> [B, N, T, S]: q_i r_ij + added_j."""
    batch, length, heads, _ = q.shape
    keys = len(table) - length
    # Rows begin at multiples of 16 elements, as the memory-efficient kernel wants it
    bias = q.new_empty(batch, heads, length, -(-keys // 16) * 16)[..., :keys]
    for block in _Block.all(length, keys):
        part = bias[:, :, block.start : block.end]
        shifted = block.shifted(block.product(q, table))
        if added is None:
            part.copy_(shifted)
        else:
            torch.add(shifted, added, out=part)
    return bias


class _RelativeBias(torch.autograd.Function):
    """`_relative_bias` with a backward pass that holds no more than a block beside the gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, table: Tensor, added: Tensor | None) -> Tensor:
        ctx.save_for_backward(q, table)
        ctx.added = None if added is None else added.shape
        return _relative_bias(q, table, added)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0]
        q, table = ctx.saved_tensors
        d_q, d_table = torch.empty_like(q), torch.zeros_like(table.transpose(0, 1))
        batch, length, heads, _ = q.shape
        keys = len(table) - length
        for block in _Block.all(length, keys):
            count = block.end - block.start
            product = q.new_zeros(heads, batch, count, keys + count)
            block.shifted(product).copy_(gradient[:, :, block.start : block.end])
            block.backward(product, q, table, d_q, d_table)
        d_added = gradient.sum_to_size(ctx.added) if ctx.needs_input_grad[2] else None
        return d_q, d_table.transpose(0, 1), d_added


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float = 0.0) -> Tensor:
    """q, k, v [B, ., N, h], q scaled; bias [B, N, T, S] -> [B, N, T, h]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)


class _Attention(torch.autograd.Function):
    """softmax(content k + `_relative_bias`) v, for CPUs, whose fused kernel knows no dropout and no bias' gradient.

    The forward pass runs that kernel; the backward pass makes the probabilities anew, a block of queries at a time.
    content, q [B, T, N, h], both scaled; k, v [B, S, N, h]; table and added as above.
    """

    @staticmethod
    def forward(
        ctx: Any, content: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, added: Tensor | None
    ) -> Tensor:
        z = _fused(content, k, v, _relative_bias(q, table, added))
        ctx.save_for_backward(content, q, k, v, table, added, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        content, q, k, v, table, added, z = ctx.saved_tensors
        content, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (content, k, v))  # [B * N, ., h]
        batch, length, heads, _ = q.shape
        d_z, means = gradients[0].flatten(0, 1), (gradients[0] * z).sum(-1, keepdim=True).flatten(0, 1)
        d_content, d_k, d_v = torch.empty_like(content), torch.zeros_like(k), torch.zeros_like(v)
        d_q, d_table = torch.empty_like(q), torch.zeros_like(table.transpose(0, 1))
        d_added = torch.zeros_like(added) if ctx.needs_input_grad[5] else None
        for block in _Block.all(length, k.shape[1]):
            part = slice(block.start, block.end)
            product = block.product(q, table)
            shifted = block.shifted(product)
            scores = torch.bmm(content[:, part], k.transpose(1, 2))
            by_place = scores.view(shifted.shape)
            by_place += shifted
            if added is not None:
                by_place += added
            a = scores.softmax(-1)
            d_v.baddbmm_(a.transpose(1, 2), d_z[:, part])
            torch.bmm(d_z[:, part], v.transpose(1, 2), out=scores)
            scores.sub_(means[:, part]).mul_(a)  # their gradient
            del a
            d_content[:, part] = torch.bmm(scores, k)
            d_k.baddbmm_(scores.transpose(1, 2), content[:, part])
            if d_added is not None:
                d_added += by_place.sum_to_size(d_added.shape)
            product.zero_()
            shifted.copy_(by_place)
            block.backward(product, q, table, d_q, d_table)
        d_content, d_k, d_v = (x.unflatten(0, (batch, heads)).transpose(1, 2) for x in (d_content, d_k, d_v))
        return d_content, d_q, d_k, d_v, d_table.transpose(0, 1), d_added


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor | None,
    *,
    dropout: float,
    official: bool = False,
) -> Tensor:
    """Transformer-XL's attention with its second product as the additive bias of scaled_dot_product_attention:

        z_i = sum_j a_ij v_j    a_ij = softmax_j(((q_i + u) k_j + (q_i + w) r_ij) / sqrt(h) + term_j + mask_ij)

    q [B, T, N, h]; k, v [B, S, N, h]; r [P, N, h], the farthest key to the left first; biases u and w [N, h];
    term [B, N, 1, S]; mask [B, 1, T or 1, S]. Returns z [B, T, N, h].
    """
    scale = q.shape[-1] ** -0.5
    content, q = (((q + bias) * scale).to(v.dtype) for bias in biases)  # under autocast, a bias lifts it to float32
    added = term if mask is None or official else mask if term is None else mask + term
    if official and mask is not None:  # its rounding counts, so it is added to the sum of all terms
        scores = content.transpose(1, 2) @ k.permute(0, 2, 3, 1) + _RelativeBias.apply(q, r, added)
        a = (_at_least_float32(scores) + mask).softmax(-1).to(v.dtype)
        z = F.dropout(a, dropout) @ v.transpose(1, 2)
    elif q.device.type == "cpu" and not dropout and q.dtype in (torch.float32, torch.float64):
        z = _Attention.apply(content, q, k, v, r, added)
    else:
        z = _fused(content, k, v, _RelativeBias.apply(q, r, added), dropout)
    return z.transpose(1, 2)


class Surroundings(NamedTuple):
    """What all layers share."""

    positions: Tensor
    """[P, D], a row for each distance, the farthest key to the left first."""
    types: Tensor | None
    """[types, D]; None where all keys have one type, whose term the softmax cancels."""
    key_types: Tensor | None
    """[B, S, types], 1 at a key's type."""
    mask: Tensor | None
    """[B, 1, T or 1, S], what is added to scores."""


class ErnieDocEmbeddings(nn.Module):
    """Words, distances and types have a table, a layer norm and dropout each, and are not summed."""

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.longest = config.max_position_embeddings
        # No padding_idx: whether [PAD]'s row learns must not depend on how the table is split
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(2 * self.longest + config.memory_length, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.word_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.position_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.token_type_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        return self.dropout(self.word_layer_norm(self.word_embeddings(input_ids)))

    def positions(self, length: int, slots: int) -> Tensor:
        """[P, D] for `length` tokens after `slots` of memory.

        Distance d = query - key has row -d of the table if d <= 0, longest - 1 + d if the key lies to the left.
        """
        if length > self.longest:
            raise ValueError(f"a segment of {length} tokens, but max_position_embeddings is {self.longest}")
        if self.longest + length + slots > self.position_embeddings.num_embeddings + 1:
            raise ValueError(f"{slots} slots of memory before {length} tokens reach past the table of positions")
        weight = self.position_embeddings.weight
        distances = torch.arange(slots + length - 1, -length - 1, -1, device=weight.device)
        rows = torch.where(distances <= 0, -distances, self.longest - 1 + distances)
        return self.dropout(self.position_layer_norm(self.position_embeddings(rows)))

    def types(self) -> Tensor:
        """[types, D]."""
        return self.dropout(self.token_type_layer_norm(self.token_type_embeddings.weight))


class ErnieDocSelfAttention(nn.Module):
    """The only randomness in here is dropout of attention probabilities, which differs between split heads."""

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.official = config.official_memory
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.position = nn.Linear(config.hidden_size, config.hidden_size)
        self.token_type = nn.Linear(config.hidden_size, config.hidden_size)
        self.content_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.position_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.token_type_bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None,
        positions: Tensor,
        types: Tensor | None,
        key_types: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """hidden [B, T, D], memory [B, M, D], the rest as in `Surroundings` -> [B, T, D], or this device's heads of it.

            z_i = sum_j a_ij v_j    a_ij = softmax_j(((q_i + u) k_j + (q_i + w) r_ij + (q_i + s) t_j) / sqrt(h) + mask)

        u, w, s are content_bias, position_bias, token_type_bias. The first and the last product together are
        (q_i + u) (k_j + t_j) + (s - u) t_j; what is not the first product is the kernel's additive bias.
        """
        context = hidden if memory is None else torch.cat([memory, hidden], dim=1)
        q, k, v = self.query(hidden), self.key(context), self.value(context)
        u, w, s = (self._heads(bias) for bias in (self.content_bias, self.position_bias, self.token_type_bias))
        q, k, v = (self._heads(x) for x in (q, k, v))
        term = None
        if types is not None and key_types is not None:
            t = self._heads(self.token_type(types))
            k = k + torch.einsum("bjt,tnh->bjnh", key_types, t)
            term = (t * (s - u)).sum(-1) * self.head_size**-0.5
            term = (key_types @ term).transpose(1, 2).unsqueeze(2)
        r = self._heads(self.position(positions))
        dropout = self.dropout if self.training else 0.0
        z = relative_attention(q, k, v, r, (u, w), term, mask, dropout=dropout, official=self.official)
        return z.flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size))


class ErnieDocOutput(nn.Module):
    """The end of both halves of a layer: LN(residual + dropout(W x + b))."""

    def __init__(self, config: ErnieDocConfig, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class ErnieDocAttention(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.self = ErnieDocSelfAttention(config)
        self.output = ErnieDocOutput(config, config.hidden_size)

    def forward(self, hidden: Tensor, memory: Tensor | None, around: Surroundings) -> Tensor:
        return self.output(self.self(hidden, memory, *around), hidden)


class ErnieDocActivated(nn.Module):
    """activation(W x + b)."""

    def __init__(self, config: ErnieDocConfig, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        if self.activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if self.activation == "gelu_new" else "none")


class ErnieDocLayer(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.attention = ErnieDocAttention(config)
        self.intermediate = ErnieDocActivated(config, config.intermediate_size)
        self.output = ErnieDocOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, memory: Tensor | None, around: Surroundings) -> Tensor:
        hidden = self.attention(hidden, memory, around)
        return self.output(self.intermediate(hidden), hidden)


class ErnieDocEncoder(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(ErnieDocLayer(config) for _ in range(config.num_hidden_layers))
        self.gradient_checkpointing = False

    def forward(
        self, hidden: Tensor, mems: tuple[Tensor, ...], around: Surroundings, valid: Tensor, every: bool = False
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """hidden [B, T, D]; mems, N tensors [B, M, D] or none; valid [B, S], what may be remembered.

        Returns the last layer's output [B, T, D] (`every`: after the input and all outputs before it) and new mems.
        """
        update = _Update.of(valid, self.config.slots) if self.config.slots else None
        states, new = [hidden], []
        for number, layer in enumerate(self.layer):
            memory = mems[number] if mems else None
            before = hidden
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, memory, around, use_reentrant=False)
            else:
                hidden = layer(hidden, memory, around)
            states = [*states, hidden] if every else [hidden]
            if update is not None:
                new.append(update(memory, before if self.config.recurrence == "shifted" else hidden))
        return states, tuple(new)


class _Update(NamedTuple):
    """Which of [memory; segment] are remembered: the last valid ones, after zeros where they are too few."""

    places: Tensor
    """[B, slots, 1]."""
    empty: Tensor
    """[B, slots, 1], True where nothing is to be remembered."""

    @classmethod
    def of(cls, valid: Tensor, slots: int) -> "_Update":
        order = valid.byte().argsort(dim=1, stable=True)[:, -slots:]
        lacking = slots - order.shape[1]
        empty = F.pad(~valid.gather(1, order), (lacking, 0), value=True)
        return cls(F.pad(order, (lacking, 0))[..., None], empty[..., None])

    @torch.no_grad()
    def __call__(self, memory: Tensor | None, states: Tensor) -> Tensor:
        """memory [B, M, D], states [B, T, D] -> new memory [B, slots, D]."""
        states = states if memory is None else torch.cat([memory, states], dim=1)
        return states.take_along_dim(self.places, dim=1).masked_fill_(self.empty, 0)


class ErnieDocPooler(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, D] -> [B, D], from the last place, where [CLS] stands."""
        return self.dense(hidden[:, -1]).tanh()


class ErnieDocTransform(ErnieDocActivated):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-5)  # the authors', as in the embeddings

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(super().forward(x))


class ErnieDocPredictions(nn.Module):
    """The masked-language-model head; `decoder` shares its weight with the word embeddings, its bias with `bias`."""

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.transform = ErnieDocTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder.bias = self.bias

    def _tie_weights(self) -> None:  # transformers 4 calls it
        self.decoder.bias = self.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32 whatever the weights' type."""
        return _at_least_float32(self.decoder(self.transform(hidden)))


class ErnieDocHeads(nn.Module):
    def __init__(self, config: ErnieDocConfig, reorder: bool) -> None:
        super().__init__()
        self.predictions = ErnieDocPredictions(config)
        if reorder:
            self.segment_reorder = nn.Linear(config.hidden_size, config.reorder_classes)


@dataclass
class ErnieDocModelOutput(ModelOutput):
    """`mems` are N tensors [B, memory_length, D]; `hidden_states` the embeddings and each layer's output [B, T, D]."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class ErnieDocMaskedLMOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class ErnieDocForPreTrainingOutput(ModelOutput):
    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    reorder_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    @property
    def logits(self) -> Tensor | None:
        """Those of the tokens, by the name that other heads give them."""
        return self.prediction_logits


class ErnieDocPreTrainedModel(PreTrainedModel):
    config_class = ErnieDocConfig
    base_model_prefix = "ernie_doc"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["ErnieDocLayer"]
    config: ErnieDocConfig
    cls: ErnieDocHeads

    mems_dim = 0
    """The dimension of `mems` in which rows are."""

    def empty_mems(self, rows: int) -> tuple[Tensor, ...]:
        """N tensors of zeros [rows, memory_length, D], what a document begins with; () without memory."""
        shape = (rows, self.config.slots, self.config.hidden_size)
        layers = self.config.num_hidden_layers if self.config.slots else 0
        return tuple(torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(layers))

    def get_output_embeddings(self) -> Any:
        return self.cls.predictions.decoder if hasattr(self, "cls") else None

    def set_output_embeddings(self, value: Any) -> None:
        self.cls.predictions.decoder = value

    def _init_weights(self, module: nn.Module) -> None:
        # torch.nn.init, which transformers 5 teaches to leave loaded tensors alone. Truncated as in the authors' code.
        drawn = [module.weight] if isinstance(module, nn.Linear | nn.Embedding) else []
        if isinstance(module, ErnieDocSelfAttention):
            drawn = [module.content_bias, module.position_bias, module.token_type_bias]
        deviation = self.config.initializer_range
        for parameter in drawn:
            nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm):
            nn.init.zeros_(module.bias)
        if isinstance(module, ErnieDocPredictions):
            nn.init.zeros_(module.bias)


class ErnieDocModel(ErnieDocPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^cls\."]

    def __init__(self, config: ErnieDocConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = ErnieDocEmbeddings(config)
        self.encoder = ErnieDocEncoder(config)
        self.pooler = ErnieDocPooler(config) if add_pooling_layer else None
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
        mems: tuple[Tensor, ...] | None = None,
        *,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, attention_mask (1 for tokens, 0 for padding), token_type_ids [B, T]; mems as they were returned.

        Slots of `mems` that are zero are empty: zero a row to begin a document there. None is empty everywhere.
        A segment ends with [SEP], padding, and [CLS] in its last place. Memory has the type of its row's first token.
        Returns last_hidden_state [B, T, D], pooler_output [B, D] and mems, N tensors [B, memory_length, D] without
        gradient: the last states of [mems; segment] that belong to tokens.

        Raises ValueError for segments longer than `max_position_embeddings`.
        """
        hidden = self.embeddings(input_ids)
        batch, length = input_ids.shape
        official = self.config.official_memory
        mems = mems or (self.empty_mems(batch) if official else ())
        if mems and len(mems) != (self.config.num_hidden_layers if self.config.slots else 0):
            raise ValueError(f"{len(mems)} mems, but the model has {len(self.empty_mems(0))}")
        mems = tuple(memory.to(hidden.dtype) for memory in mems)
        slots = mems[0].shape[1] if mems else 0
        filled = mems[0].any(-1) if mems else hidden.new_ones(batch, 0, dtype=torch.bool)
        tokens = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
        mask = None
        if official:
            token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            filled = torch.ones_like(filled)
            if attention_mask is not None:
                seen = torch.cat([filled, tokens], dim=1)[:, None, None] & tokens[:, None, :, None]
                mask = _at_least_float32((~seen).to(hidden.dtype)) * OFFICIAL_MASKED
            tokens = torch.ones_like(tokens)
        elif mems or attention_mask is not None:
            mask = (~torch.cat([filled, tokens], dim=1))[:, None, None].to(hidden.dtype) * MASKED
        types = key_types = None
        if token_type_ids is not None:
            types = self.embeddings.types()
            first = token_type_ids[:1, :1] if official else token_type_ids[:, :1]
            key_types = torch.cat([first.expand(batch, slots), token_type_ids], dim=1).long()
            key_types = F.one_hot(key_types, self.config.type_vocab_size).to(hidden.dtype)
        around = Surroundings(self.embeddings.positions(length, slots), types, key_types, mask)
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        states, mems = self.encoder(hidden, mems, around, torch.cat([filled, tokens], dim=1), every)
        output = ErnieDocModelOutput(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            mems=mems,
            hidden_states=tuple(states) if every else None,
        )
        return _returned(self, output, return_dict)

    def read(self, input_ids: Tensor, *, retrospective: bool = True) -> ErnieDocModelOutput:
        """Read a whole document of any length: input_ids [n], without special tokens.

        It is cut into segments of `config.segment_length`, [SEP] and [CLS] included, and read twice (retrospective
        feed, paper, section 3.2): skimmed without gradient, then read with the memory of the skim, so that the first
        segment knows the last. `retrospective=False` reads it once. For fine-tuning, the second pass keeps what
        gradients need, which grows with the document; within `torch.no_grad()` it does not.

        Returns last_hidden_state [n, D], pooler_output [D] of the last segment, and mems as `forward` does.
        Raises ValueError if the configuration has no cls_token_id or sep_token_id.
        """
        cls, sep, pad = self.config.cls_token_id, self.config.sep_token_id, self.config.pad_token_id
        if cls is None or sep is None:
            raise ValueError("reading a document needs config.cls_token_id and config.sep_token_id")
        room = (self.config.segment_length or self.config.max_position_embeddings) - 2
        mems: tuple[Tensor, ...] = ()
        segments = []
        for piece in input_ids.split(room) if len(input_ids) else [input_ids]:
            padding = room - len(piece)
            ids = torch.cat([piece, piece.new_tensor([sep] + [pad] * padding + [cls])])
            mask = torch.cat([torch.ones_like(piece), piece.new_tensor([1] + [0] * padding + [1])])
            segments.append((len(piece), ids[None], mask[None]))
        if retrospective and self.config.slots:
            with torch.no_grad():
                for _, ids, mask in segments:
                    mems = self(ids, mask, mems=mems, return_dict=True).mems
        states = []
        for count, ids, mask in segments:
            output = self(ids, mask, mems=mems, return_dict=True)
            mems = output.mems
            states.append(output.last_hidden_state[0, :count])
        pooled = None if output.pooler_output is None else output.pooler_output[0]
        return ErnieDocModelOutput(last_hidden_state=torch.cat(states), pooler_output=pooled, mems=mems)


class ErnieDocForPreTraining(ErnieDocPreTrainedModel):
    """Masked language modelling and segment reordering, as ERNIE-Doc was pretrained (paper, section 3.4)."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "ernie_doc.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config)
        self.ernie_doc = ErnieDocModel(config)
        self.cls = ErnieDocHeads(config, reorder=True)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        reorder_labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `ErnieDocModel`, with labels [B, T] and reorder_labels [B], -100 where nothing is predicted.

        masked_positions [n] int64, flat places in [B * T]: the head runs on these alone; labels are then [n].
        Returns prediction_logits [B, T, V] or [n, V], reorder_logits [B, K], both float32, mems, and the sum of the
        mean losses whose labels are given.
        """
        encoded = self.ernie_doc(
            input_ids, attention_mask, token_type_ids, mems, output_hidden_states=output_hidden_states, return_dict=True
        )
        logits = self.cls.predictions(_chosen(encoded.last_hidden_state, masked_positions))
        reorder = _at_least_float32(self.cls.segment_reorder(encoded.pooler_output))
        losses = []
        if labels is not None:
            losses.append(_cross_entropy(logits, labels))
        if reorder_labels is not None:
            losses.append(_cross_entropy(reorder, reorder_labels))
        output = ErnieDocForPreTrainingOutput(
            loss=sum(losses) if losses else None,  # type: ignore[arg-type]
            prediction_logits=logits,
            reorder_logits=reorder,
            mems=encoded.mems,
            hidden_states=encoded.hidden_states,
        )
        return _returned(self, output, return_dict)


class ErnieDocForMaskedLM(ErnieDocPreTrainedModel):
    """Masked language modelling alone; loads what `ErnieDocForPreTraining` saved."""

    _tied_weights_keys = ErnieDocForPreTraining._tied_weights_keys
    _keys_to_ignore_on_load_unexpected = [r"^ernie_doc\.pooler\.", r"^cls\.segment_reorder\."]

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config)
        self.ernie_doc = ErnieDocModel(config, add_pooling_layer=False)
        self.cls = ErnieDocHeads(config, reorder=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `ErnieDocForPreTraining` without reordering; logits [B, T, V] or [n, V]."""
        encoded = self.ernie_doc(
            input_ids, attention_mask, token_type_ids, mems, output_hidden_states=output_hidden_states, return_dict=True
        )
        logits = self.cls.predictions(_chosen(encoded.last_hidden_state, masked_positions))
        output = ErnieDocMaskedLMOutput(
            loss=None if labels is None else _cross_entropy(logits, labels),
            logits=logits,
            mems=encoded.mems,
            hidden_states=encoded.hidden_states,
        )
        return _returned(self, output, return_dict)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _chosen(hidden: Tensor, masked_positions: Tensor | None) -> Tensor:
    return hidden if masked_positions is None else hidden.flatten(0, 1).index_select(0, masked_positions)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _returned(model: PreTrainedModel, output: ModelOutput, return_dict: bool | None) -> Any:
    wanted = model.config.return_dict if return_dict is None else return_dict
    return output if wanted else output.to_tuple()
