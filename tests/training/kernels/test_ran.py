"""RAN's norm and attention by kernels, run by Triton's interpreter, equal those of the model's own file."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.models.ran.attention_ran import RanLayer, standardise
from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.models.ran.windows_ran import RanWindows
from tests.conftest import extra, rarer


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("gated", [rarer(False), True])
@pytest.mark.parametrize("learned", [rarer(False), True])
@pytest.mark.parametrize("shape", [(3, 5, 24), rarer((19, 8))])
def test_the_norm(shape: tuple[int, ...], learned: bool, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of x, or of x and what a gate lets through; 19 rows are more than programs."""
    extra("kernels", "triton")
    from reread.training.kernels import sums
    from reread.training.kernels.ran import ran_norm

    monkeypatch.setattr(sums, "PROGRAMS", 8)
    torch.manual_seed(1)
    x, linear, gate, weight, bias = (made(*one) for one in (shape, shape, shape, shape[-1:], shape[-1:]))
    of_gate, of_norm = [linear, gate] if gated else [], [weight, bias] if learned else []
    ours = ran_norm(x, *(of_gate or (None, None)), *(of_norm or (None, None)), 1e-5)[0]
    plain = standardise(x + linear * gate.sigmoid() if gated else x, RanConfig(layer_norm_eps=1e-5))
    plain = plain * weight + bias if learned else plain
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-13)
    upstream, of = torch.randn_like(ours), [x, *of_gate, *of_norm]
    for found, expected in zip(
        torch.autograd.grad(ours, of, upstream), torch.autograd.grad(plain, of, upstream), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


CASES: list[dict[str, Any]] = [
    {},
    {"length": 10},  # the rest is read with the second window
    {"length": 5, "profile": "paper"},  # in a window of its own
    {"lengths": (11, 6, 0), "rotary": False},
    {"causal": True, "lengths": (11, 6, 0)},
    {"causal": True, "head_size": 6, "num_attention_heads": 3},
]


@pytest.mark.parametrize("case", [CASES[0], *map(rarer, CASES[1:4]), CASES[4], rarer(CASES[5])])
def test_attention_in_windows(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's outputs and gradients, of two or three windows of four tokens or of a shorter text, some padded."""
    extra("kernels", "triton")
    from reread.training.kernels import layers, sums

    monkeypatch.setattr(layers, "LARGEST_FUSED", 0)
    monkeypatch.setattr(sums, "PROGRAMS", 8)
    named = dict(case)
    length, lengths, causal = (
        named.pop(name, or_else) for name, or_else in (("length", 11), ("lengths", None), ("causal", False))
    )
    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "head_size": 4, "window_size": 4}
    torch.manual_seed(2)
    layer = RanLayer(
        RanConfig(min_window_size=1 if "profile" in named else 3, **{**sizes, **nothing, **named})
    ).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    tokens = None if lengths is None else torch.arange(length) < torch.tensor(lengths)[:, None]
    rows = len(lengths or (0, 1))
    hidden, cell = made(rows, length, 8), made(rows, 8)
    windows = RanWindows.of(layer.config, hidden, tokens, None, causal)
    results: list[list[Tensor]] = []
    for _ in range(2):
        outputs = list(layer(hidden, cell, windows)[:3])
        weighted = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in outputs)
        of = [hidden, cell, *layer.parameters()]
        results.append([*outputs, *torch.autograd.grad(weighted, of, allow_unused=True, materialize_grads=True)])
        layers.install(layer)
    assert "attend" in vars(layer)
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, rarer(True)])
def test_probabilities_with_dropout(masked: bool) -> None:
    """Of two texts with three heads, five queries and as many of eight keys. What is dropped is the kernel's choice."""
    extra("kernels", "triton")
    from reread.training.kernels.windows import window_weights, window_weights_backward

    torch.manual_seed(3)
    scores, upstream = made(6, 5, 8), torch.randn(6, 5, 8, dtype=torch.float64)
    mask = torch.rand(2, 5, 5) < 0.7
    mask[..., 0] = True
    given = scores.detach(), mask if masked else None, 2, 0.4, 12345
    weights = window_weights(*given)
    seen = mask.repeat_interleave(3, dim=0) if masked else torch.ones(6, 5, 5, dtype=torch.bool)
    share = scores[..., :5].masked_fill(~seen, float("-inf")).softmax(-1)
    kept = weights[..., :5] != 0
    torch.testing.assert_close(weights[..., :5], share * kept / 0.6, rtol=1e-12, atol=1e-14)
    assert not weights[..., 5:].any() and 0.4 < kept[seen].double().mean() < 0.8
    (expected,) = torch.autograd.grad(share * kept / 0.6, scores, upstream[..., :5])
    found = window_weights_backward(upstream, *given)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert (window_weights(*given[:4], 12347) != weights).any()
