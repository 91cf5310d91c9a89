"""Muon is torch's for hidden matrices, and AdamW for all else."""

import math
import re

import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.training.config import OptimizerSettings
from reread.training.optim.build import build_optimizer
from reread.training.optim.muon import is_hidden_matrix, orthogonalised
from reread.training.parallel.mesh import Mesh

SHAPES = {
    "m.encoder.layer.0.dense.weight": (6, 9),
    "m.encoder.layer.1.dense.weight": (9, 4),
    "m.layers.1.Wi.weight": (5, 5),
    "m.encoder.layer.1.dense.bias": (4,),
    "m.embeddings.word_embeddings.weight": (11, 6),
    "cls.predictions.transform.dense.weight": (6, 6),
}


def weights_of(generator: torch.Generator) -> dict[str, torch.nn.Parameter]:
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for name, shape in SHAPES.items()
    }


def test_matrices_of_layers_are_hidden():
    found = [name for name, weight in weights_of(torch.Generator()).items() if is_hidden_matrix(name, weight)]
    assert found == list(SHAPES)[:3]


def test_it_is_torchs_muon_beside_torchs_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: torch's turns to bfloat16, which is taken out here."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon before 2.9")
    generator = torch.Generator().manual_seed(0)
    ours = weights_of(generator)
    theirs = {name: torch.nn.Parameter(one.detach().clone()) for name, one in ours.items()}
    settings = OptimizerSettings(name="muon", learning_rate=0.1, weight_decay=0.2, momentum=0.9)
    optimizer = build_optimizer(ours.items(), settings, Mesh())
    common = {"lr": 0.1, "weight_decay": 0.2}
    hidden, others = list(theirs.values())[:3], list(theirs.values())[3:]
    muon = torch.optim.Muon(hidden, momentum=0.9, adjust_lr_fn="match_rms_adamw", **common)
    plain = {"params": [others[0]], "weight_decay": 0.0}
    adamw = torch.optim.AdamW([plain, {"params": others[1:]}], eps=settings.eps, **common)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    for _ in range(5):
        for name, weight in ours.items():
            gradient = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.grad, theirs[name].grad = gradient, gradient.clone()
        optimizer.step()
        muon.step()
        adamw.step()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-11, atol=1e-11, msg=name)


def test_an_update_has_the_singular_vectors_of_the_average_and_adamws_size():
    matrix = torch.randn(30, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ orthogonalised(matrix) @ right.T
    assert (found.diag() > 0.6).all() and (found.diag() < 1.3).all()
    assert (found - found.diag().diag()).abs().max() < 1e-12
    assert 0.2 * math.sqrt(50) * found.norm() / math.sqrt(30 * 50) == pytest.approx(0.2, rel=0.2)


def test_a_matrix_has_one_moment_and_a_resume_is_exact():
    generator = torch.Generator().manual_seed(2)
    through, settings = weights_of(generator), OptimizerSettings(name="muon", learning_rate=0.1)
    gradients = [[torch.randn(one.shape, generator=generator).double() for one in through.values()] for _ in range(4)]

    def step(weights, optimizer, number):
        for weight, gradient in zip(weights.values(), gradients[number], strict=True):
            weight.grad = gradient.clone()
        optimizer.step()

    optimizer = build_optimizer(through.items(), settings, Mesh())
    for name, weight in through.items():
        names = {"momentum_buffer"} if is_hidden_matrix(name, weight) else {"exp_avg", "exp_avg_sq"}
        assert optimizer.state[weight].keys() == names
    step(through, optimizer, 0)
    step(through, optimizer, 1)
    again = {name: torch.nn.Parameter(one.detach().clone()) for name, one in through.items()}
    resumed = build_optimizer(again.items(), settings, Mesh())
    for name, weight in again.items():
        for key, value in optimizer.state[through[name]].items():
            resumed.state[weight][key].copy_(value)
    for group in resumed.param_groups:
        group["step"] = 2
    for number in (2, 3):
        step(through, optimizer, number)
        step(again, resumed, number)
    assert all(torch.equal(through[name], again[name]) for name in through)


def test_tensor_parallelism_is_refused_in_one_line():
    with pytest.raises(UserError, match=re.escape("muon needs whole matrices, which tensor parallelism splits")):
        build_optimizer([], OptimizerSettings(name="muon", learning_rate=1), Mesh(world=2, tensor_size=2))
