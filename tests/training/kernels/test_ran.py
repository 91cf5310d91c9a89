"""RAN's norm and rotations by kernels, run by Triton's interpreter, equal those of the models' own files."""

import pytest
import torch
from torch import Tensor

from reread.training.models.blocks import rotate
from reread.training.models.ran.attention_ran import standardise
from reread.training.models.ran.configuration_ran import RanConfig
from tests.conftest import extra, rarer


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("learned", [rarer(False), True])
@pytest.mark.parametrize("shape", [(3, 5, 24), rarer((270, 8))])
def test_the_norm(shape: tuple[int, ...], learned: bool) -> None:
    extra("kernels", "triton")
    from reread.training.kernels.ran import ran_norm

    torch.manual_seed(1)
    config = RanConfig(layer_norm_eps=1e-5)
    x, weight, bias = made(*shape), made(shape[-1]), made(shape[-1])
    ours = ran_norm(x, weight if learned else None, bias if learned else None, 1e-5)[0]
    plain = standardise(x, config) * weight + bias if learned else standardise(x, config)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-13)
    upstream, of = torch.randn_like(ours), [x, weight, bias] if learned else [x]
    for found, expected in zip(
        torch.autograd.grad(ours, of, upstream), torch.autograd.grad(plain, of, upstream), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("size", [2, rarer(6), rarer(16)])
def test_rotations_of_a_view(size: int) -> None:
    extra("kernels", "triton")
    from reread.training.kernels.ran import rotate as by_kernel

    torch.manual_seed(2)
    angles = torch.randn(5, size // 2, dtype=torch.float64)
    turns = torch.stack([angles.cos(), angles.sin()], dim=-1)
    flat = made(2, 4, 5, 3 * size)
    x = flat.unflatten(-1, (3, size)).transpose(-3, -2)
    ours, plain = by_kernel(x, turns), rotate(x, turns)
    torch.testing.assert_close(ours, plain, rtol=1e-13, atol=1e-14)
    upstream = torch.randn_like(ours)
    (found,), (expected,) = (torch.autograd.grad(one, flat, upstream) for one in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
