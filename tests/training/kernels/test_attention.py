"""ERNIE-Doc's attention in one kernel, by Triton's interpreter, equals that of the model's own file."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.models.ernie_doc import attention_ernie_doc
from tests.conftest import extra, rarer

ROWS, HEADS, SIZE = 2, 2, 16


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("added", "drops"), [rarer(None, 0.0), ((HEADS, 1), 0.3), rarer((1, 1), 0.0)], ids=str)
@pytest.mark.parametrize(("queries", "memory"), [rarer(16, 0), rarer(32, 16), rarer(21, 7), (18, 2)])
def test_attention_and_gradients(
    queries: int, memory: int, added: Any, drops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 16, of queries and keys the last ones shorter. The kernel's own choice is what is dropped: values of
    one column for each key show it."""
    extra("kernels", "triton")
    from reread.training.kernels import attention

    monkeypatch.setattr(attention, "BLOCK", 16)
    monkeypatch.setattr(attention, "SHARES", 2)
    torch.manual_seed(3)
    keys = memory + queries
    q, k, v, r, u, w = of = [
        made(ROWS, queries, HEADS, SIZE),
        *(made(ROWS, keys, HEADS, SIZE) for _ in range(2)),
        made(keys + queries, HEADS, SIZE),
        *(made(HEADS, SIZE) for _ in range(2)),
    ]
    term = None if added is None else made(ROWS, *added, keys)
    of += [] if term is None else [term]
    mask = torch.zeros(ROWS, 1, 1, keys, dtype=torch.float64)
    mask[1, ..., 0] = attention_ernie_doc.MASKED
    z = attention.relative_attention(q, k, v, r, (u, w), term, mask, 12345, dropout=drops)

    a = attention_ernie_doc.relative_scores(q, k, r, (u, w), term, mask).softmax(-1)
    if drops:
        shown = []
        for part in torch.eye(keys, dtype=torch.float64).split(SIZE):
            columns = torch.zeros(keys, SIZE, dtype=torch.float64)
            columns[:, : len(part)] = part.t()
            values = columns[None, :, None].expand(ROWS, keys, HEADS, SIZE)
            seen = attention.relative_attention(q, k, values, r, (u, w), term, mask, 12345, dropout=drops)
            shown.append(seen[..., : len(part)].detach().transpose(1, 2))
        kept = torch.cat(shown, dim=-1) != 0
        assert abs(kept[:, :, :, 1:].double().mean().item() - (1 - drops)) < 0.05
        a = torch.where(kept, a / (1 - drops), 0.0)
    plain = (a @ v.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(z, plain, rtol=1e-11, atol=1e-13)
    upstream = torch.randn(z.shape, dtype=torch.float64)
    for found, expected in zip(
        torch.autograd.grad(z, of, upstream), torch.autograd.grad(plain, of, upstream), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
