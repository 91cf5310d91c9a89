"""Layer-wise decay of the learning rate, by the change that one update makes to each parameter."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.training.config import OptimizerSettings
from reread.training.optim.build import build_optimizer
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.mesh import Mesh
from tests.tasks import objective_of, task_values, write_tokenizer

RATE, DECAY = 0.125, 0.5


@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran", "longformer"])
@pytest.mark.parametrize(("decay", "head"), [(DECAY, None), (1.0, None), (1.0, 0.25), (DECAY, 0.25)])
def test_each_layer_learns_slower_than_the_one_above(
    tmp_path: Path, model: str, decay: float, head: float | None
) -> None:
    """Of three layers the top learns at r, the middle one at r^2, the lowest at r^3, embeddings at r^4, and pooler and
    head at 1 (ERNIE-Doc, appendix A.5) or at a rate of their own. Adam's first update moves a weight by its rate where
    the gradient is 1."""
    values = task_values(model, "classify", write_tokenizer(tmp_path), sequence_length=16, labels=["p", "q"])
    values["model"]["num_hidden_layers"] = 3
    whole: Any = objective_of(values, [ClassifyExample("x", "", "a b", None, "p")]).model
    masters = MasterWeights(whole, torch.float32)
    settings = OptimizerSettings(
        name="adam", learning_rate=RATE, eps=1e-30, weight_decay=0.0, layer_decay=decay, head_learning_rate=head
    )
    optimizer = build_optimizer(masters.learning(), settings, Mesh())
    before = {name: parameter.detach().clone() for name, parameter in whole.named_parameters()}
    ones: Any = SimpleNamespace(scale=lambda factor: None, grad_of=torch.ones_like)
    masters.step(optimizer, ones, RATE, 1.0)
    powers = set()
    for name, parameter in whole.named_parameters():
        parts = name.split(".")
        if "layer" in parts:
            power = {"0": 3, "1": 2, "2": 1}[parts[parts.index("layer") + 1]]
        elif "embeddings" in parts:
            power = 4
        else:
            assert parts[0] == "classifier" or parts[1] == "pooler", name
            power = 0
        powers.add(power)
        moved = before[name] - parameter.detach()
        rate = RATE * decay**power if power else head or RATE
        torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=0, atol=1e-12, msg=name)
    assert powers == {0, 1, 2, 3, 4}
