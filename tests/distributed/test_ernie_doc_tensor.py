"""Splitting ERNIE-Doc over tensor ranks changes neither loss, gradients nor memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining
from reread.training.models.ernie_doc.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise, vocab_cross_entropy

VOCABULARY = 300
Read = tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]


def small(dropout: float = 0.0) -> ErnieDocForPreTraining:
    torch.manual_seed(0)
    config = ErnieDocConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=12,
        memory_length=5,
        reorder_classes=9,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = ErnieDocForPreTraining(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and layer norms that could hide a mistake by being 0 or 1
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def read_two_segments(model: nn.Module, loss_of_logits: object) -> Read:
    """(loss of each token of the second segment, memories after it, gradients)."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(VOCABULARY, (2, 3, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
    mask[:, -1] = 1
    types = torch.randint(3, (3, 12), generator=generator)
    with torch.no_grad():
        mems = model(ids.flip(1), mask, mems=model.empty_mems(3)).mems
    places = mask.flatten().nonzero().squeeze(1)
    output = model(ids, mask, types, mems, masked_positions=places)
    reorder = F.cross_entropy(output.reorder_logits, torch.tensor([8, -100, 1]))
    loss = loss_of_logits(output.prediction_logits, labels.flatten()[places]) + reorder  # type: ignore[operator]
    loss.sum().backward()
    return loss.detach(), output.mems, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _reference() -> Read:
    return read_two_segments(small(), lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"))


def _split(tensor: int, checkpointing: bool) -> tuple[Read, dict[str, Slice]]:
    mesh, model = init_mesh(tensor), small()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parallelise(model, TENSOR_PLAN, mesh)
    read = read_two_segments(model, lambda logits, labels: vocab_cross_entropy(logits, labels, mesh))
    return read, layout(model, mesh)


@pytest.mark.parametrize(("tensor", "checkpointing"), [(1, False), (2, False), (2, True)])
def test_tensor_parallel_changes_nothing(ranks_in_float64, tensor, checkpointing):
    loss, mems, expected = ranks_in_float64(1, _reference)[0]
    seen = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for (split_loss, split_mems, gradients), slices in ranks_in_float64(tensor, _split, tensor, checkpointing):
        torch.testing.assert_close(split_loss, loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(split_mems, mems, rtol=1e-12, atol=1e-12)
        assert gradients.keys() == expected.keys() == slices.keys()
        for name, gradient in gradients.items():
            place = slices[name]
            region = place.region()
            torch.testing.assert_close(place.inside(gradient), expected[name][region], rtol=1e-12, atol=1e-12, msg=name)
            seen[name][region] = 1
    assert all(places.all() for places in seen.values()), "a part of the model lies nowhere"


def _attention_and_memory(dropout: float) -> tuple[Tensor, tuple[Tensor, ...]]:
    """This rank's heads of the first layer, with the same weights on all ranks, and the memory."""
    model = small(dropout)
    attention = model.ernie_doc.encoder.layer[0].attention.self
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter[16:] = parameter[:16]
    parallelise(model, TENSOR_PLAN, init_mesh(2))
    heads = []
    attention.register_forward_hook(lambda module, inputs, output: heads.append(output.detach()))
    torch.manual_seed(5)
    mems = read_two_segments(model, lambda logits, labels: logits.sum(-1))[1]
    return heads[0], mems


def test_memory_is_the_same_on_all_tensor_ranks_under_dropout(ranks):
    (heads, _), (other_heads, _) = ranks(2, _attention_and_memory, 0.0)
    assert torch.equal(heads, other_heads)
    (heads, mems), (other_heads, other_mems) = ranks(2, _attention_and_memory, 0.5)
    assert not torch.equal(heads, other_heads)
    assert all(torch.equal(a, b) for a, b in zip(mems, other_mems, strict=True))
