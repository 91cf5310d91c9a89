"""LAMB meets the optimiser NEZHA trained with, and the published algorithm."""

import math
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from reread.training.config import OptimizerSettings
from reread.training.optim import moments
from reread.training.optim.build import _why_not_apex, build_optimizer, set_steps_taken, steps_taken
from reread.training.optim.lamb import Lamb
from reread.training.parallel.mesh import Mesh
from tests.conftest import GOLDEN

NUMBERS = GOLDEN / "lamb_nezha.npz"


def test_nezha_variant_meets_the_golden_trajectory():
    golden = np.load(NUMBERS)
    names = [key.removeprefix("weight_0/") for key in golden if key.startswith("weight_0/")]
    weights = {name: torch.nn.Parameter(torch.from_numpy(golden[f"weight_0/{name}"]).double()) for name in names}
    decayed = [weights[name] for name in names if name.endswith("kernel")]
    plain = [weights[name] for name in names if not name.endswith("kernel")]
    optimizer = Lamb([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=0.0, weight_decay=0.01)
    for step in range(6):
        gradients = {name: torch.from_numpy(golden[f"grad_{step}/{name}"]).double() for name in names}
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        for name in names:
            weights[name].grad = gradients[name] / max(norm, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = float(golden[f"lr_{step}"])
        optimizer.step()
        for name in names:
            expected = golden[f"weight_{step + 1}/{name}"]  # of float32, which rounds in each step
            np.testing.assert_allclose(weights[name].detach().numpy(), expected, rtol=5e-6, atol=5e-6)


def reference(weights, gradients, decays, rate):
    """You et al. 2020, algorithm 2, as FusedLAMB reads it: one tensor at a time, in float64."""
    eps, beta1, beta2 = 1e-6, 0.9, 0.999
    weights = [weight.astype(np.float64) for weight in weights]
    first = [np.zeros_like(weight) for weight in weights]
    second = [np.zeros_like(weight) for weight in weights]
    for step, now in enumerate(gradients, start=1):
        for i, gradient in enumerate(gradient.astype(np.float64) for gradient in now):
            first[i] = beta1 * first[i] + (1 - beta1) * gradient
            second[i] = beta2 * second[i] + (1 - beta2) * gradient**2
            update = first[i] / (1 - beta1**step) / (np.sqrt(second[i] / (1 - beta2**step)) + eps)
            update = update + decays[i] * weights[i]
            size, length = np.linalg.norm(weights[i]), np.linalg.norm(update)
            ratio = size / length if decays[i] and size > 0 and length > 0 else 1.0
            weights[i] = weights[i] - rate * ratio * update
    return weights


@pytest.mark.parametrize("variant", ["nezha", "standard"])
def test_a_step_in_chunks_is_the_same_and_needs_less_memory(variant, monkeypatch):
    steps, most = [], []
    for chunk in (moments.CHUNK, 1000):
        monkeypatch.setattr(moments, "CHUNK", chunk)
        generator = torch.Generator().manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(30, 30, generator=generator)) for _ in range(20)]
        optimizer = Lamb(weights, lr=0.1, variant=variant)
        for weight in weights:
            weight.grad = torch.randn(30, 30, generator=generator)
            optimizer.state[weight] = {"exp_avg": torch.zeros(30, 30), "exp_avg_sq": torch.zeros(30, 30)}
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            optimizer.step()
        events = watched.profiler.kineto_results.events()
        most.append(max(accumulate(event.nbytes() for event in events if event.name() == "[memory]")))
        steps.append(torch.cat([weight.detach() for weight in weights]))
    assert torch.equal(*steps)
    assert most[0] > 1.0 * 20 * 4 * 900 and most[1] < 3 * 4 * 1000


