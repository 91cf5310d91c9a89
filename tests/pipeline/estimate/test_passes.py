"""The cost of a pass beside its tokens: by the operations of a recipe and the kind of device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reread.pipeline.estimate import passes
from reread.pipeline.estimate.hardware import GIB, GPUS, gpu_of_kind
from reread.pipeline.estimate.passes import choose_pass_share
from reread.pipeline.estimate.speed import cost_of_a_pass
from reread.pipeline.estimate.work import Work
from reread.training.config import TrainSettings
from reread.training.data.rows.trimming import PASS_SHARE
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.parallel.mesh import Mesh
from tests.conftest import train_values


def chosen(micro_batch: int, device: str = "cpu") -> float:
    settings = TrainSettings.parse(train_values(Path("nowhere"), micro_batch=micro_batch), "test")
    config = model_config(model_spec("nezha"), settings.model, 500, None)
    dataset: Any = None
    return choose_pass_share(settings, config, Mesh(device=torch.device(device)), torch.float32, dataset)


def test_a_pass_of_a_small_micro_batch_costs_more_and_of_a_large_one_what_is_assumed(caplog) -> None:
    with caplog.at_level("INFO", "reread"):
        few, more, many = chosen(2), chosen(8), chosen(1000)
    assert few > 2 * more > many == PASS_SHARE
    assert caplog.messages[0].startswith(f"padding: a pass counts as {few:.3g} of a full one, and micro-batches")
    assert caplog.messages[-1].endswith("on a CPU core, which is less than is assumed at least")


def test_the_cost_is_launches_over_the_time_of_the_work() -> None:
    work = {"products": Work(100, 10**6, 10**12), "elementwise": Work(300, 4 * 10**9, 0)}
    assert cost_of_a_pass(work, None) == pytest.approx(400 * 100_000 / 4_001_000_000)
    seconds = 10**12 / (125e12 * 0.67) + 4 * 10**9 / (900e9 * 0.78)
    assert cost_of_a_pass(work, GPUS["v100-16g"]) == pytest.approx(400 * 6e-6 / seconds)


def test_devices_are_known_by_their_names_and_memory(monkeypatch, caplog) -> None:
    for name, gib, kind in (
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32g"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40g"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"),
    ):
        assert gpu_of_kind(name, int(gib * GIB)) == GPUS[kind]
    unknown = SimpleNamespace(name="Voodoo 3", total_memory=GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: unknown)
    with caplog.at_level("INFO", "reread"):
        assert chosen(2, "cuda") == PASS_SHARE
    assert caplog.messages == ["padding: a pass counts as 0.0312 of a full one: the speed of Voodoo 3 is not known"]


def test_a_model_that_cannot_be_rehearsed_is_trained_all_the_same(monkeypatch, caplog) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise NotImplementedError("no kernel for meta\nat length")

    monkeypatch.setattr(passes, "rehearsed_pass", fails)
    with caplog.at_level("INFO", "reread"):
        assert chosen(2) == PASS_SHARE
    assert caplog.messages[0].endswith("its operations cannot be counted (no kernel for meta)")
