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
from reread.training.kernels.ran import ran_norm, rotate
from reread.training.kernels.residual import residual_norm
from reread.training.kernels.rotation import from_heads, to_heads
from reread.training.kernels.shift import relative_bias
from reread.training.models import blocks
from reread.training.models.blocks import Activated, ResidualOutput
from reread.training.models.ernie_doc.attention_ernie_doc import ErnieDocSelfAttention
from reread.training.models.nezha.attention_nezha import NezhaSelfAttention, Positions, Rotations
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import NezhaEncoder
from reread.training.models.ran.attention_ran import RanCellNorm, RanLayer, RanLayerNorm, standardise
from reread.training.models.ran.configuration_ran import RanConfig


def install(model: nn.Module) -> None:
    """Replace the `forward` of the layers that have kernels."""
    for module in model.modules():
        row = LAYERS.get(type(module))
        if row and all(type(getattr(module, name)) is nn.Linear for name in row.linear):
            module.forward = MethodType(row.forward, module)  # type: ignore[method-assign]
        if type(module) is ErnieDocSelfAttention:
            module.relative_bias = relative_bias  # type: ignore[method-assign]
        if type(module) is RanLayer:
            module.standardise, module.rotate = _standardised, rotate  # type: ignore[method-assign, assignment]


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


def _standardised(x: Tensor, config: RanConfig) -> Tensor:
    if config.norm_denominator == "std":
        return standardise(x, config)
    return ran_norm(x, None, None, config.layer_norm_eps)[0]


def _ran_norm(layer: Any, x: Tensor) -> Tensor:
    if layer.config.norm_denominator == "std":
        return RanLayerNorm.forward(layer, x)
    return ran_norm(x, layer.weight, layer.bias, layer.config.layer_norm_eps)[0]


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
    RanLayerNorm: Layer(_ran_norm, ()),
    RanCellNorm: Layer(_ran_norm, ()),
}


def check_layers(device: torch.device) -> None:
    """Raises AssertionError if a layer of NEZHA, ERNIE-Doc's bias, or RAN's norm or rotation has another output or
    gradient by the kernels."""
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.float16, 3e-2)):
        _check_nezha(device, dtype, tolerance)
        _check_others(device, dtype, tolerance)


def _check_nezha(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    config = NezhaConfig(vocab_size=8, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=80)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
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


def _check_others(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    normal, turns = RanConfig(layer_norm_eps=1e-5), _waves(9, 4, 2, device=device)

    def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return standardise(x, normal) * weight + bias

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ran_norm(x, weight, bias, 1e-5)[0]

    cases: tuple[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]], ...] = (
        (ErnieDocSelfAttention.relative_bias, relative_bias, ((2, 70, 3, 8), (70 + 75, 3, 8), (2, 1, 1, 75))),
        (plain_norm, norm, ((70, 40), (40,), (40,))),
        (lambda x: blocks.rotate(x, turns), lambda x: rotate(x, turns), ((2, 2, 3, 9, 8),)),
    )
    for plain, ours, shapes in cases:
        given = [_waves(*shape, device=device).to(dtype).requires_grad_() for shape in shapes]
        outputs = [compute(*given) for compute in (plain, ours)]
        results = [[output, *torch.autograd.grad(output.float().square().mean(), given)] for output in outputs]
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
