"""What a step asks of a GPU, counted without one: a later change does not ask for more unseen."""

import pytest

from benchmarks.gpu.counts import count
from benchmarks.gpu.models import OURS
from reread.pipeline.estimate.work import KINDS
from tests.conftest import rarer

MOST = {
    "nezha-base 512": {"launches": 1016, "bytes a token": 2.91e6, "bytes a parameter of the update": 44},
    "longformer-base 4096": {"launches": 1226, "bytes a token": 3.47e6, "bytes a parameter of the update": 27},
    "ernie-doc-base 512": {"launches": 1570, "bytes a token": 4.92e6, "bytes a parameter of the update": 30},
    "ran-base 512": {"launches": 1051, "bytes a token": 2.69e6, "bytes a parameter of the update": 32},
}
"""The counts with our kernels when this was written."""


@pytest.mark.parametrize("name", ["nezha-base 512", *map(rarer, list(MOST)[1:])])
def test_a_step_asks_for_no_more_than_it_did(name: str) -> None:
    (model,) = [model for model in OURS if model.name == name]
    _, figures = count(model, "auto")
    for figure, most in MOST[name].items():
        assert figures[figure] < 1.05 * most, figure


@pytest.mark.long
def test_the_kernels_save_what_they_are_for() -> None:
    """Of nezha-base three fifths of the launches and a third of the bytes, and of the update all but three launches."""
    (model,) = [model for model in OURS if model.name == "nezha-base 512"]
    (counts, ours), (_, plain) = count(model, "auto"), count(model, "plain")
    assert ours["launches"] < 0.41 * plain["launches"] and ours["of the update"] == 3
    assert ours["bytes a token"] < 0.67 * plain["bytes a token"]
    assert {"our kernels", "products", "attention", "others"} <= {one.kind for one in counts.done} <= set(KINDS)
