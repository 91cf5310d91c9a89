"""Gradients of weights that the product adds to the sums; numbers are small integers, so that all sums are exact."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reread.training.kernels.layers import install
from reread.training.kernels.products import add_product, adds_products
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh


class Tied(nn.Module):
    """Embeddings, a layer, and a head with the embeddings' weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6)
        self.head.weight = self.table.weight
        for number, parameter in enumerate(self.parameters()):
            whole = torch.arange(parameter.numel()).add(number).mul(7).remainder(5).sub(2)
            parameter.data.copy_(whole.view(parameter.shape))

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layer(self.table(ids)))


IDS = torch.tensor([[1, 2, 3], [5, 1, 0]])
UPSTREAM = torch.arange(36.0).remainder(4).sub(1).view(2, 3, 6)


def passed(model: nn.Module, buckets: GradientBuckets) -> list[Tensor]:
    """The sums after two micro-batches."""
    buckets.zero()
    for is_last in (False, True):
        if is_last:
            buckets.reduce_as_ready()
        model(IDS).backward(UPSTREAM)
    return [buckets.grad_of(parameter).clone() for parameter in model.parameters()]


def with_products(model: nn.Module, mesh: Mesh, **others: Any) -> GradientBuckets:
    install(model)
    buckets = GradientBuckets(model.parameters(), mesh, 1, **others)
    buckets.take_products(add_product)
    return buckets


def test_the_sums_are_autograds() -> None:
    """Of a tied weight, too, whose gradient comes in part from the embeddings."""
    plain, ours = Tied(), Tied()
    expected = passed(plain, GradientBuckets(plain.parameters(), Mesh(), 1))
    found = passed(ours, with_products(ours, Mesh()))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert all(one.any() for one in found)


def test_a_bucket_is_reduced_when_the_product_has_been_added() -> None:
    """In the backward pass, and with all that belongs to it: the reduction doubles what it finds."""
    plain, ours = Tied(), Tied()
    expected = passed(plain, GradientBuckets(plain.parameters(), Mesh(), 1))
    sent: list[int] = []

    def reduce(flat: Tensor, number: int) -> Any:
        flat.mul_(2)
        sent.append(number)
        return lambda: None

    class OfSeveral(Mesh):
        data_group = object()  # type: ignore[assignment]

    buckets = with_products(ours, OfSeveral(), reduce=reduce)
    found = passed(ours, buckets)
    assert sent == [0, 1, 2, 3]
    assert all(torch.equal(2 * one, other) for one, other in zip(expected, found, strict=True))


def test_a_weight_whose_gradient_has_a_hook_is_left_to_autograd() -> None:
    """As the sum over tensor-parallel processes is one."""
    model = nn.Linear(4, 6)
    model.weight.register_hook(lambda gradient: 3 * gradient)
    x = torch.arange(8.0).view(2, 4)
    buckets = with_products(model, Mesh())
    model(x).backward(UPSTREAM[0, :2])
    assert torch.equal(buckets.grad_of(model.weight), 3 * UPSTREAM[0, :2].t() @ x)


def test_a_frozen_weight_and_inputs_without_a_gradient() -> None:
    model = nn.Linear(4, 6)
    model.weight.requires_grad = False
    buckets = with_products(model, Mesh())
    x = torch.arange(8.0).view(2, 4).requires_grad_()
    model(x).backward(UPSTREAM[0, :2])
    assert torch.equal(x.grad, UPSTREAM[0, :2] @ model.weight)  # type: ignore[arg-type]
    assert torch.equal(buckets.grad_of(cast(nn.Parameter, model.bias)), UPSTREAM[0, :2].sum(0))
    with torch.no_grad():
        assert torch.equal(model(x), F.linear(x, model.weight, model.bias))


def test_a_device_that_cannot_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "reread")
    assert not adds_products(torch.bfloat16, torch.device("cpu"))
    assert "gradients of weights: added after the product" in caplog.text
    assert adds_products(torch.float32, torch.device("cpu"))
    assert adds_products(torch.float16, torch.device("meta"))


def test_a_plan_counts_a_product_that_every_torch_has_on_meta() -> None:
    """torch 2.8 to 2.12 raise TypeError there for `addmm(out_dtype=)`, and so each run that plans its memory did."""
    called = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            return function(*args, **(kwargs or {}))

    assert adds_products(torch.bfloat16, torch.device("meta"))
    total, gradient, x = (
        torch.empty(8, 4, device="meta", dtype=kind) for kind in (torch.float32, *[torch.bfloat16] * 2)
    )
    with Recorded():
        add_product(total, gradient.new_empty(16, 8), x.new_empty(16, 4))
    assert called[-1] is torch.ops.aten.addmm.out
