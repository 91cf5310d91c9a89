"""Documents of a row by variable lengths: the same as by a mask, and when it is chosen."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reread.preprocessing.errors import UserError
from reread.training.data.rows.packed import borders
from reread.training.models.hub import lengths
from reread.training.models.hub.encoders import ENCODERS
from tests.training.models.test_hub import model_of

DOCUMENTS = np.array([[3] * 7 + [4] * 2 + [5] * 8 + [-1] * 3, [5] * 20], np.int32)
"""Two rows: three documents and padding; one, whose number is that of another in the first."""


def one_by_one(q: Tensor, k: Tensor, v: Tensor, at: Tensor, *_: Any, scale: float, window_size: tuple[int, int]) -> Any:
    """What torch's kernel computes for queries, keys and values [T, H, D], a document after another."""
    found = []
    for begin, end in zip(at.tolist(), at.tolist()[1:], strict=False):
        place = torch.arange(end - begin)
        left, right = (end - begin if one < 0 else one for one in window_size)
        apart = place - place[:, None]
        rows = [one[begin:end].transpose(0, 1) for one in (q, k, v)]
        mask = (apart >= -left) & (apart <= right)
        found.append(scaled_dot_product_attention(*rows, attn_mask=mask, scale=scale).transpose(0, 1))
    return torch.cat(found)


def test_borders_are_where_the_mask_of_equal_documents_changes() -> None:
    """The blocks along the diagonal of the mask of all tokens of both rows."""
    row, number = np.indices(DOCUMENTS.shape)[0].ravel(), DOCUMENTS.ravel()
    seen = (number[:, None] == number) & (row[:, None] == row)
    sizes = np.diff(borders(DOCUMENTS))
    assert np.array_equal(seen, np.repeat(np.repeat(np.eye(len(sizes)), sizes, 0), sizes, 1) == 1)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_rows_by_lengths_are_those_by_a_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients in float64, by a stand-in for torch's kernel, which has no form on CPU."""
    monkeypatch.setattr(lengths, "varlen_attn", one_by_one)
    monkeypatch.setattr(lengths, "of_torch", lambda *_: "")
    ids = torch.randint(3, 40, DOCUMENTS.shape, generator=torch.Generator().manual_seed(2))
    documents, sides = torch.tensor(DOCUMENTS), []
    for by_lengths in (False, True):
        model = model_of(name, attn_implementation="sdpa")
        if by_lengths:
            lengths.choose(model, None, torch.device("cpu"), torch.float64)
        given = {"borders": torch.tensor(borders(DOCUMENTS))} if by_lengths else {}
        logits = model(input_ids=ids, documents=documents, **given).logits
        (logits[documents >= 0] ** 2).sum().backward()
        sides.append([logits[documents >= 0], *(one.grad for one in model.parameters() if one.grad is not None)])
    for mask, by in zip(*sides, strict=True):
        torch.testing.assert_close(by, mask, rtol=1e-5 if name == "modernbert" else 1e-9, atol=1e-9)


def test_each_choice_is_one_line_with_its_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "reread")
    gpu, half = torch.device("cuda"), torch.bfloat16
    model = model_of("modernbert", attn_implementation="sdpa")

    def line(stated: str | None = None, device: Any = gpu, dtype: torch.dtype = half) -> str:
        caplog.clear()
        model.by_lengths = False
        lengths.choose(model, stated, device, dtype)
        (found,) = caplog.messages
        assert model.by_lengths == ("by variable lengths" in found) and "\n" not in found
        return found

    assert "apart by a mask, which computes all pairs of the row's tokens, since there is no GPU" in line(
        None, torch.device("cpu")
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert "older than compute capability 8.0" in line()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "since train.model.attn_implementation is sdpa" in line("sdpa")
    assert "half precision alone" in line(dtype=torch.float32)
    assert "by variable lengths (torch's kernel)" in line()
    model.config.attention_dropout = 0.1
    monkeypatch.setattr(lengths, "is_flash_attn_2_available", lambda: False)
    found = line()
    assert "model.attention_dropout is 0.1, and torch's kernel has no dropout; flash-attn is not installed" in found
    with pytest.raises(UserError, match="attn_implementation: flash_attention_2, but flash-attn is not installed"):
        line("flash_attention_2")
    monkeypatch.setattr(lengths, "is_flash_attn_2_available", lambda: True)
    assert "the package flash-attn" in line() and "the package flash-attn" in line("flash_attention_2")
