"""Splitting Longformer over tensor ranks changes neither loss nor gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.models.longformer import LongformerConfig, LongformerForMaskedLM, attention_longformer
from reread.training.models.longformer.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise, vocab_cross_entropy

VOCABULARY, LENGTH = 300, 75
Read = tuple[Tensor, dict[str, Tensor]]


def small(dropout: float = 0.0, dilation: int = 3) -> LongformerForMaskedLM:
    """The first three of its four heads, which are not as many on each of two ranks, have dilated windows."""
    attention_longformer.CHUNK = 16  # only in this process
    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        attention_window=[8, 6],
        attention_dilation=[1, dilation],
        dilated_heads=3,
        max_position_embeddings=LENGTH + 2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = LongformerForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and layer norms that could hide a mistake by being 0 or 1
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def read(model: nn.Module, loss_of_logits: object, with_global: bool) -> Read:
    """(loss of each real token, gradients)."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(2, VOCABULARY, (2, 3, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [30], [70]])).long()
    chosen = (torch.rand(3, LENGTH, generator=generator) < 0.1).long() if with_global else None
    places = mask.flatten().nonzero().squeeze(1)
    logits = model(ids, mask, chosen, masked_positions=places).logits
    loss = loss_of_logits(logits, labels.flatten()[places])  # type: ignore[operator]
    loss.mean().backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _reference(with_global: bool) -> Read:
    return read(small(), lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"), with_global)


def _split(tensor: int, checkpointing: bool, with_global: bool) -> tuple[Read, dict[str, Slice]]:
    mesh, model = init_mesh(tensor), small()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parallelise(model, TENSOR_PLAN, mesh)
    result = read(model, lambda logits, labels: vocab_cross_entropy(logits, labels, mesh), with_global)
    return result, layout(model, mesh)


@pytest.mark.parametrize("with_global", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_tensor_parallel_changes_nothing(ranks_in_float64, checkpointing, with_global):
    loss, expected = ranks_in_float64(1, _reference, with_global)[0]
    seen = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for (split_loss, gradients), slices in ranks_in_float64(2, _split, 2, checkpointing, with_global):
        torch.testing.assert_close(split_loss, loss, rtol=1e-12, atol=1e-12)
        assert gradients.keys() == expected.keys()
        untrained = {name for name in slices if "_global" in name and not with_global}
        assert slices.keys() - gradients.keys() == untrained
        for name, gradient in gradients.items():
            place = slices[name]
            region = place.region()
            torch.testing.assert_close(place.inside(gradient), expected[name][region], rtol=1e-12, atol=1e-12, msg=name)
            seen[name][region] = 1
    assert all(places.all() for places in seen.values()), "a part of the model lies nowhere"


def _heads_and_output(dropout: float) -> tuple[Tensor, Tensor]:
    """This rank's heads of the first layer, with the same weights on all ranks, and the layer's output."""
    model = small(dropout, dilation=1)
    layer = model.longformer.encoder.layer[0]
    with torch.no_grad():
        for parameter in layer.attention.self.parameters():
            parameter[16:] = parameter[:16]
    parallelise(model, TENSOR_PLAN, init_mesh(2))
    seen = []
    for module in (layer.attention.self, layer):
        module.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    torch.manual_seed(5)
    read(model, lambda logits, labels: logits.sum(-1), True)
    return seen[0], seen[1]


def test_dropout_differs_between_split_heads_and_nowhere_else(ranks):
    (heads, _), (other_heads, _) = ranks(2, _heads_and_output, 0.0)
    assert torch.equal(heads, other_heads)
    (heads, output), (other_heads, other_output) = ranks(2, _heads_and_output, 0.5)
    assert not torch.equal(heads, other_heads)
    assert torch.equal(output, other_output)
