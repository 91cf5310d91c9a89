"""LAMB's and Adam's step by kernels, run by Triton's interpreter, equals that by torch's operations."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from reread.training.config import OptimizerSettings
from reread.training.kernels.sums import add_to
from reread.training.optim.build import MOMENTS, build_optimizer, steps_taken
from reread.training.optim.flat import FlatUpdate, check_update
from reread.training.optim.precision import MasterWeights
from reread.training.parallel import gradients
from reread.training.parallel.gradients import BLOCK, GradientBuckets
from reread.training.parallel.mesh import Mesh
from tests.conftest import extra, rarer, thinned

CASES: dict[str, dict[str, Any]] = {
    "nezha": {},
    "standard": {"variant": "standard"},
    "adam": {"name": "adam"},
    "a rate for each layer": {"layer_decay": 0.8},
    "no decay": {"variant": "standard", "weight_decay": 0.0},
}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(90, 24)  # several blocks
        self.layer = nn.ModuleList([nn.Linear(24, 50), nn.Linear(50, 24, bias=False)])
        self.LayerNorm = nn.LayerNorm(24)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        nn.init.zeros_(self.layer[0].bias)  # type: ignore[arg-type]  # its trust ratio is 1


def run(settings: OptimizerSettings, flat: bool, first_rows: dict[str, int]) -> tuple[Any, ...]:
    """Three float64 steps from the same weights: the weights, the moments and the number of steps."""
    torch.manual_seed(5)
    model = Layers().double()
    masters = MasterWeights(model, torch.float32, first_rows)  # so that the masters are the model's own parameters
    masters.masters = masters.model_parameters
    optimizer = build_optimizer(masters.learning(), settings, Mesh())
    buckets: Any = GradientBuckets(model.parameters(), Mesh(), 4096)
    buckets = SimpleNamespace(flat=buckets.flat.double(), offsets=buckets.offsets, mesh=Mesh())
    gradients = {
        parameter: buckets.flat[begin : begin + parameter.numel()].view(parameter.shape)
        for parameter, begin in buckets.offsets.items()
    }
    update = FlatUpdate(optimizer, masters, buckets) if flat else None
    torch.manual_seed(6)
    for step in range(3):
        for parameter, gradient in gradients.items():
            gradient.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 10.0**-step)
        if update:
            update(0.02, 0.5)
        else:
            plain = SimpleNamespace(scale=buckets.flat.mul_, grad_of=gradients.__getitem__)
            masters.step(optimizer, plain, 0.02, 0.5)  # type: ignore[arg-type]
    moments = [optimizer.state[one][name] for _, one in masters.learning() for name in MOMENTS]
    return [one.detach() for one in model.parameters()], moments, steps_taken(optimizer)


@pytest.mark.parametrize("first_rows", [{}, {"embeddings.weight": 37}], ids=["whole", "its last rows"])
@pytest.mark.parametrize("case", thinned(CASES, 2))
def test_three_steps_are_those_of_torch(case: str, first_rows: dict[str, int]) -> None:
    extra("kernels", "triton")
    settings = OptimizerSettings(learning_rate=0.02, **CASES[case])
    (weights, moments, steps), expected = run(settings, True, first_rows), run(settings, False, first_rows)
    assert steps == expected[2] == 3
    for ours, theirs in zip([*weights, *moments], [*expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    assert not torch.equal(weights[0], Layers().double().embeddings.weight)


def test_all_that_refers_to_weights_and_moments_goes_on() -> None:
    """Also what is rounded, and what the model computes with."""
    extra("kernels", "triton")
    model = Layers()
    masters = MasterWeights(model, torch.float16)
    optimizer = build_optimizer(masters.learning(), OptimizerSettings(learning_rate=0.1), Mesh())
    buckets = GradientBuckets(model.parameters(), Mesh(), 4096)
    update = FlatUpdate(optimizer, masters, buckets)  # type: ignore[arg-type]
    before = {name: one.detach().clone() for name, one in masters.named_parameters()}
    for parameter in buckets.offsets:
        buckets.grad_of(parameter).fill_(0.1)
    update(0.1, 1.0)
    for name, one in masters.named_parameters():
        assert torch.equal(model.get_parameter(name), one.half())
        assert torch.equal(one, before[name]) == (name == "frozen")
    assert len(buckets.flat) % BLOCK == 0
    for _, one in masters.learning():
        optimizer.state[one]["exp_avg"].fill_(7)
    assert update.moments[0].count_nonzero() == sum(one.numel() for _, one in masters.learning())


def test_the_check_of_a_device_passes_and_finds_a_kernel_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    extra("kernels", "triton")
    check_update(torch.device("cpu"))
    call = FlatUpdate.__call__
    monkeypatch.setattr(FlatUpdate, "__call__", lambda update, rate, factor: call(update, rate * 1.1, factor))
    with pytest.raises(AssertionError, match="not close"):
        check_update(torch.device("cpu"))


@pytest.mark.parametrize("micro_batches", [rarer(1), 3])
def test_gradients_that_wait_to_be_added_are_all_added(monkeypatch: pytest.MonkeyPatch, micro_batches: int) -> None:
    """Of half-precision weights; a parameter that is used twice, and one that some micro-batches lack."""
    extra("kernels", "triton")
    monkeypatch.setattr(gradients, "MOST_NEW", 3000)  # several launches
    found = []
    for add in (None, add_to):
        torch.manual_seed(4)
        model = Layers()
        MasterWeights(model, torch.float16)
        buckets = GradientBuckets(model.parameters(), Mesh(), 4096)
        buckets.add = add
        for step in range(2):
            buckets.zero()
            for micro_batch in range(micro_batches):
                hidden = model.embeddings(torch.tensor([[micro_batch, 80, step]]))
                hidden = model.layer[1](model.layer[0](model.layer[1](model.layer[0](hidden))))
                (model.LayerNorm(hidden) if micro_batch != 1 else hidden).float().square().sum().backward()
            buckets.finish()
            found.append(buckets.flat.clone())
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert found[0].count_nonzero() > 1000
