"""Whether a run computes by kernels: GPUs by age and vendor, and what one process lacks."""

import logging

import pytest
import torch

from reread.training.config import TrainSettings
from reread.training.kernels import choice
from reread.training.parallel.mesh import Mesh
from tests.conftest import train_values

GPU = torch.device("cuda")


class Others(Mesh):
    """A mesh whose other process can, or cannot, run the kernels."""

    works = 1

    def gather(self, *values: int) -> list[tuple[int, ...]]:
        return [values, (self.works,)]


def settled(mesh: Mesh, check: object = None) -> str:
    settings = TrainSettings.parse(train_values("nowhere"), "test")  # type: ignore[arg-type]
    return choice.settle_kernels(settings, mesh, (check or (lambda device: None),)).kernels  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hip", "capability", "kernels"), [(None, (6, 1), "plain"), (None, (7, 0), "auto"), ("6.4", (9, 0), "auto")]
)
def test_gpus_by_their_age_and_vendor(
    hip: str | None,
    capability: tuple[int, int],
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reread")
    monkeypatch.setattr(choice, "missing", lambda: None)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert settled(Others(device=GPU)) == kernels
    assert ("Triton needs compute capability 7.0" in caplog.text) == (kernels == "plain")


def test_all_processes_take_torchs_operations_if_one_has_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(device: torch.device) -> None:
        raise RuntimeError("out of\nmemory")

    caplog.set_level(logging.INFO, "reread")
    monkeypatch.setattr(choice, "missing", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    lacking = Others(device=GPU)
    lacking.works = 0
    assert settled(lacking) == "plain" and "another process cannot run ours" in caplog.text
    assert settled(Others(device=GPU), fails) == "plain"
    assert "a kernel failed its check here (out of memory)" in caplog.text
    monkeypatch.setattr(choice, "missing", lambda: "Triton is not installed")
    assert settled(Others(device=GPU)) == "plain" and "as Triton is not installed" in caplog.text


def test_a_cpu_computes_by_torchs_operations_and_meta_counts_the_kernels() -> None:
    assert settled(Mesh()) == "auto"
    devices = {name: torch.device(name) for name in ("cpu", "meta", "cuda")}
    assert {name for name, device in devices.items() if choice.by_kernels("auto", device)} == {"meta", "cuda"}
    assert not choice.by_kernels("plain", devices["cuda"])
