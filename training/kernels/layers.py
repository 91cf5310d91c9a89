"""Has the layers of a model compute by kernels: `install`, from outside, as layers are split over processes.

The parameters stay where they are. A layer whose Linear layers are split over processes, or are no plain ones, keeps
its own form.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.kernels.gelu import bias_gelu
from reread.training.kernels.head import Undecoded, losses_of
from reread.training.kernels.products import adds_to, linear, projections
from reread.training.kernels.ran import ran_norm
from reread.training.kernels.residual import residual_norm, residual_output
from reread.training.kernels.rotation import from_heads, to_heads
from reread.training.kernels.shift import relative_attention
from reread.training.kernels.tail import Options, tail
from reread.training.kernels.windows import Options as WindowOptions
from reread.training.kernels.windows import window_attention, window_weights, window_weights_backward
from reread.training.models import blocks
from reread.training.models.blocks import Activated, PostNormLayer, Predictions, ResidualOutput
from reread.training.models.ernie_doc.attention_ernie_doc import ErnieDocSelfAttention
from reread.training.models.ernie_doc.modeling_ernie_doc import ErnieDocLayer
from reread.training.models.longformer.modeling_longformer import LongformerLMHead
from reread.training.models.nezha.attention_nezha import NezhaSelfAttention, Positions, Rotations
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import NezhaEncoder, NezhaLayer
from reread.training.models.ran.attention_ran import (
    LARGEST_FUSED,
    RanCellNorm,
    RanGatedResidual,
    RanLayer,
    RanLayerNorm,
    standardise,
)
from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.models.ran.windows_ran import RanWindows


def install(model: nn.Module) -> None:
    """Replace what the layers that have kernels compute by."""
    for module in model.modules():
        row = LAYERS.get(type(module), Layer())
        for name, function in row.functions.items():
            setattr(module, name, function)
        if all(type(module.get_submodule(name)) is nn.Linear for name in row.linear):
            for name, method in row.methods.items():
                setattr(module, name, MethodType(method, module))


def _linear(layer: Any, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _residual_output(layer: Any, x: Tensor, residual: Tensor) -> Tensor:
    norm, probability = layer.LayerNorm, layer.dropout.p if layer.training else 0.0
    product = linear(x, layer.dense.weight)
    seed = dropout_seed(x.device) if probability else 0
    return residual_output(product, layer.dense.bias, residual, norm.weight, norm.bias, norm.eps, probability, seed)


def _activated(layer: Any, x: Tensor) -> Tensor:
    if layer.activation == "relu":
        return Activated.forward(layer, x)
    return bias_gelu(linear(x, layer.dense.weight), layer.dense.bias, layer.activation == "gelu_new")


def _behind(layer: Any, attended: Tensor, hidden: Tensor) -> Tensor:
    inner, ends = layer.intermediate, (layer.attention.output, layer.output)
    if inner.activation == "relu":
        return PostNormLayer.behind(layer, attended, hidden)
    norm, drops = layer.output.LayerNorm, layer.output.dropout.p if layer.training else 0.0
    seeds = (dropout_seed(hidden.device), dropout_seed(hidden.device)) if drops else (0, 0)
    adds = adds_to(ends[0].dense.weight), adds_to(inner.dense.weight), adds_to(ends[1].dense.weight)
    options = Options(norm.eps, drops, seeds, inner.activation == "gelu_new", adds)
    first, last = ((one.dense.weight, one.dense.bias, *one.LayerNorm.parameters()) for one in ends)
    return tail(attended, hidden, options, *first, inner.dense.weight, inner.dense.bias, *last)


def _decode(layer: Any, features: Tensor) -> Undecoded:
    return Undecoded(features, layer.decoder)


def _longformer_predictions(layer: Any, hidden: Tensor) -> Undecoded:
    return _decode(layer, layer.layer_norm(bias_gelu(linear(hidden, layer.dense.weight), layer.dense.bias, False)))


def _ernie_doc_projections(layer: Any, hidden: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return projections(hidden, memory, layer.query, layer.key, layer.value)


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
    return ran_norm(x, None, None, None, None, config.layer_norm_eps)[0]


def _ran_norm(layer: Any, x: Tensor) -> Tensor:
    if layer.config.norm_denominator == "std":
        return RanLayerNorm.forward(layer, x)
    return ran_norm(x, None, None, layer.weight, layer.bias, layer.config.layer_norm_eps)[0]


def _ran_residual(layer: Any, y: Tensor, x: Tensor) -> Tensor:
    norm = layer.LayerNorm
    if norm.config.norm_denominator == "std":
        return RanGatedResidual.forward(layer, y, x)
    return ran_norm(y, layer.linear(x), layer.gate(x), norm.weight, norm.bias, norm.config.layer_norm_eps)[0]


def _ran_attend(
    layer: Any, z: Tensor, cells: Any, windows: RanWindows, probabilities: bool
) -> tuple[Tensor, Tensor | None]:
    attention = layer.attention
    if probabilities or attention.head_size <= LARGEST_FUSED:  # smaller heads have fused attention
        return RanLayer.attend(layer, z, cells, windows, probabilities)
    outputs, mask, swish = [], windows.seen, attention.activation == "swish"
    drops = attention.heads.dropout if layer.training else 0.0
    for number, window in enumerate(windows.cut(z).unbind(1)):
        cell = layer.dropout(layer.LayerNorm(cells.all[-1]))
        both = torch.cat([cell[:, None], window], dim=1)
        seen, seed = None if mask is None else mask[:, number], dropout_seed(z.device) if drops else 0
        options = WindowOptions(attention.head_size, swish, windows.rotary, seen, drops, seed)
        projected = projections(both, None, attention.query, attention.key, attention.value)
        raw, tokens = layer.finish(window_attention(projected, options), both).split([1, window.shape[1]], dim=1)
        cells.update(raw[:, 0])
        outputs.append(tokens)
    return torch.stack(outputs, dim=1), None


class Layer(NamedTuple):
    """A layer with kernels."""

    linear: tuple[str, ...] = ()
    """The Linear layers whose weights its methods use, by their paths."""
    methods: Mapping[str, Callable[..., Any]] = {}
    """The methods that take the place of its own, by name."""
    functions: Mapping[str, Callable[..., Tensor]] = {}
    """The functions, by the layer's names for them, that take the place of its own."""


