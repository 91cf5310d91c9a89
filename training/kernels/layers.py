"""Has the layers of a model compute by kernels: `install`, from outside, as layers are split over processes.

The parameters stay where they are. A layer that is split over processes, or whose Linear layers are not plain ones,
keeps its own form.
"""

import math
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.kernels.gelu import bias_gelu
from reread.training.kernels.residual import residual_norm
from reread.training.kernels.rotation import from_heads, to_heads
from reread.training.kernels.shift import relative_bias
from reread.training.models.blocks import Activated, ResidualOutput
from reread.training.models.ernie_doc.attention_ernie_doc import ErnieDocSelfAttention
from reread.training.models.nezha.attention_nezha import NezhaSelfAttention, Positions, Rotations
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import NezhaEncoder


def install(model: nn.Module) -> None:
    """Replace the `forward` of the layers that have kernels."""
    for module in model.modules():
        row = LAYERS.get(type(module))
        if row and all(type(getattr(module, name)) is nn.Linear for name in row.linear):
            module.forward = MethodType(row.forward, module)  # type: ignore[method-assign]
        if type(module) is ErnieDocSelfAttention:
            module.relative_bias = relative_bias  # type: ignore[method-assign]


def _residual_output(layer: Any, x: Tensor, residual: Tensor) -> Tensor:
    norm, probability = layer.LayerNorm, layer.dropout.p if layer.training else 0.0
    product = F.linear(x, layer.dense.weight)
    seed = dropout_seed(x.device) if probability else 0
    return residual_norm(product, layer.dense.bias, residual, norm.weight, norm.bias, norm.eps, probability, seed)[0]


def _activated(layer: Any, x: Tensor) -> Tensor:
    if layer.activation == "relu":
        return Activated.forward(layer, x)
    return bias_gelu(F.linear(x, layer.dense.weight), layer.dense.bias, layer.activation == "gelu_new")


def _nezha_attention(
    layer: Any, hidden: Tensor, mask: Tensor | None, positions: Positions, weights: Tensor | None = None
) -> Tensor:
    if weights is not None or type(positions) is not Rotations:
        return NezhaSelfAttention.forward(layer, hidden, mask, positions, weights)
    projections = layer.query, layer.key, layer.value
    # One product; copying the weights together costs less than adding up three gradients of `hidden`.
    qkv = F.linear(hidden, torch.cat([one.weight for one in projections]), torch.cat([one.bias for one in projections]))
    q, k, v = to_heads(qkv, positions.features, positions.turns)
    z = F.scaled_dot_product_attention(
        *(q, k, v),
        attn_mask=None if mask is None else mask.to(q.dtype),
        dropout_p=layer.dropout if layer.training else 0.0,
        scale=layer.head_size**-0.5,
    )
    return from_heads(z, positions.turns)


class Layer(NamedTuple):
    """A layer with kernels."""

    forward: Callable[..., Tensor]
    """(the layer, what its own `forward` takes) -> what that returns."""
    linear: tuple[str, ...]
    """The Linear layers whose weights it uses."""


LAYERS: dict[type[nn.Module], Layer] = {
    ResidualOutput: Layer(_residual_output, ("dense",)),
    Activated: Layer(_activated, ("dense",)),
    NezhaSelfAttention: Layer(_nezha_attention, ("query", "key", "value")),
}


def check_layers(device: torch.device) -> None:
    """Raises AssertionError if a layer of NEZHA, or ERNIE-Doc's bias, has another output or gradient by the kernels."""
    config = NezhaConfig(vocab_size=8, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=80)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.float16, 3e-2)):
        encoder = NezhaEncoder(config).to(device)
        for parameter in encoder.parameters():
            parameter.data.copy_(_waves(*parameter.shape, device=device) * (1 if parameter.dim() == 1 else 0.2))
        encoder = encoder.to(dtype)
        hidden = _waves(2, 9, 48, device=device).to(dtype).requires_grad_()
        results = []
        for _ in range(2):
            output = encoder(hidden, None)[-1]
            gradients = torch.autograd.grad(output.float().square().mean(), [hidden, *encoder.parameters()])
            results.append([output, *gradients])
            install(encoder)
        _compare(results[0], results[1], tolerance)
        shapes = (2, 70, 3, 8), (70 + 75, 3, 8), (2, 1, 1, 75)
        given = [_waves(*shape, device=device).to(dtype).requires_grad_() for shape in shapes]
        biases = [compute(*given) for compute in (ErnieDocSelfAttention.relative_bias, relative_bias)]
        results = [[bias, *torch.autograd.grad(bias.float().square().mean(), given)] for bias in biases]
        _compare(results[0], results[1], tolerance)


def _waves(*shape: int, device: torch.device) -> Tensor:
    return torch.arange(math.prod(shape), device=device).sin().view(shape)


def _compare(plain: list[Tensor], ours: list[Tensor], tolerance: float) -> None:
    largest = max(one.float().abs().max().item() for one in plain)  # the keys' bias has no gradient but rounding
    for expected, found in zip(plain, ours, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * largest)


def dropout_seed(device: torch.device) -> int:
    """A seed for one call of dropout, from the generator of the device, which moves on; odd, so that Triton compiles
    one kernel for all. The host does not wait."""
    if device.type != "cuda":
        return int(torch.randint(2**61, ())) * 2 + 1
    generator = torch.cuda.default_generators[device.index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)  # a multiple of 4 is what torch asks for
    return (generator.initial_seed() * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03) % 2**61 * 2 + 1
