"""Longformer's dilated windows (Beltagy et al. 2020, sections 3.1 and 4.1), against their definition token by token."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from reread.preprocessing.errors import UserError
from reread.training.exchange.export import write_huggingface
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.models.longformer import LongformerForMaskedLM, attention_longformer
from reread.training.models.longformer.attention_longformer import LongformerSelfAttention, Sight
from reread.training.models.longformer.spec import flops
from tests.elsewhere import run_elsewhere
from tests.training.models.test_longformer import PAD, batch, saved_bytes, tiny

HEADS, WIDTH = 4, 16
SPEC = model_spec("longformer")
VALUES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 202,
    "attention_window": [8, 4],
    "attention_dilation": [1, 3],
    "dilated_heads": 1,
    "pad_token_id": PAD,
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_longformer, "CHUNK", 16)
    monkeypatch.setattr(attention_longformer, "SCORES", 3000)


def attention_of(window: int, dilation: int, dilated: int) -> LongformerSelfAttention:
    torch.manual_seed(0)
    config = tiny(hidden_size=WIDTH, num_attention_heads=HEADS)
    return LongformerSelfAttention(config, window, dilation, dilated).double().eval()


def token_by_token(attention: Any, hidden: Tensor, marks: Tensor, dilated: int) -> Tensor:
    """Each token of each head with a list of the keys that it sees: marks [B, L] are 0 padding, 1 text, 2 global."""
    rows = []
    for x, kinds in zip(hidden, marks.tolist(), strict=True):
        named = {
            name: getattr(attention, name)(x).unflatten(-1, (HEADS, -1)) for name in dict(attention.named_children())
        }
        tokens = []
        for i, kind in enumerate(kinds):
            heads = []
            for head in range(HEADS):
                gap = attention.dilation if head < dilated else 1
                window = [i + gap * step for step in range(-attention.window, attention.window + 1)]
                seen = [j for j, other in enumerate(kinds) if other == 2 or (other == 1 and (kind == 2 or j in window))]
                suffix = "_global" if kind == 2 else ""
                q, k, v = (named[name + suffix][:, head] for name in ("query", "key", "value"))
                weights = torch.softmax(k[seen] @ q[i] / math.sqrt(WIDTH // HEADS), 0)
                heads.append(weights @ v[seen] if kind else torch.zeros_like(v[0]))
            tokens.append(torch.cat(heads))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("length", "window", "dilation", "dilated"),
    [(5, 1, 2, 2), (12, 6, 4, 4), (61, 5, 3, 1), (90, 3, 4, 4), (90, 20, 2, 2)],
)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_strands_are_the_definition(length: int, window: int, dilation: int, dilated: int, share: float) -> None:
    attention = attention_of(window, dilation, dilated)
    inputs = batch(length, rows=2, share=share)
    marks = inputs["attention_mask"] * (1 + inputs.get("global_attention_mask", torch.zeros(2, length).long()))
    hidden = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    ours, theirs = attention(hidden, Sight(marks)), token_by_token(attention, hidden, marks, dilated)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    places = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    gradients = [
        torch.autograd.grad((z * places).sum(), [hidden, *attention.parameters()], allow_unused=True)
        for z in (ours, theirs)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(*(torch.zeros(1) if g is None else g for g in (a, b)), atol=1e-10, rtol=0)
    if not share:  # text alone, without a mask
        plain = torch.ones_like(marks)
        torch.testing.assert_close(attention(hidden, Sight(None)), token_by_token(attention, hidden, plain, dilated))


def test_half_of_the_heads_are_the_half_of_the_output() -> None:
    """What a device of two has: three dilated heads are two there, and one on the other."""
    attention, hidden = attention_of(5, 3, 3), torch.randn(2, 61, WIDTH, dtype=torch.float64)
    full = attention(hidden, Sight(None))
    for rank in range(2):
        part = attention_of(5, 3, 3)
        for linear in part.children():
            linear.weight, linear.bias = (torch.nn.Parameter(p[8 * rank :][:8]) for p in (linear.weight, linear.bias))
        part.keep_heads(2 * rank, 2)
        torch.testing.assert_close(part(hidden, Sight(None)), full[..., 8 * rank :][..., :8])


def test_memory_grows_as_the_length() -> None:
    attention = attention_of(4, 3, 2).float().train()
    kept = [saved_bytes(attention, length, Sight(torch.ones(1, length).long())) for length in (256, 1024)]
    assert kept[1] < 4.2 * kept[0], "four times the length"


def test_flops_are_those_of_the_window_until_the_row_ends() -> None:
    def keys(length: int, **values: Any) -> float:
        totals = {"rows": 1.0, "predicted": 0.0}
        one = {"num_hidden_layers": 1, "num_attention_heads": 4}
        wide, none = (flops(tiny(**one, **given), length, totals) for given in (values, {"attention_window": 2}))
        return (wide - none) / (3 * 4 * length * 16) + 3

    assert keys(100, attention_window=16, attention_dilation=3) == 17, "as without gaps"
    assert keys(30, attention_window=16, attention_dilation=3) == 10, "every third of the row"
    assert keys(30, attention_window=16, attention_dilation=3, dilated_heads=1) == (10 + 3 * 17) / 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_dilation": [1, 2, 3]}, "attention_dilation: 3 numbers for 2 layers"),
        ({"attention_dilation": 0}, "attention_dilation: is 1 to"),
        ({"attention_dilation": [1, 0]}, "attention_dilation: is 1 to"),
        ({"attention_dilation": "wide"}, "attention_dilation: "),
        ({"dilated_heads": 3}, "dilated_heads: 3 of 2 heads"),
        ({"dilated_head": 1}, "unknown key `dilated_head`.*dilated_heads"),
    ],
)
def test_what_fits_no_model_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        config = model_config(SPEC, {**VALUES, **values}, 40, None)
        build_model(LongformerForMaskedLM, config, None, 0)
    assert "\n" not in str(error.value)


LOAD = """
import sys, torch
from transformers import AutoModelForMaskedLM
assert not any(name.split(".")[0] == "reread" for name in sys.modules)
folder = sys.argv[1]
model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
torch.save(model(torch.arange(90)[None] % 40).logits, folder + "/out")
try:
    AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error), error
else:
    raise AssertionError("transformers' own Longformer has loaded it, without the gaps")
"""


def test_an_export_has_its_code_and_is_never_loaded_without_it(tmp_path: Path) -> None:
    config = model_config(SPEC, VALUES, 40, None)
    model = build_model(LongformerForMaskedLM, config, None, 0).eval()
    expected = model(torch.arange(90)[None] % 40).logits
    write_huggingface(tmp_path / "out", model, None, "card")
    run_elsewhere(tmp_path, LOAD, tmp_path / "out")
    torch.testing.assert_close(torch.load(tmp_path / "out" / "out"), expected)
    again = model_config(SPEC, {}, 40, tmp_path / "out")
    assert type(again) is type(config) and again.attention_dilation == [1, 3] and again.dilated_heads == 1
    undilated = model_config(SPEC, {**VALUES, "attention_dilation": 1}, 40, None)
    write_huggingface(tmp_path / "plain", build_model(LongformerForMaskedLM, undilated, None, 0), None, "card")
    assert AutoConfig.from_pretrained(tmp_path / "plain").model_type == "longformer", "transformers' own"
    assert not list((tmp_path / "plain").glob("*.py"))
