"""NEZHA's rotations by kernels, run by Triton's interpreter, equal those of the model's own file."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.models.nezha.attention_nezha import Rotations, rotated_attention
from tests.conftest import extra, rarer


def positions(length: int, head: int) -> Rotations:
    features = torch.randn(length, head, dtype=torch.float64)
    angles = torch.randn(length, head // 2, dtype=torch.float64)
    return Rotations(features, torch.stack([angles.cos(), angles.sin()], dim=-1))


@pytest.mark.parametrize(("heads", "head"), [(3, 8), rarer(4, 16), rarer(1, 2)])
def test_attention_between_the_kernels_is_the_models_own(heads: int, head: int) -> None:
    """Outputs and gradients, with a mask; 24 columns are no power of two."""
    extra("kernels", "triton")
    from reread.training.kernels.rotation import from_heads, to_heads

    torch.manual_seed(1)
    rows, length = 2, 7
    where = positions(length, head)
    qkv = torch.randn(rows, length, 3 * heads * head, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(rows, 1, 1, length, dtype=torch.float64)
    mask[1, ..., 5:] = -65504.0

    def own() -> Tensor:
        q, k, v = (one.unflatten(-1, (heads, head)).transpose(1, 2) for one in qkv.chunk(3, dim=-1))
        return rotated_attention(q, k, v, where, mask, dropout=0.0).transpose(1, 2).flatten(2)

    def by_kernels() -> Tensor:
        q, k, v = to_heads(qkv, where.features, where.turns)
        return from_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=head**-0.5), where.turns)

    expected, found = own(), by_kernels()
    upstream = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    (theirs,) = torch.autograd.grad(expected, qkv, upstream)
    (ours,) = torch.autograd.grad(found, qkv, upstream)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.long
def test_the_device_meta_has_their_shapes_and_strides() -> None:
    extra("kernels", "triton")
    from reread.training.kernels.rotation import from_heads, to_heads

    where = positions(7, 8)
    qkv = torch.randn(2, 7, 72, dtype=torch.float64, requires_grad=True)
    meta = [one.detach().to("meta") for one in (qkv, *where)]
    real = to_heads(qkv, *where)
    for made, of_meta in zip(real, to_heads(*meta), strict=True):
        assert (made.shape, made.stride()) == (of_meta.shape, of_meta.stride())
    z = real[0]
    assert from_heads(z, where.turns).stride() == from_heads(z.detach().to("meta"), meta[2]).stride()
    torch.library.opcheck(to_heads.counted, (qkv, *where))
    torch.library.opcheck(from_heads.counted, (z.detach().requires_grad_(), where.turns))
