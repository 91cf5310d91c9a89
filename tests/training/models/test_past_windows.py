"""Transformer-XL with windows, Longformer's character models (Beltagy et al. 2020, section 4), against the equation of
each pair of tokens."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.exchange.export import write_huggingface
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.models.transformer_xl import windows_transformer_xl
from reread.training.models.transformer_xl.attention_transformer_xl import Positions, sinusoids
from reread.training.models.transformer_xl.configuration_transformer_xl import TransformerXLConfig
from reread.training.models.transformer_xl.spec import flops
from reread.training.models.transformer_xl.windows_transformer_xl import WindowedSelfAttention
from tests.elsewhere import run_elsewhere
from tests.training.models.test_transformer_xl import fed, text, tiny

HEADS, SIZE, WIDTH = 4, 6, 12
WINDOWS: dict[str, Any] = {"attention_window": [3, 5], "attention_dilation": [1, 3], "dilated_heads": 1}
CHARACTERS: dict[str, Any] = {**WINDOWS, "norm_first": True, "hidden_act": "gelu"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_transformer_xl, "CHUNK", 8)


def attention_of(window: int, dilation: int, dilated: int) -> WindowedSelfAttention:
    torch.manual_seed(0)
    config = TransformerXLConfig(d_model=WIDTH, n_head=HEADS, d_head=SIZE, vocab_size=30)
    attention = WindowedSelfAttention(config, window, dilation, dilated).double().eval()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention


def pair_by_pair(attention: Any, hidden: Tensor, memory: Tensor, biases: Any, empty: Tensor, dilated: int) -> Tensor:
    """softmax over the keys that query i of head n sees, of ((q + u) k + (q + v) W R(i - j)) / sqrt(h)."""
    rows = []
    for x, past, gone in zip(hidden, memory, empty.tolist(), strict=True):
        slots, keys = len(past), torch.cat([past, x])
        q, k, v = attention.query(x), attention.key(keys), attention.value(keys)
        tokens = []
        for i in range(len(x)):
            heads = []
            for n in range(HEADS):
                own = slice(n * SIZE, (n + 1) * SIZE)
                gap = attention.dilation if n < dilated else 1
                places = [slots + i - gap * step for step in range(attention.window + 1)]
                seen = [j for j in places if j >= slots or (j >= 0 and not gone[j])]
                scores = []
                for j in seen:
                    angles = [(slots + i - j) * 10000 ** (-2 * m / WIDTH) for m in range(WIDTH // 2)]
                    r = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                    by_content = (q[i, own] + biases[0][n]) @ k[j, own]
                    by_place = (q[i, own] + biases[1][n]) @ (attention.position.weight[own] @ r)
                    scores.append((by_content + by_place) / math.sqrt(SIZE))
                heads.append(torch.softmax(torch.stack(scores), 0) @ v[seen][:, own])
            tokens.append(torch.cat(heads))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("length", "slots", "window", "dilation", "dilated"),
    [
        (1, 0, 3, 1, 0),
        (7, 5, 2, 3, 4),
        (40, 0, 4, 1, 0),
        (41, 0, 4, 3, 2),
        (50, 10, 6, 4, 1),
        (60, 33, 5, 2, 4),
    ],
)
def test_chunks_are_the_equation(length: int, slots: int, window: int, dilation: int, dilated: int) -> None:
    attention = attention_of(window, dilation, dilated)
    hidden = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, slots, WIDTH, dtype=torch.float64)
    biases = torch.randn(2, HEADS, SIZE, dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(2, slots, dtype=torch.bool)
    empty[0, : slots // 2] = True
    table = Positions(sinusoids(torch.arange(slots + length, -1, -1), WIDTH))
    ours = attention(hidden, memory, biases=tuple(biases), positions=table, masked=empty)
    theirs = pair_by_pair(attention, hidden, memory, biases, empty, dilated)
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)
    places = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    inputs = [hidden, biases, *attention.parameters()]
    gradients = [torch.autograd.grad((z * places).sum(), inputs) for z in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@pytest.mark.parametrize("values", [WINDOWS, CHARACTERS])
@pytest.mark.parametrize("lengths", [[45], [20, 9, 1, 15], [1] * 45])
def test_memory_gives_what_the_whole_text_gives(lengths: list[int], values: dict[str, Any]) -> None:
    """Its slots are no multiple of the dilation, and as many as the widest window reaches."""
    model, batch = tiny(**values, mem_len=16), text(45)
    whole = fed(model, batch, [45])[0]
    torch.testing.assert_close(fed(model, batch, lengths)[0], whole, atol=1e-10, rtol=0)
    assert not torch.allclose(fed(model, batch, lengths, mem_len=2)[0], whole) or len(lengths) == 1


def test_a_window_of_the_whole_text_is_ordinary_attention() -> None:
    batch, plain = text(30), tiny(mem_len=10)
    windowed = tiny(mem_len=10, attention_window=60)
    windowed.load_state_dict(plain.state_dict())
    for lengths in ([30], [11, 19]):
        torch.testing.assert_close(fed(windowed, batch, lengths)[0], fed(plain, batch, lengths)[0], atol=1e-10, rtol=0)


def test_a_token_sees_as_far_as_the_windows_of_all_layers_reach_and_none_that_follow() -> None:
    model = tiny(**{**CHARACTERS, "n_layer": 2}, recurrence="none")
    table = model.transformer.embeddings
    embedded = table(text(45, rows=1)["input_ids"]).detach().requires_grad_()
    state = model.transformer(inputs_embeds=embedded).last_hidden_state[0, 30]
    reached = torch.autograd.grad((state * torch.linspace(1, 2, len(state))).sum(), embedded)[0][0].abs().sum(-1) > 0
    near, apart = {30 - a - b for a in range(4) for b in range(6)}, {30 - a - 3 * b for a in range(4) for b in range(6)}
    assert set(reached.nonzero().flatten().tolist()) == near | apart


def test_norm_first_is_the_equation_of_xiong_et_al() -> None:
    """x + f(LN(x)) in each half of a layer, and a norm after the last."""
    model = tiny(**CHARACTERS, recurrence="none").transformer
    x = model.embeddings(text(20)["input_ids"])
    output = model(inputs_embeds=x).last_hidden_state
    positions = model._positions(0, 20, None, like=x)
    memory = x[:, :0]
    for layer in model.layer:
        attention, feed = layer.attention, layer.intermediate
        biases = model.content_bias, model.position_bias
        heads = attention.self(attention.LayerNorm(x), memory, biases=biases, positions=positions, masked=None)
        x = x + heads @ attention.output.dense.weight.T
        inner = torch.nn.functional.gelu(layer.LayerNorm(x) @ feed.dense.weight.T + feed.dense.bias)
        x = x + inner @ layer.output.dense.weight.T + layer.output.dense.bias
    torch.testing.assert_close(output, model.LayerNorm(x), atol=1e-12, rtol=0)
    norms = [name for name, part in model.named_modules() if isinstance(part, torch.nn.LayerNorm)]
    assert len(norms) == 2 * len(model.layer) + 1


def test_memory_of_the_computation_grows_as_the_length() -> None:
    attention = attention_of(6, 3, 2).float().train()
    kept: list[int] = []
    for length in (256, 1024):
        seen: dict[int, Tensor] = {}
        hidden = torch.randn(1, length, WIDTH, requires_grad=True)
        table = Positions(sinusoids(torch.arange(length, -1, -1), WIDTH).float())
        keep = lambda tensor, seen=seen: seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(lambda x, keep=keep: (keep(x), x)[1], lambda x: x):
            attention(hidden, hidden[:, :0], biases=(torch.zeros(4, 6),) * 2, positions=table, masked=None)
        kept.append(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()))
    assert kept[1] < 4.2 * kept[0], "four times the length"


def test_flops_count_windows() -> None:
    def keys(length: int, **values: Any) -> float:
        sizes = {"vocab_size": 30, "d_model": 12, "n_head": 2, "d_head": 4, "d_inner": 16, "n_layer": 1, "mem_len": 4}
        totals = {"rows": 1.0, "predicted": 0.0}
        wide, one = (
            flops(TransformerXLConfig(**{**sizes, "attention_window": 1, **given}), length, totals)
            for given in (values, {})
        )
        return (wide - one) / (3 * 6 * length * 8) + 2

    assert keys(50, attention_window=9) == 10
    assert keys(26, attention_window=40) == 30, "the memory and the segment"
    assert keys(26, attention_window=40, attention_dilation=3, dilated_heads=1) == (30 + 10) / 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_window": [3]}, "attention_window has 1 numbers for 2 layers"),
        ({"attention_window": 0}, "attention_window: is 1 to"),
        ({"attention_dilation": 2}, "attention_dilation is of windows"),
        ({**WINDOWS, "attention_dilation": [1]}, "attention_dilation has 1 numbers for 2 layers"),
        ({**WINDOWS, "dilated_heads": 3}, "dilated_heads is at most n_head 2, not 3"),
        ({**WINDOWS, "positions": "segatron-exact"}, "attention_window needs positions token"),
        ({**WINDOWS, "same_length": True}, "attention_window needs positions token, and no same_length"),
        ({"hidden_act": "gelu_new"}, "hidden_act is relu or gelu"),
        ({"attention_windows": 3}, "unknown key `attention_windows`.*attention_window"),
    ],
)
def test_what_fits_no_model_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        model_config(model_spec("transformer_xl"), {"n_layer": 2, "n_head": 2, **values}, 30, None)
    assert "\n" not in str(error.value)


LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
torch.save(model(torch.arange(90)[None] % 30).logits, sys.argv[1] + "/out")
"""


def test_an_export_gives_the_same(tmp_path: Path) -> None:
    model = tiny(**CHARACTERS).float()
    write_huggingface(tmp_path / "out", model, None, "card")
    run_elsewhere(tmp_path, LOAD, tmp_path / "out")
    torch.testing.assert_close(torch.load(tmp_path / "out" / "out"), model(torch.arange(90)[None] % 30).logits)
