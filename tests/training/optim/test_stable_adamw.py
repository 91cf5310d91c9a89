"""StableAdamW meets the published algorithm, also where tensors are parts of larger ones."""

import numpy as np
import pytest
import torch

from reread.training.config import OptimizerSettings
from reread.training.optim.build import build_optimizer
from reread.training.optim.stable_adamw import StableAdamW
from reread.training.parallel.mesh import Mesh

SHAPES = [(5, 7), (7,), (3, 2, 2)]


def published(weights, gradients, rate, decay, eps=1e-6, beta1=0.9, beta2=0.99):
    """Wortsman et al. 2023, algorithm 2, line by line in float64; also the largest RMS of an update."""
    v, u = ([np.zeros_like(one) for one in weights] for _ in range(2))
    largest = 0.0
    for t, now in enumerate(gradients, 1):
        hat1 = beta1 * (1 - beta1 ** (t - 1)) / (1 - beta1**t)
        hat2 = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        for i, g in enumerate(now):
            v[i] = hat1 * v[i] + (1 - hat1) * g
            u[i] = hat2 * u[i] + (1 - hat2) * g**2
            rms = np.sqrt(np.mean(g**2 / np.maximum(u[i], eps**2)))
            largest = max(largest, rms)
            eta = rate / max(1, rms)
            weights[i] = weights[i] - eta * decay * weights[i] - eta * v[i] / (np.sqrt(u[i]) + eps)
    return weights, largest


def test_it_is_the_published_algorithm():
    """Gradients grow tenfold now and then, so that updates are clipped."""
    random = np.random.default_rng(0)
    start = [random.normal(size=shape) for shape in SHAPES]
    steps = [[random.normal(size=shape) * 10 ** (step % 3 == 2) for shape in SHAPES] for step in range(8)]
    parameters = [torch.nn.Parameter(torch.from_numpy(one.copy())) for one in start]
    optimizer = StableAdamW(parameters, lr=0.02, weight_decay=0.3)
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    expected, largest = published(start, steps, 0.02, 0.3)
    assert largest > 1.5
    for parameter, weight in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-12, atol=1e-12)


def test_gradients_that_do_not_grow_make_it_adamw():
    """Of two steps the second has smaller gradients: nothing is clipped, and torch's AdamW is the same."""
    ends = []
    for name in ("stable_adamw", "adam"):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4))
        optimizer = build_optimizer([("w", weight)], OptimizerSettings(name=name, learning_rate=0.1), Mesh())
        for size in (1.0, 0.5):
            weight.grad = torch.full_like(weight, size)
            optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=2e-7)  # of the first step's RMS, which is 1 but for rounding


def test_a_tensor_without_rows_here_is_updated_elsewhere():
    weights = [torch.nn.Parameter(torch.zeros(0, 3)), torch.nn.Parameter(torch.ones(2))]
    optimizer = StableAdamW(weights, lr=0.5, weight_decay=0.0)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weights[1].tolist() == pytest.approx([0.5, 0.5], abs=1e-5)
