"""Mixed precision: the loss scale's rule, and masters that keep what half precision would lose."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from reread.preprocessing.errors import UserError
from reread.training.optim.precision import LossScale, MasterWeights, resolve_precision
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh


def managed(scale: float, steps: list[bool]) -> list[float]:
    """The scale after each step, by TensorFlow 1.15's ExponentialUpdateLossScaleManager(init, 1000, 2, 2, 0.5)."""
    scales, good_steps, bad_steps = [], 0, 0
    for finite in steps:
        if finite and good_steps + 1 >= 1000:
            larger = np.float32(scale) * np.float32(2)
            scale, good_steps, bad_steps = float(larger) if np.isfinite(larger) else scale, 0, 0
        elif finite:
            good_steps += 1
        elif bad_steps + 1 >= 2:
            scale, good_steps, bad_steps = max(1.0, scale * 0.5), 0, 0
        else:
            good_steps, bad_steps = 0, bad_steps + 1
        scales.append(scale)
    return scales


@pytest.mark.parametrize("initial", [2.0**16, 2.0**126])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.001, 0.01, 0.3])
def test_the_loss_scale_is_that_of_the_manager_nezha_trained_with(share: float, initial: float) -> None:
    """A random share of steps is bad, and the state is reloaded from a checkpoint now and then."""
    generator = random.Random(f"{share} {initial}")
    steps = [generator.random() >= share for _ in range(9000 if share < 0.3 else 40)]
    scale, seen = LossScale(torch.float16, initial), []
    with np.errstate(over="ignore"):
        expected = managed(initial, steps)
    for number, good in enumerate(steps):
        if number % 700 == 0:
            state, scale = json.loads(json.dumps(scale.state())), LossScale(torch.float16)
            scale.load(state)
        scale.update(good)
        seen.append(scale.value)
    assert seen == expected
    assert len(set(seen)) > 1, "the sequence changes nothing"


def test_every_other_bad_step_halves_the_loss_scale() -> None:
    scale = LossScale(torch.float16)
    for good in [False, True] * 3:
        scale.update(good)
    assert scale.value == 2.0**15 and scale.bad == 1


def test_single_bad_steps_at_scale_1_do_not_end_the_run() -> None:
    scale = LossScale(torch.float16, initial=1.0)
    for good in [False, True] * 10:
        scale.update(good)
    assert scale.value == 1.0


def test_loss_scale_continues_from_a_checkpoint():
    scale, resumed = LossScale(torch.float16), LossScale(torch.float16)
    for _ in range(700):
        scale.update(True)
    resumed.load(json.loads(json.dumps(scale.state())))
    for _ in range(300):
        resumed.update(True)
    assert resumed.value == 2.0**17


def test_a_run_that_begins_to_send_fp16_has_a_scale_from_then_on():
    scale = LossScale(torch.float16, initial=2.0**12)
    scale.load(json.loads(json.dumps(LossScale(torch.float32).state())))
    assert scale.value == 2.0**12


def test_loss_scale_is_inert_but_for_float16():
    for dtype in (torch.float32, torch.bfloat16):
        scale = LossScale(dtype)
        for _ in range(10):
            scale.update(False)
        assert scale.value == 1.0


def test_gradients_that_overflow_at_scale_1_end_the_run_in_one_line():
    scale = LossScale(torch.float16, initial=2.0)
    with pytest.raises(UserError, match="loss scale 1"):
        for _ in range(10):
            scale.update(False)


def test_masters_keep_what_float16_would_lose():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0001)  # rounds to 1 in float16
    masters = MasterWeights(model, torch.float16)
    assert model.weight.dtype == torch.float16 and model.weight.item() == 1.0
    buckets = GradientBuckets(model.parameters(), Mesh(), 1000)
    optimizer = torch.optim.SGD([master for _, master in masters.named_parameters()])
    for _ in range(100):  # each step is below float16's resolution at 1
        buckets.zero()
        model(torch.ones(1, 1, dtype=torch.float16)).sum().backward()
        masters.step(optimizer, buckets, rate=1e-4, factor=1.0)
    assert next(masters.named_parameters())[1].item() == pytest.approx(1.0001 - 0.01, abs=1e-5)
    assert model.weight.item() == pytest.approx(0.99, abs=1e-3)


def test_float32_has_no_copy():
    model = nn.Linear(2, 2)
    masters = MasterWeights(model, torch.float32)
    assert all(a is b for (_, a), b in zip(masters.named_parameters(), model.parameters(), strict=True))


def test_tied_weights_stay_tied_in_half_precision():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    masters = MasterWeights(model, torch.bfloat16)
    assert model["b"].weight is model["a"].weight
    assert [name for name, _ in masters.named_parameters()] == ["a.weight", "a.bias", "b.bias"]


@pytest.mark.parametrize(
    "case",
    [
        ("auto", None, None, torch.float32, "no GPU"),
        ("auto", (7, 0), None, torch.float16, "capability 7.0"),
        ("auto", (8, 0), None, torch.bfloat16, "capability 8.0"),
        ("bf16", (7, 0), None, torch.float16, "no bf16"),
        ("fp32", (9, 0), None, torch.float32, "recipe"),
        ("fp16", None, None, torch.float16, "recipe"),
        ("auto", (7, 0), "6.4", torch.bfloat16, "some GPU by ROCm 6.4"),  # whatever the architecture's number is
        ("bf16", (7, 0), "6.4", torch.bfloat16, "recipe"),
        ("auto", None, "6.4", torch.float32, "no GPU"),
    ],
)
def test_the_chosen_precision_is_logged(monkeypatch, caplog, case):
    setting, capability, hip, expected, reason = case
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    caplog.set_level("INFO", logger="reread")
    assert resolve_precision(setting, torch.device("cuda:0" if capability else "cpu")) == expected
    assert len(caplog.messages) == 1 and reason in caplog.messages[0]
