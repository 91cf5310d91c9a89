"""Transformer-XL split over tensor ranks: the same losses, gradients and memory."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
from reread.training.models.transformer_xl.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise


def small(**values: Any) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "d_model": 24, "n_head": 4, "d_head": 6, "d_inner": 32, "n_layer": 2, "mem_len": 6}
    model = TransformerXLForCausalLM(
        TransformerXLConfig(**{**sizes, "cutoffs": [20, 40], "div_val": 2, "dropout": 0.0, **values})
    )
    with torch.no_grad():
        for parameter in model.parameters():  # biases that could hide a mistake by being 0
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.train()


def learn(model: TransformerXLForCausalLM) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Losses of the second segment [2, 8] and the memory after it; gradients in the parameters."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(60, (2, 16), generator=generator)
    ends = torch.rand(2, 16, generator=generator) < 0.3
    mems = None
    for part in (slice(0, 8), slice(8, 16)):
        segment = {"sentence_ends": ends[:, part], "paragraph_ends": ends[:, part] & (ids[:, part] > 30)}
        output = model(ids[:, part], mems, labels=ids.roll(-1)[:, part], **segment)
        mems = output.mems
    output.losses.sum().backward()
    return output.losses.detach(), mems


def gradients_of(model: TransformerXLForCausalLM) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _whole(values: dict[str, Any]) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
    model = small(**values)
    return *learn(model), gradients_of(model)


def _split(
    values: dict[str, Any], checkpointing: bool
) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor], dict[str, Slice]]:
    mesh = init_mesh(2)
    model = small(**values)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parallelise(model, TENSOR_PLAN, mesh)
    return *learn(model), gradients_of(model), layout(model, mesh)


@pytest.mark.parametrize(
    ("values", "checkpointing"),
    [
        ({"recurrence": "shifted"}, False),
        ({"recurrence": "enhanced", "positions": "segatron-exact"}, False),
        ({"recurrence": "enhanced", "positions": "segatron-exact"}, True),
        ({"positions": "segatron-official", "cutoffs": [], "div_val": 1}, False),
        ({"attention_window": 4, "attention_dilation": [1, 2], "dilated_heads": 3, "norm_first": True}, True),
    ],
)
def test_tensor_parallel_changes_nothing(ranks_in_float64, values, checkpointing):
    losses, mems, expected = ranks_in_float64(1, _whole, values)[0]
    seen = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for split_losses, split_mems, gradients, slices in ranks_in_float64(2, _split, values, checkpointing):
        torch.testing.assert_close(split_losses, losses, rtol=1e-12, atol=1e-12)
        for memory, whole_memory in zip(split_mems, mems, strict=True):
            torch.testing.assert_close(memory, whole_memory, rtol=1e-12, atol=1e-12)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            region = slices[name].region()
            torch.testing.assert_close(gradient, expected[name][region], rtol=1e-12, atol=1e-12, msg=name)
            seen[name][region] = 1
        biases = [gradients[f"transformer.{name}_bias"] for name in ("content", "position")]
        assert [tuple(bias.shape) for bias in biases] == [(2, 6)] * 2
    assert all(places.all() for places in seen.values()), "a part of the model lies nowhere"


def _dropped() -> tuple[Tensor, Tensor]:
    """The inner activations of the first layer's feed-forward [2, 8, 16], and its output [2, 8, 24]."""
    mesh = init_mesh(2)
    model = small(dropout=0.5)
    layer = model.transformer.layer[0]
    with torch.no_grad():  # both ranks hold the same weights, so only dropout can differ
        for parameter in layer.intermediate.parameters():
            parameter[16:] = parameter[:16]
    parallelise(model, TENSOR_PLAN, mesh)
    seen: dict[str, Tensor] = {}
    layer.intermediate.register_forward_hook(lambda module, inputs, output: seen.update(inner=output.detach()))
    layer.register_forward_hook(lambda module, inputs, output: seen.update(output=output.detach()))
    torch.manual_seed(5)
    model(torch.arange(16).view(2, 8))
    return seen["inner"], seen["output"]


def test_dropout_differs_between_ranks_only_where_activations_are_split(ranks):
    (inner, output), (other_inner, other_output) = ranks(2, _dropped)
    assert not torch.equal(inner, other_inner)
    assert torch.equal(output, other_output)


def _odd_heads() -> str:
    try:
        parallelise(small(n_head=3, d_head=8), TENSOR_PLAN, init_mesh(2))
    except UserError as error:
        return str(error)
    return ""


def test_heads_that_do_not_divide_are_refused(ranks):
    assert all("3 attention heads" in message for message in ranks(2, _odd_heads))
