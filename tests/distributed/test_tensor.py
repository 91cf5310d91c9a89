"""Splitting a model over tensor ranks does not change its results."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.preprocessing.errors import UserError
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.nezha.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise, vocab_argmax, vocab_cross_entropy, whole_vocabulary
from tests.conftest import rarer

VOCABULARY = 300


def small_nezha(dropout: float = 0.0, **config: Any) -> NezhaForPreTraining:
    torch.manual_seed(0)
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_relative_position": 4,
    }
    model = NezhaForPreTraining(NezhaConfig(**{**values, **config}))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and layer norms that could hide a mistake by being 0 or 1
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (4, 16), generator=generator)
    mask = (torch.arange(16) < torch.tensor([[16], [11], [16], [5]])).long()
    return ids, mask, torch.randint(VOCABULARY, (4, 16), generator=generator)


def loss_and_best(model: nn.Module, mesh: Mesh) -> tuple[Tensor, Tensor]:
    """(loss of each real token [n], best ids [n])."""
    ids, mask, labels = batch()
    places = mask.flatten().nonzero().squeeze(1)
    output = model(input_ids=ids, attention_mask=mask, masked_positions=places)
    best = vocab_argmax(output.prediction_logits.detach(), mesh)
    assert torch.equal(whole_vocabulary(output.prediction_logits.detach(), mesh).argmax(-1), best)
    following = F.cross_entropy(output.seq_relationship_logits, ids[:, 0] % 2)
    return vocab_cross_entropy(output.prediction_logits, labels.flatten()[places], mesh) + following, best


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _reference(position_type: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Results of the model's own loss, without any of our layers."""
    model = small_nezha(position_type=position_type)
    ids, mask, labels = batch()
    output = model(input_ids=ids, attention_mask=mask)
    logits = output.prediction_logits[mask.bool()]
    following = F.cross_entropy(output.seq_relationship_logits, ids[:, 0] % 2)
    loss = F.cross_entropy(logits, labels[mask.bool()], reduction="none") + following
    loss.sum().backward()
    return loss.detach(), logits.argmax(-1), gradients_of(model)


def _split(
    tensor: int, position_type: str, checkpointing: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Slice]]:
    mesh = init_mesh(tensor)
    model = small_nezha(position_type=position_type)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parallelise(model, TENSOR_PLAN, mesh)
    loss, best = loss_and_best(model, mesh)
    loss.sum().backward()
    return loss.detach(), best, gradients_of(model), layout(model, mesh)


@pytest.mark.parametrize(
    ("tensor", "position_type", "checkpointing"),
    [
        (1, "functional", False),
        (2, "functional", False),
        (2, "functional", True),
        rarer(2, "parametric_absolute", False),
        rarer(2, "parametric_relative", False),
        (2, "parametric_relative", True),
        (4, "functional", False),
    ],
)
def test_tensor_parallel_changes_nothing(ranks_in_float64, tensor, position_type, checkpointing):
    loss, best, expected = ranks_in_float64(1, _reference, position_type)[0]
    seen = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    results = ranks_in_float64(tensor, _split, tensor, position_type, checkpointing)
    for split_loss, split_best, gradients, slices in results:
        torch.testing.assert_close(split_loss, loss, rtol=1e-12, atol=1e-12)
        assert torch.equal(split_best, best)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            place = slices[name]
            region = place.region()
            torch.testing.assert_close(place.inside(gradient), expected[name][region], rtol=1e-12, atol=1e-12, msg=name)
            assert gradient.count_nonzero() == place.inside(gradient).count_nonzero(), f"{name}: padding learns"
            seen[name][region] = 1
    assert all(places.all() for places in seen.values()), "a part of the model lies nowhere"


def _ties(tensor: int) -> bool:
    model = small_nezha()
    parallelise(model, TENSOR_PLAN, init_mesh(tensor))
    head = model.cls.predictions
    return head.decoder.weight is model.nezha.embeddings.word_embeddings.weight and head.decoder.bias is head.bias


def test_tied_decoder_stays_tied(ranks):
    assert ranks(1, _ties, 1) == [True]
    assert ranks(2, _ties, 2) == [True, True]


class Scaled(nn.Module):
    """Two heads scaled by one shared vector, the smallest model with a `shared` parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.up(x).unflatten(-1, (-1, 4)) * self.scale
        return self.down(heads.flatten(-2))


def _shared_gradient(tensor: int) -> Tensor:
    model = Scaled()
    parallelise(model, {"up": "column", "down": "row", "scale": "shared"}, init_mesh(tensor))
    model(torch.arange(12.0).view(3, 4)).square().sum().backward()
    return model.scale.grad


def test_shared_parameters_gather_the_gradients_of_all_heads(ranks_in_float64):
    whole = ranks_in_float64(1, _shared_gradient, 1)[0]
    for gradient in ranks_in_float64(2, _shared_gradient, 2):
        torch.testing.assert_close(gradient, whole, rtol=1e-12, atol=1e-12)


def _dropped(dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's heads and the whole output of the first layer, and gradients [2, n] without and with recomputing."""
    mesh = init_mesh(2)
    seen: dict[str, Tensor] = {}
    gradients = []
    for checkpointing in (False, True):
        model = small_nezha(dropout)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        attention = model.nezha.encoder.layer[0].attention
        with torch.no_grad():  # both ranks' heads are the same, so only dropout can differ
            for parameter in attention.self.parameters():
                parameter[16:] = parameter[:16]
        parallelise(model, TENSOR_PLAN, mesh)
        attention.self.register_forward_hook(lambda m, i, o: seen.update(heads=o.detach()))
        attention.output.register_forward_hook(lambda m, i, o: seen.update(output=o.detach()))
        torch.manual_seed(5)
        loss_and_best(model, mesh)[0].sum().backward()
        gradients.append(torch.cat([gradient.flatten() for gradient in gradients_of(model).values()]))
    return seen["heads"], seen["output"], torch.stack(gradients)


def test_dropout_differs_between_ranks_only_where_activations_are_split(ranks):
    (heads, _, _), (other_heads, _, _) = ranks(2, _dropped, 0.0)
    assert torch.equal(heads, other_heads)
    (heads, output, gradients), (other_heads, other_output, _) = ranks(2, _dropped, 0.5)
    assert not torch.equal(heads, other_heads)
    assert torch.equal(output, other_output)
    assert torch.equal(gradients[0], gradients[1]), "recomputing drops other elements"


def _refusal(heads: int) -> str:
    with pytest.raises(UserError) as error:
        parallelise(small_nezha(num_attention_heads=heads), TENSOR_PLAN, init_mesh(2))
    return str(error.value)


def test_heads_that_do_not_divide_are_refused(ranks):
    assert "1 attention heads do not divide by 2" in ranks(2, _refusal, 1)[0]


def _nothing_predicted() -> tuple[list[int], list[int], float]:
    mesh = init_mesh(2)
    logits = torch.zeros(0, 128, requires_grad=True)
    loss = vocab_cross_entropy(logits, torch.zeros(0, dtype=torch.long), mesh)
    loss.sum().backward()
    return list(loss.shape), list(vocab_argmax(logits.detach(), mesh).shape), float(loss.sum())


def test_a_batch_without_predictions_is_no_error(ranks):
    assert ranks(2, _nothing_predicted) == [([0], [0], 0.0)] * 2
