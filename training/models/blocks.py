"""Layers and functions that several models share; copied beside exported weights.

Shapes: B rows, L tokens, D hidden size, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

try:
    from transformers.modeling_layers import GradientCheckpointingLayer
except ImportError:  # older than transformers 4.52

    class GradientCheckpointingLayer(nn.Module):  # type: ignore[no-redef]
        """transformers' base of a layer whose activations may be computed again in the backward pass.

        `gradient_checkpointing_enable` sets both attributes. Tensors that need a gradient are positional arguments.
        """

        gradient_checkpointing = False
        _gradient_checkpointing_func: Callable[..., Any]

        def __call__(self, *inputs: Any, **others: Any) -> Any:
            if self.gradient_checkpointing and self.training:
                return self._gradient_checkpointing_func(partial(super().__call__, **others), *inputs)
            return super().__call__(*inputs, **others)


class ResidualOutput(nn.Module):
    """The end of both halves of a layer: LN(residual + dropout(W x + b))."""

    def __init__(self, config: PretrainedConfig, size: int) -> None:
        """`size` is the width of x."""
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class Activated(nn.Module):
    """activation(W x + b)."""

    def __init__(self, config: PretrainedConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        if self.activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if self.activation == "gelu_new" else "none")


class PostNormLayer(GradientCheckpointingLayer):
    """A layer whose both halves end in a `ResidualOutput`. Its `attention` has `self`, by which it attends, and
    `output`."""

    def __init__(self, config: PretrainedConfig, attention: nn.Module) -> None:
        super().__init__()
        self.attention: Any = nn.Module()
        self.attention.self = attention
        self.attention.output = ResidualOutput(config, config.hidden_size)
        self.intermediate = Activated(config, config.hidden_size, config.intermediate_size)
        self.output = ResidualOutput(config, config.intermediate_size)

    def behind(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """The layer's output [..., D], from what `attention.self` computed of its input `hidden`, both [..., D]."""
        hidden = self.attention.output(attended, hidden)
        return self.output(self.intermediate(hidden), hidden)


class Transform(Activated):
    """LN(activation(W x + b))."""

    def __init__(self, config: PretrainedConfig, inputs: int, eps: float) -> None:
        super().__init__(config, inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(super().forward(x))


class Predictions(nn.Module):
    """A language-model head; the model's `_tied_weights_keys` are `decoder`'s, which shares its weight with the word
    embeddings and its bias with `bias`. transformers 5 would not load a `bias` that is shared before."""

    def __init__(self, config: PretrainedConfig, transform: nn.Module) -> None:
        super().__init__()
        self.transform = transform
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def _tie_weights(self) -> None:  # transformers 4 calls it
        self.decoder.bias = self.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32 whatever the weights' type."""
        return self.decode(self.transform(hidden))

    def decode(self, features: Tensor) -> Tensor:
        """[..., D] -> logits [..., V], float32."""
        return at_least_float32(self.decoder(features))


def initialise(module: nn.Module, deviation: float) -> None:
    """Draw the weights of a linear layer or a table, truncated at two deviations; other parameters are 1 or 0.

    With torch.nn.init, which transformers 5 patches to skip loaded tensors.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        truncated_normal(module.weight, deviation)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, Predictions):
        nn.init.zeros_(module.bias)


def truncated_normal(parameter: Tensor, deviation: float) -> None:
    """Draw a parameter from a normal distribution that is cut at two deviations."""
    nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def exporting() -> bool:
    """Whether torch.export is recording, which knows neither lengths nor values: code that asks for them has a form
    without."""
    if known := getattr(torch.compiler, "is_exporting", None):
        return bool(known())
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()  # torch 2.6


def rotate(x: Tensor, turns: Tensor, back: bool = False) -> Tensor:
    """Rotate neighbouring columns of x [..., L, h] by angles, or `back`; in float32 at least.

    turns [L, h/2, 2]: the cosines and sines of the angles.
    """
    pairs = x.to(turns.dtype).unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():  # one kernel for complex numbers, which the compiler cannot fuse
        factors = torch.view_as_complex(turns)
        product = torch.view_as_complex(pairs) * (factors.conj() if back else factors)
        return torch.view_as_real(product).flatten(-2).to(x.dtype)
    (a, b), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
    sin = -sin if back else sin
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


def chosen(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """hidden [B, L, D] at `positions` [n], flat indices into [B * L] -> [n, D]; all of it for None."""
    return hidden if positions is None else hidden.flatten(0, 1).index_select(0, positions)


def at_positions(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, L, ...] at positions [B, n] -> [B, n, ...]."""
    index = positions.view(*positions.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(*positions.shape, *x.shape[2:]))


def chosen_first(these: Tensor) -> Tensor:
    """The positions of each row, first those where `these` is True, each part in its order: bool [B, L] -> int64."""
    if not exporting():
        return (~these).byte().argsort(dim=1, stable=True)
    places = (these.long().cumsum(1) - 1).where(these, these.sum(1, keepdim=True) + (~these).long().cumsum(1) - 1)
    return torch.empty_like(places).scatter(
        1, places, torch.arange(these.shape[1], device=these.device).expand_as(places)
    )


def strands(x: Tensor, dilation: int) -> Tensor:
    """[B, d S, ...] -> [B d, S, ...]: strand r of a row has its tokens r, r + d, r + 2d, ..."""
    return x.unflatten(1, (-1, dilation)).transpose(1, 2).flatten(0, 1) if dilation > 1 else x


def rejoined(x: Tensor, dilation: int) -> Tensor:
    """[B d, S, ...] -> [B, d S, ...], the inverse of `strands`."""
    return x.unflatten(0, (-1, dilation)).transpose(1, 2).flatten(1, 2) if dilation > 1 else x


def mean_state(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of hidden [B, L, D] over the tokens of mask [B, L] -> [B, D]; None: all are. In float32 at least."""
    if mask is None:
        return at_least_float32(hidden).mean(1).to(hidden.dtype)
    tokens = at_least_float32((mask != 0).to(hidden.dtype))[..., None]
    return ((at_least_float32(hidden) * tokens).sum(1) / tokens.sum(1).clamp(min=1)).to(hidden.dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over labels [...] that are not -100, from logits [..., classes]."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def given_once(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Raises ValueError unless one of the two is given."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give input_ids or inputs_embeds, and not both")


def remembers_output(recurrence: str, layer: int) -> bool:
    """Whether layer `layer`, counted from 0, remembers its output (ERNIE-Doc, eq. 3) and not its input."""
    return recurrence in ("enhanced", "full") or (recurrence == "enhanced-above-first" and layer > 0)


def attention_weights(wanted: bool | None, config: PretrainedConfig) -> list[Tensor] | None:
    """An empty list for the attention of each layer if the caller or else the configuration wants it, or None."""
    return [] if (config.output_attentions if wanted is None else wanted) else None


def returned(model: PreTrainedModel, output: ModelOutput, return_dict: bool | None) -> Any:
    """`output`, or its tuple if the caller or else the configuration asks for one."""
    wanted = model.config.return_dict if return_dict is None else return_dict
    return output if wanted else output.to_tuple()
