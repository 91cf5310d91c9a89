"""The losses over the vocabulary by kernels, run by Triton's interpreter, equal torch's cross entropy."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import extra


def decoder(words: int, rows: int, size: int) -> nn.Linear:
    layer = nn.Linear(size, rows, dtype=torch.float64)
    layer.weight.logical_shape = (words, size)  # type: ignore[attr-defined]
    return layer


@pytest.mark.parametrize(("tokens", "words", "rows"), [((7,), 50, 50), ((2, 3), 50, 64), ((3,), 9000, 9088)])
def test_losses_hits_and_gradients(tokens: tuple[int, ...], words: int, rows: int) -> None:
    """Rows behind the words are padding; 9,000 words are more than a program reads at once."""
    extra("kernels", "triton")
    from reread.training.kernels.head import Undecoded

    torch.manual_seed(1)
    layer = decoder(words, rows, 8)
    features = torch.randn(*tokens, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(words, (features.numel() // 8,))
    logits = (features.reshape(-1, 8) @ layer.weight.t() + layer.bias)[:, :words]
    labels[0] = logits[0].argmax()
    losses, hits = Undecoded(features, layer).losses(labels)
    expected = -logits.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-13)
    assert hits.tolist() == (logits.argmax(-1) == labels).double().tolist() and hits[0] == 1
    weights, of = torch.randn_like(losses), (features, layer.weight, layer.bias)
    ours, theirs = (torch.autograd.grad(one, of, weights) for one in (losses, expected))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


def test_of_equal_logits_the_first_is_the_best_and_nothing_predicted_is_no_error() -> None:
    extra("kernels", "triton")
    from reread.training.kernels.head import Undecoded, token_losses

    logits = torch.zeros(2, 5000, dtype=torch.float64)
    assert token_losses(logits, torch.tensor([0, 4999]), 5000)[1].tolist() == [1, 0]
    features = torch.zeros(0, 8, dtype=torch.float64, requires_grad=True)
    layer = decoder(5, 5, 8)
    losses, hits = Undecoded(features, layer).losses(torch.zeros(0, dtype=torch.long))
    assert losses.shape == hits.shape == (0,)
    (gradient,) = torch.autograd.grad(losses.sum(), layer.weight)
    assert gradient.count_nonzero() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_gives_a_loss_that_is_not(bad: float) -> None:
    """Else the step would be learned from."""
    extra("kernels", "triton")
    from reread.training.kernels.head import token_losses

    logits = torch.zeros(1, 5000, dtype=torch.float64)
    logits[0, 4500] = bad
    plain = F.cross_entropy(logits, torch.tensor([1]), reduction="none")
    assert not plain.isfinite().any() and not token_losses(logits, torch.tensor([1]), 5000)[0].isfinite().any()


def test_gradients_are_taken_once_alone() -> None:
    """They stand in the place of the logits, so a second backward pass would read gradients as logits."""
    extra("kernels", "triton")
    from reread.training.kernels.head import Undecoded

    features: Tensor = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    total = Undecoded(features, decoder(5, 5, 8)).losses(torch.tensor([0, 1]))[0].sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
