"""ERNIE-Doc's attention by kernels, run by Triton's interpreter, equals that of the model's own file."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reread.training.models.ernie_doc import attention_ernie_doc
from tests.conftest import extra, rarer

ROWS, HEADS, SIZE = 2, 3, 6


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("added", [None, (ROWS, HEADS, 1), rarer((ROWS, 1, 1))], ids=str)
@pytest.mark.parametrize("gap", [rarer(0), 3])
@pytest.mark.parametrize(("queries", "memory"), [rarer(5, 0), (8, 3), (11, 4)])
def test_attention_and_gradients(
    queries: int, memory: int, gap: int, added: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of four queries, the last one shorter; also a single block. Five programs share the tokens."""
    extra("kernels", "triton")
    from reread.training.kernels import shift, sums

    for module in (shift, attention_ernie_doc):
        monkeypatch.setattr(module, "BLOCK", 4)
    monkeypatch.setattr(sums, "PROGRAMS", 5)
    torch.manual_seed(3)
    keys = memory + queries
    of = [made(ROWS, queries, HEADS, SIZE), *(made(ROWS, keys, HEADS, SIZE) for _ in range(2))]
    of += [made(keys + queries + 2 * gap, HEADS, SIZE), made(HEADS, SIZE), made(HEADS, SIZE)]
    of += [] if added is None else [made(*added, keys)]
    mask = torch.zeros(ROWS, 1, 1, keys, dtype=torch.float64)
    mask[1, ..., 0] = attention_ernie_doc.MASKED

    def attended(attend: Any) -> list[Tensor]:
        q, k, v, r, u, w, *term = of
        z = attend(q, k, v, r, (u, w), *(term or [None]), mask, dropout=0.0, gap=gap)
        torch.manual_seed(4)
        return [z, *torch.autograd.grad(z, of, torch.randn(z.shape, dtype=z.dtype))]

    ours, plain = attended(shift.relative_attention), attended(attention_ernie_doc.relative_attention)
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("memory", [rarer(None), 3])
def test_projections_of_a_segment_and_its_memory(memory: int | None) -> None:
    """With a weight whose gradient a product adds, and one that does not learn."""
    from reread.training.kernels.products import projections

    torch.manual_seed(5)
    layers = [nn.Linear(4, 6, dtype=torch.float64) for _ in range(3)]
    layers[0].weight.requires_grad_(False)
    hidden, before = made(ROWS, 5, 4), None if memory is None else made(ROWS, memory, 4).detach()
    context = hidden if before is None else torch.cat([before, hidden], dim=1)
    plain = [layer(x) for layer, x in zip(layers, (hidden, context, context), strict=True)]
    of = [hidden, *(one for layer in layers for one in layer.parameters() if one.requires_grad)]
    upstream = [torch.randn_like(one) for one in plain]
    expected = dict(zip(of, torch.autograd.grad(plain, of, upstream), strict=True))
    sums: list[Tensor] = []
    added = layers[1].weight
    added.add_product = lambda gradient, x: sums.append(gradient.t() @ x)  # type: ignore[attr-defined]
    found = projections(hidden, before, *layers)
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)
    for one, gradient in zip(of, torch.autograd.grad(found, of, upstream, allow_unused=True), strict=True):
        torch.testing.assert_close(sums.pop() if one is added else gradient, expected[one], rtol=1e-12, atol=1e-13)
    assert not sums
