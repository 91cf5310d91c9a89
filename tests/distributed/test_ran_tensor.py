"""Splitting RAN over tensor ranks changes neither loss, gradients nor memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.models.ran import RanConfig, RanForCausalLM, RanForMaskedLM
from reread.training.models.ran.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise, vocab_cross_entropy
from tests.conftest import rarer

VOCABULARY = 300
Read = tuple[Tensor, Tensor, dict[str, Tensor]]


def small(causal: bool, profile: str = "rannet", dropout: float = 0.0) -> RanForMaskedLM | RanForCausalLM:
    torch.manual_seed(0)
    config = RanConfig(
        vocab_size=VOCABULARY,
        profile=profile,
        hidden_size=24,
        num_attention_heads=4,
        head_size=6,
        window_size=8,
        min_window_size=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = RanForCausalLM(config) if causal else RanForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and layer norms that could hide a mistake by being 0 or 1
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def read(model: RanForMaskedLM | RanForCausalLM, mesh: Mesh | None) -> Read:
    """(loss of each real token [n], memory, gradients)."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(VOCABULARY, (2, 4, 20), generator=generator)
    mask = (torch.arange(20) < torch.tensor([[20], [9], [17], [3]])).long()
    places, mems = mask.flatten().nonzero().squeeze(1), torch.zeros(0)
    if isinstance(model, RanForCausalLM):
        with torch.no_grad():
            carried = model(ids.flip(1)).mems
        output = model(ids, carried, attention_mask=mask)
        logits, mems = output.logits.flatten(0, 1)[places], output.mems[0]
    else:
        logits = model(ids, mask, masked_positions=places).logits
    targets = labels.flatten()[places]
    if mesh is None:
        loss = F.cross_entropy(logits, targets, reduction="none")
    else:
        loss = vocab_cross_entropy(logits, targets, mesh)
    loss.sum().backward()
    return loss.detach(), mems, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _reference(causal: bool, profile: str) -> Read:
    return read(small(causal, profile), None)


def _split(tensor: int, causal: bool, profile: str, checkpointing: bool) -> tuple[Read, dict[str, Slice]]:
    mesh, model = init_mesh(tensor), small(causal, profile)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parallelise(model, TENSOR_PLAN, mesh)
    return read(model, mesh), layout(model, mesh)


@pytest.mark.parametrize(
    ("tensor", "causal", "profile", "checkpointing"),
    [
        (1, False, "rannet", False),
        (2, False, "rannet", False),
        rarer(2, False, "paper", False),
        (2, True, "rannet", True),
        (4, True, "paper", False),
    ],
)
def test_tensor_parallel_changes_nothing(ranks_in_float64, tensor, causal, profile, checkpointing):
    loss, mems, expected = ranks_in_float64(1, _reference, causal, profile)[0]
    seen = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    results = ranks_in_float64(tensor, _split, tensor, causal, profile, checkpointing)
    for (split_loss, split_mems, gradients), slices in results:
        torch.testing.assert_close(split_loss, loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(split_mems, mems, rtol=1e-12, atol=1e-12)
        assert gradients.keys() == expected.keys() <= slices.keys()
        for name, gradient in gradients.items():
            place = slices[name]
            region = place.region()
            torch.testing.assert_close(place.inside(gradient), expected[name][region], rtol=1e-12, atol=1e-12, msg=name)
            seen[name][region] = 1
    assert all(places.all() for places in seen.values()), "a part of the model lies nowhere"


def _dropped(dropout: float) -> tuple[list[Tensor], Tensor, Tensor]:
    """Outputs of this rank's heads in the first layer, cells first, the layer's output, and gradients [2, n] without
    and with recomputing."""
    mesh = init_mesh(2)
    gradients = []
    for checkpointing in (False, True):
        model = small(False, dropout=dropout)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        layer = model.ran.encoder.layer[0]
        with torch.no_grad():  # both ranks' heads are the same, so only dropout can differ
            for linear in (layer.attention.query, layer.attention.key, layer.attention.value):
                for parameter in linear.parameters():
                    parameter[12:] = parameter[:12]
        parallelise(model, TENSOR_PLAN, mesh)
        heads, outputs = [], []
        layer.attention.heads.register_forward_hook(lambda m, i, o, seen=heads: seen.append(o.detach()))
        layer.register_forward_hook(lambda m, i, o, seen=outputs: seen.append(o[0].detach()))
        torch.manual_seed(5)
        gradients.append(torch.cat([gradient.flatten() for gradient in read(model, mesh)[2].values()]))
    return heads[: len(heads) // 2], outputs[0], torch.stack(gradients)


def test_dropout_differs_between_ranks_only_where_activations_are_split(ranks):
    (heads, _, _), (others, _, _) = ranks(2, _dropped, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(heads, others, strict=True))
    (heads, output, gradients), (others, other_output, _) = ranks(2, _dropped, 0.5)
    assert not any(torch.equal(a, b) for a, b in zip(heads, others, strict=True))
    assert torch.equal(output, other_output)
    assert torch.equal(gradients[0], gradients[1]), "recomputing drops other elements"
