"""ERNIE-Doc's shifted bias in one product, by Triton's interpreter, equals that of the model's own file."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.models.ernie_doc import attention_ernie_doc
from tests.conftest import extra, rarer

ROWS, HEADS, SIZE = 2, 3, 4


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("added", [None, (ROWS, HEADS, 1), (ROWS, 1, 1)], ids=str)
@pytest.mark.parametrize("far", [rarer(False), True])
@pytest.mark.parametrize(("queries", "memory"), [rarer(5, 0), (8, 3), (11, 4)])
def test_bias_and_gradients(queries: int, memory: int, far: bool, added: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four queries, the last one shorter; also a single block."""
    extra("kernels", "triton")
    from reread.training.kernels import shift

    monkeypatch.setattr(shift, "BLOCK", 4)
    monkeypatch.setattr(attention_ernie_doc, "BLOCK", 4)
    torch.manual_seed(3)
    keys = memory + queries
    q, table = made(ROWS, queries, HEADS, SIZE), made(keys + queries, HEADS, SIZE)
    of: list[Tensor | None] = [q, table]
    of.append(None if added is None else made(*added, keys))
    of += [made(ROWS, HEADS, keys), made(ROWS, HEADS, queries)] if far else []
    ours, plain = shift.relative_bias(*of), attention_ernie_doc._RelativeBias.apply(*of)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, plain, rtol=1e-13, atol=1e-14)
    upstream = torch.randn(ours.shape, dtype=torch.float64)
    learning = [one for one in of if one is not None]
    for found, expected in zip(
        torch.autograd.grad(ours, learning, upstream), torch.autograd.grad(plain, learning, upstream), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