def test_standard_variant_is_the_published_algorithm():
    random = np.random.default_rng(0)
    shapes = [(5, 7), (7,), (3, 2, 2), (4,)]
    start = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    start[3][:] = 0  # a ratio of 1, not 0
    steps = [[random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(8)]
    decays = [0.01, 0.0, 0.01, 0.01]
    parameters = [torch.nn.Parameter(torch.from_numpy(weight).double()) for weight in start]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(parameters, decays, strict=True)]
    optimizer = Lamb(groups, lr=0.02, variant="standard")
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient).double()
        optimizer.step()
    for parameter, expected in zip(parameters, reference(start, steps, decays, 0.02), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_nezha_ratio_is_clipped_at_10():
    weight = torch.nn.Parameter(torch.full((4,), 1000.0))
    optimizer = Lamb([weight], lr=1.0, weight_decay=0.0)
    weight.grad = torch.ones(4)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), 990.0))


def test_biases_and_layer_norms_are_not_decayed():
    layer = torch.nn.ModuleDict({"dense": torch.nn.Linear(2, 2), "LayerNorm": torch.nn.LayerNorm(2)})
    optimizer = build_optimizer(layer.named_parameters(), OptimizerSettings(learning_rate=1.0), Mesh())
    decayed, plain = (group["params"] for group in optimizer.param_groups)
    assert [id(p) for p in decayed] == [id(layer["dense"].weight)]
    assert {id(p) for p in plain} == {id(p) for name, p in layer.named_parameters() if name != "dense.weight"}


@pytest.mark.parametrize(
    "settings", [{"name": "adam"}, {"name": "stable_adamw"}, {"variant": "nezha"}, {"variant": "standard"}]
)
def test_state_given_back_continues_the_trajectory(settings):
    def build(weights: torch.Tensor):
        parameter = torch.nn.Parameter(weights.clone())
        return parameter, build_optimizer([("w", parameter)], OptimizerSettings(learning_rate=0.1, **settings), Mesh())

    def run(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            parameter.grad = torch.tensor([1.0, -2.0, step])
            optimizer.step()

    through, optimizer = build(torch.tensor([1.0, 2.0, 3.0]))
    run(through, optimizer, range(4))
    again, resumed = build(through.detach())
    for key in ("exp_avg", "exp_avg_sq"):
        resumed.state[again][key].copy_(optimizer.state[through][key])
    set_steps_taken(resumed, steps_taken(optimizer))
    assert steps_taken(resumed) == 4
    run(through, optimizer, range(4, 8))
    run(again, resumed, range(4, 8))
    assert torch.equal(through, again)


def test_by_rocm_apex_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    reason = _why_not_apex(OptimizerSettings(variant="standard", learning_rate=1), Mesh(device=torch.device("cuda")))
    assert reason == "apex is NVIDIA's and this torch is built for ROCm"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "apex is not installed"),
        (
            {"apex/__init__.py": "raise SystemExit('not to be run')"},
            "apex/__init__.py is not NVIDIA's and not used; `make apex`",
        ),
        ({"apex.py": ""}, "apex.py is not NVIDIA's and not used"),
        ({"apex/__init__.py": "", "apex/optimizers/fused_lamb.py": ""}, "not its CUDA extension amp_C"),
        (
            {"apex/__init__.py": "", "apex/optimizers/fused_lamb.py": "", "amp_C.py": "raise OSError('other torch')"},
            "apex cannot be imported: other torch",
        ),
        (
            {
                "apex/__init__.py": "",
                "apex/optimizers/__init__.py": "from .fused_lamb import FusedLAMB",
                "apex/optimizers/fused_lamb.py": "FusedLAMB = None",
                "amp_C.py": "",
            },
            None,
        ),
    ],
    ids=[
        "none",
        "a package of that name",
        "a module of that name",
        "without its kernels",
        "for another torch",
        "whole",
    ],
)
def test_another_package_called_apex_is_not_taken_for_nvidias(
    files: dict[str, str], reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("apex", "amp_C")]:
        monkeypatch.delitem(sys.modules, name)
    settings = OptimizerSettings(variant="standard", learning_rate=1)
    found = _why_not_apex(settings, Mesh(device=torch.device("cuda")))
    for name in [name for name in sys.modules if name.split(".")[0] in ("apex", "amp_C")]:
        del sys.modules[name]
    assert found is None if reason is None else found is not None and reason in found