TAIL = "attention.output.dense", "intermediate.dense", "output.dense"
LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: Layer(methods={"forward": _linear}),
    NezhaLayer: Layer(TAIL, {"behind": _behind}),
    ErnieDocLayer: Layer(TAIL, {"behind": _behind}),
    ResidualOutput: Layer(("dense",), {"forward": _residual_output}),
    Activated: Layer(("dense",), {"forward": _activated}),
    Predictions: Layer(("decoder",), {"decode": _decode}),
    LongformerLMHead: Layer(("dense", "decoder"), {"forward": _longformer_predictions}),
    NezhaSelfAttention: Layer(("query", "key", "value"), {"forward": _nezha_attention}),
    ErnieDocSelfAttention: Layer(
        ("query", "key", "value"), {"project": _ernie_doc_projections}, {"attend": relative_attention}
    ),
    RanLayer: Layer(
        ("attention.query", "attention.key", "attention.value"),
        {"attend": _ran_attend},
        {"standardise": _standardised},
    ),
    RanLayerNorm: Layer(methods={"forward": _ran_norm}),
    RanCellNorm: Layer(methods={"forward": _ran_norm}),
    RanGatedResidual: Layer(methods={"forward": _ran_residual}),
}


def check_layers(device: torch.device) -> None:
    """Raises AssertionError if a layer of NEZHA, what is dropped before a norm, losses over a vocabulary, ERNIE-Doc's
    attention, or RAN's norm or attention has another output or gradient by the kernels."""
    types = [(torch.float32, 1e-3), (torch.float16, 3e-2)]
    types += [(torch.bfloat16, 2e-1)] if device.type == "cuda" and torch.cuda.is_bf16_supported() else []
    for dtype, tolerance in types:
        _check_others(device, dtype, tolerance)
        _check_dropped(device, dtype, tolerance)
        for activation in ("gelu", "gelu_new"):
            _check_nezha(device, dtype, tolerance, activation)


def _check_nezha(device: torch.device, dtype: torch.dtype, tolerance: float, activation: str) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 80}
    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder = NezhaEncoder(NezhaConfig(vocab_size=8, hidden_act=activation, **sizes, **nothing)).to(device)  # type: ignore[arg-type]
    for parameter in encoder.parameters():
        parameter.data.copy_(_waves(*parameter.shape, device=device) * (1 if parameter.dim() == 1 else 0.2))
    encoder = encoder.to(dtype)
    hidden = _waves(2, 9, 48, device=device).to(dtype).requires_grad_()
    results = []
    for _ in range(2):
        output = encoder(hidden, None)[-1]
        gradients = torch.autograd.grad(output.float().square().sum(), [hidden, *encoder.parameters()])
        results.append([output, *gradients])
        install(encoder)
    _compare(results[0], results[1], tolerance)


