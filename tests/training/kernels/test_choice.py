"""Which devices compute by kernels."""

from collections.abc import Iterator

import pytest
import torch

from reread.training.kernels import choice

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    choice._why_not.cache_clear()
    yield
    choice._why_not.cache_clear()


@pytest.mark.parametrize(("hip", "taken"), [(None, False), ("6.4", True)])
def test_a_capability_counts_on_nvidias_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hip: str | None, taken: bool
) -> None:
    monkeypatch.setattr(choice, "missing", lambda: None)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 0))
    checked: list[torch.device] = []
    with caplog.at_level("INFO", logger="reread"):
        assert choice.use_kernel("norm", "auto", GPU, checked.append) == taken
    assert checked == [GPU] * taken
    assert ("Triton needs compute capability 7.0" in caplog.text) != taken
