"""Mixed precision: the loss scale's rule, masters that keep what half precision would lose."""

import json

import pytest
import torch
from torch import nn

from preprocessing.errors import UserError
from training.optim.precision import LossScale, MasterWeights, resolve_precision
from training.parallel.gradients import GradientBuckets
from training.parallel.mesh import Mesh


def test_loss_scale_doubles_after_1000_good_steps_and_halves_after_2_bad_in_a_row():
    scale = LossScale(torch.float16)
    assert scale.value == 2.0**16
    for good in [False, True] * 3:  # never two in a row
        scale.update(good)
    assert scale.value == 2.0**16
    scale.update(False)
    scale.update(False)
    assert scale.value == 2.0**15
    for _ in range(999):
        scale.update(True)
    assert scale.value == 2.0**15
    scale.update(True)
    assert scale.value == 2.0**16


def test_loss_scale_goes_on_from_a_checkpoint():
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
        ("auto", None, torch.float32, "no GPU"),
        ("auto", (7, 0), torch.float16, "capability 7.0"),
        ("auto", (8, 0), torch.bfloat16, "capability 8.0"),
        ("bf16", (7, 0), torch.float16, "no bf16"),
        ("fp32", (9, 0), torch.float32, "recipe"),
        ("fp16", None, torch.float16, "recipe"),
    ],
)
def test_precision_is_chosen_aloud(monkeypatch, caplog, case):
    setting, capability, expected, reason = case
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    caplog.set_level("INFO", logger="reread")
    assert resolve_precision(setting, torch.device("cuda:0" if capability else "cpu")) == expected
    assert len(caplog.messages) == 1 and reason in caplog.messages[0]
