"""The kernels of a layer's halves, run by Triton's interpreter, equal the operations of models/blocks.py."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import NezhaEncoder, NezhaLayer
from tests.conftest import extra, rarer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight programs share the rows, since the interpreter runs one after another."""
    extra("kernels", "triton")
    from reread.training.kernels import sums

    monkeypatch.setattr(sums, "PROGRAMS", 8)


@pytest.mark.parametrize(("shape", "probability"), [rarer((3, 5, 24), 0.0), ((3, 5, 24), 0.4), rarer((19, 8), 0.0)])
@pytest.mark.usefixtures("few_programs")
def test_residual_and_norm(shape: tuple[int, ...], probability: float) -> None:
    """19 tokens are more than programs; 24 columns no power of two. The kernel's own choice is what is dropped."""
    from reread.training.kernels.residual import residual_norm, residual_output

    torch.manual_seed(1)
    x, residual = made(*shape), made(*shape)
    bias, gamma, beta = (made(shape[-1]) for _ in range(3))
    of = x, bias, residual, gamma, beta
    y, h, _, _ = residual_norm(*of, 1e-5, probability, 12345)
    kept = (h != residual).detach()
    torch.testing.assert_close(residual_output(*of, 1e-5, probability, 12345), y, rtol=0, atol=0)
    plain = F.layer_norm(
        residual + torch.where(kept, (x + bias) / (1 - probability), 0.0), shape[-1:], gamma, beta, 1e-5
    )
    torch.testing.assert_close(y, plain, rtol=1e-12, atol=1e-13)
    assert abs(kept.double().mean().item() - (1 - probability)) < 0.12
    # Its readers are what is computed from it, the residual of another half, or both
    for uses in (1, 2, 3) if len(shape) == 3 else (3,):
        y = residual_output(*of, 1e-5, probability, 12345)
        readers = [reader for bit, reader in ((1, y), (2, y.again)) if uses & bit]  # type: ignore[attr-defined]
        upstreams = [torch.randn_like(plain) for _ in readers]
        ours = torch.autograd.grad(readers, of, upstreams)
        theirs = torch.autograd.grad([plain for _ in readers], of, upstreams, retain_graph=True)
        for found, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    assert (residual_norm(*of, 1e-5, probability, 12347)[1] != h).any() == (probability > 0)


@pytest.mark.long
def test_layers_by_kernels_can_be_computed_again_in_the_backward_pass() -> None:
    """Activation checkpointing; what is dropped is the same the second time."""
    extra("kernels", "triton")
    from reread.training.kernels.layers import install

    results = []
    for again in (False, True):
        torch.manual_seed(3)
        encoder = NezhaEncoder(NezhaConfig(vocab_size=8, **SIZES)).double().train()  # type: ignore[arg-type]
        install(encoder)
        if again:
            for layer in encoder.layer:
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        hidden = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
        output = encoder(hidden, None)[-1]
        results.append([output, *torch.autograd.grad(output.square().sum(), [hidden, *encoder.parameters()])])
    for plain, found in zip(*results, strict=True):
        assert torch.equal(plain, found)


@pytest.mark.parametrize(
    ("shape", "approximate"),
    [((3, 5, 24), "none"), rarer((3, 5, 24), "tanh"), rarer((19, 8), "none"), ((2, 1100), "tanh")],
)
@pytest.mark.usefixtures("few_programs")
def test_gelu_with_its_bias(shape: tuple[int, ...], approximate: str) -> None:
    """19 tokens are more than programs, and 1,100 columns more than one computes."""
    from reread.training.kernels.gelu import bias_gelu

    torch.manual_seed(2)
    x, bias = made(*shape), made(shape[-1])
    y, plain = bias_gelu(x, bias, approximate == "tanh"), F.gelu(x + bias, approximate=approximate)
    torch.testing.assert_close(y, plain, rtol=1e-12, atol=1e-14)
    upstream = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(one, (x, bias), upstream) for one in (y, plain))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.long
def test_the_check_of_a_device_passes_and_finds_a_kernel_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, and backward alone."""
    extra("kernels", "triton")
    from reread.training.kernels import layers, ran, shift

    cpu = torch.device("cpu")
    layers.check_layers(cpu)
    output, shifted_back, norm_back = layers.residual_output, shift.shifted_backward, ran.ran_norm_backward
    for module, name, wrong in (
        (layers, "residual_output", lambda x, bias, *others: output(x, 2 * bias, *others)),
        (shift, "shifted_backward", lambda *given: shifted_back(*given).roll(1, -1)),
        (ran, "ran_norm_backward", lambda dy, *others: norm_back(1.1 * dy, *others)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, wrong)
            with pytest.raises(AssertionError, match="not close"):
                layers.check_layers(cpu)


@pytest.mark.usefixtures("few_programs")
def test_what_lies_behind_a_layers_attention() -> None:
    """As one function: with a weight whose gradient a product adds, one that does not learn, and both readers."""
    from reread.training.kernels.layers import install

    torch.manual_seed(4)
    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    layer = NezhaLayer(NezhaConfig(vocab_size=8, **SIZES, **nothing)).double()  # type: ignore[arg-type]
    for parameter in layer.parameters():
        parameter.data.normal_()
    added, frozen = layer.intermediate.dense.weight, layer.output.dense.weight
    frozen.requires_grad_(False)
    behind = [one for name, one in layer.named_parameters() if "attention.self" not in name]
    attended, hidden = made(2, 5, 16), made(2, 5, 16)
    of = [attended, hidden, *(one for one in behind if one.requires_grad)]
    upstream = torch.randn(2, 2, 5, 16, dtype=torch.float64)
    plain = layer.behind(attended, hidden)
    expected = dict(zip(of, torch.autograd.grad([plain, plain], of, [*upstream]), strict=True))
    sums = []
    added.add_product = lambda gradient, x: sums.append(gradient.t() @ x)  # type: ignore[attr-defined]
    install(layer)
    output = layer.behind(attended, hidden)
    torch.testing.assert_close(output, plain, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad([output, output.again], of, [*upstream], allow_unused=True)  # type: ignore[attr-defined]
    for one, gradient in zip(of, found, strict=True):
        torch.testing.assert_close(sums.pop() if one is added else gradient, expected[one], rtol=1e-10, atol=1e-10)
    assert not sums