def _check_others(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    normal = RanConfig(layer_norm_eps=1e-5)
    labels = torch.arange(12, device=device)

    def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return standardise(x, normal) * weight + bias

    def plain_gated_norm(x: Tensor, linear: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return plain_norm(x + linear * gate.sigmoid(), weight, bias)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ran_norm(x, None, None, weight, bias, 1e-5)[0]

    def gated_norm(*given: Tensor) -> Tensor:
        return ran_norm(*given, 1e-5)[0]

    def dropped(x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        y = residual_output(x, bias, residual, gamma, beta, 1e-5, 0.4, 12345)
        return y + y.again  # type: ignore[attr-defined, no-any-return]

    def plain_dropped(x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        one, nothing = torch.ones_like(x).detach(), torch.zeros_like(residual).detach()
        kept = residual_norm(one, bias.detach() * 0, nothing, gamma, beta, 1e-5, 0.4, 12345)[1] != 0
        return 2 * F.layer_norm(residual + torch.where(kept, (x + bias) / 0.6, 0.0), (40,), gamma, beta, 1e-5)

    def attention(attend: Callable[..., Tensor], gap: int, *given: Tensor) -> Tensor:
        q, k, v, r, u, w, term = given
        return attend(q, k, v, r, (u, w), term, None, dropout=0.0, gap=gap)

    sizes = [(1, 66), (1, 70), (1, 70), (136,), (), ()]  # two blocks of queries
    of_attention = *((*one, 2, 8) for one in sizes), (1, 2, 1, 70)
    with_gap = *of_attention[:3], (140, 2, 8), *of_attention[4:]

    turns, mask = _waves(9, 132, 2, device=device), torch.ones(2, 10, 10, dtype=torch.bool, device=device).tril()

    def plain_window(*projected: Tensor) -> Tensor:
        q, k, v = (F.silu(one).unflatten(-1, (2, 264)).transpose(1, 2) for one in projected)
        q, k = (torch.cat([one[:, :, :1], blocks.rotate(one[:, :, 1:], turns)], dim=2) for one in (q, k))
        return F.scaled_dot_product_attention(q, k, v, mask[:, None]).transpose(1, 2).flatten(2)

    def window(*projected: Tensor) -> Tensor:
        return window_attention(projected, WindowOptions(264, True, turns, mask, 0.0, 0))

    cases: tuple[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]], ...] = (
        (plain_norm, norm, ((12, 40), (40,), (40,))),
        (plain_gated_norm, gated_norm, ((12, 40), (12, 40), (12, 40), (40,), (40,))),
        (lambda x: standardise(x, normal), lambda x: ran_norm(x, None, None, None, None, 1e-5)[0], ((12, 40),)),
        (
            lambda logits: F.cross_entropy(logits.float(), labels, reduction="none"),
            lambda logits: losses_of(logits, labels, 40)[0],
            ((12, 40),),
        ),
        (plain_dropped, dropped, ((12, 40), (40,), (12, 40), (40,), (40,))),
        (plain_window, window, ((2, 10, 528),) * 3),
        *(
            (partial(attention, ErnieDocSelfAttention.attend, gap), partial(attention, relative_attention, gap), shapes)
            for gap, shapes in ((0, of_attention), (2, with_gap))
        ),
    )
    for plain, ours, shapes in cases:
        given = [_waves(*shape, device=device).to(dtype).requires_grad_() for shape in shapes]
        outputs = [compute(*given) for compute in (plain, ours)]
        results = [[output, *torch.autograd.grad(output.float().square().sum(), given)] for output in outputs]
        _compare(results[0], results[1], tolerance)


def _check_dropped(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    scores = _waves(6, 3, 8, device=device).to(dtype).requires_grad_()
    given = scores.detach(), None, 2, 0.4, 12345
    weights, upstream = window_weights(*given), _waves(6, 3, 8, device=device).flip(2).to(dtype)
    plain = F.pad(scores[..., :3].float().softmax(-1), (0, 5)) * (weights != 0) / 0.6
    expected = [plain, *torch.autograd.grad(plain, scores, upstream.float())]
    ours = [weights, window_weights_backward(upstream, *given)]
    _compare([one.to(dtype) for one in expected], ours, tolerance)


def _waves(*shape: int, device: torch.device) -> Tensor:
    return torch.arange(math.prod(shape), device=device).sin().view(shape)


def _compare(plain: list[Tensor], ours: list[Tensor], tolerance: float) -> None:
    """An output and its gradients. The keys' bias has no gradient but rounding."""
    steepest = max(gradient.float().abs().max().item() for gradient in plain[1:])
    for number, (expected, found) in enumerate(zip(plain, ours, strict=True)):
        size = max(expected.float().abs().max().item(), 0.02 * steepest if number else 0.0)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * size)


def dropout_seed(device: torch.device) -> int:
    """A seed for one call of dropout, from the generator of the device, which moves on; odd, so that Triton compiles
    one kernel for all. The host does not wait."""
    if device.type != "cuda":
        return int(torch.randint(2**61, ())) * 2 + 1
    generator = torch.cuda.default_generators[device.index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)  # a multiple of 4 is what torch asks for
    return (generator.initial_seed() * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03) % 2**61 * 2 + 1
