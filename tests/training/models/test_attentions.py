"""`output_attentions` are the probabilities by which layers attend: those of the equation, or of the fused kernel."""

import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM, TransformerXLModel
from tests.training.models.test_heads import SIZES, body_of, build, rows

SIZES_OF_XL: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2, "mem_len": 4}


def sinusoid(place: int, size: int) -> Tensor:
    angles = [place / 10000 ** (2 * (column // 2) / size) for column in range(size)]
    values = [math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(angles)]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "form",
    [
        {"max_relative_position": 3},
        {"max_relative_position": None},
        {"position_type": "parametric_absolute", "max_position_embeddings": 12},
        {"position_type": "parametric_relative", "max_relative_position": 3},
    ],
)
def test_nezhas_are_those_of_the_equation(form: dict[str, Any]) -> None:
    """softmax_j(q_i (k_j + R[j - i]) / sqrt(h)), of the paper's eq. 4 to 7, pair by pair."""
    model, batch = build("nezha", "tag", **form), rows(12, 9)
    with torch.no_grad():
        output = model(**batch, output_attentions=True, output_hidden_states=True)
    clip = form.get("max_relative_position")
    for number, found in enumerate(output.attentions):
        attention = body_of(model).encoder.layer[number].attention.self
        hidden = output.hidden_states[number]
        for row, head in ((0, 0), (1, 1)):
            part = slice(8 * head, 8 * head + 8)
            q, k = attention.query(hidden[row])[:, part], attention.key(hidden[row])[:, part]
            real = batch["attention_mask"][row].bool()
            scores = torch.full((12, 12), -1e9, dtype=torch.float64)
            for i in range(12):
                for j in range(12):
                    far = j - i if clip is None else min(max(j - i, -clip), clip) + clip
                    key = k[j]
                    if form.get("position_type") == "parametric_relative":
                        key = key + attention.relative_keys.weight[far]
                    elif "position_type" not in form:
                        key = key + sinusoid(far, 8)
                    if real[j]:
                        scores[i, j] = q[i] @ key / 8**0.5
            torch.testing.assert_close(found[row, head], scores.softmax(-1), rtol=0, atol=1e-12)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The probabilities [B, N, queries, keys] of each call of the fused kernel: what it gives for values 1 and 0."""
    kernel, calls = F.scaled_dot_product_attention, []

    def recording(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        one = torch.eye(k.shape[-2], dtype=v.dtype).expand(*k.shape[:-1], -1)
        calls.append(kernel(q, k, one, **more))
        return kernel(q, k, v, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recording)
    return calls


@torch.no_grad()
def test_ernie_docs_are_those_of_the_kernel(used: list[Tensor]) -> None:
    model, batch = build("ernie_doc", "documents"), rows(12, 9)
    types = torch.arange(24).view(2, 12) % 3
    mems = model(batch["input_ids"].flip(0)).mems
    used.clear()
    inputs = {**batch, "token_type_ids": types, "mems": mems}
    model(**inputs)
    found = model(**inputs, output_attentions=True).attentions
    for ours, theirs in zip(found, used, strict=True):
        assert ours.shape == (2, 2, 12, 16)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_ernie_docs_heads_put_them_back_where_the_tokens_stand() -> None:
    model = build("ernie_doc", "tag")
    mems = body_of(model)(rows(12)["input_ids"]).mems
    ids = torch.tensor([[5, 6, 7, 3, 2]])
    expected = model(ids, torch.ones_like(ids), mems=mems, output_attentions=True).attentions
    for places in ([3, 4, 5, 6, 7], [0, 1, 2, 3, 7], [0, 1, 2, 3, 4]):
        padded, mask = torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)
        padded[0, places], mask[0, places] = ids, 1
        found = model(padded, mask, mems=mems, output_attentions=True).attentions
        keys = [0, 1, 2, 3, *(4 + place for place in places)]
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours[:, :, places][..., keys], theirs, rtol=0, atol=1e-12)
            assert ours[:, :, places].sum(-1).sub(1).abs().max() < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("positions", ["token", "segatron-exact"])
def test_transformer_xls_are_those_of_the_kernel(used: list[Tensor], positions: str) -> None:
    torch.manual_seed(0)
    config = TransformerXLConfig(vocab_size=20, **SIZES_OF_XL, positions=positions)
    model = TransformerXLModel(config).double().eval()
    ids = rows(12, 12)["input_ids"]
    ends: dict[str, Any] = {"sentence_ends": ids == 3, "paragraph_ends": ids == 2}
    mems = model(ids.flip(0), **ends).mems
    used.clear()
    model(ids, mems, **ends)
    found = model(ids, mems, **ends, output_attentions=True).attentions
    for ours, theirs in zip(found, used, strict=True):
        assert ours.shape == (2, 2, 12, 16)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(12, 12), (11, 7)])
def test_rans_are_those_of_the_kernel_by_token(used: list[Tensor], lengths: tuple[int, ...]) -> None:
    """A token has its window's row; windows of 4, and with padding of up to 5, where a last token joins them."""
    model, batch = build("ran", "masked_lm"), rows(*lengths)
    batch = batch if min(lengths) < 12 else {"input_ids": batch["input_ids"]}
    model(**batch)
    found = model(**batch, output_attentions=True).attentions
    calls = [call for call in used if call.shape[2] in (4, 5)]  # the others are of cells and of memory review
    places = calls[0].shape[2]
    for ours, theirs in zip(found, calls, strict=True):
        windows = theirs.unflatten(0, (2, -1))
        assert ours.shape == (2, SIZES["ran"]["num_attention_heads"], 12, 1 + places)
        for row, length in enumerate(lengths):
            for token in range(length):
                window = min(token // 4, (length - 2) // 4)
                expected = windows[row, window, :, token - 4 * window]
                torch.testing.assert_close(ours[row, :, token], expected, rtol=0, atol=1e-12)


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("nezha", "masked_lm", {"max_relative_position": 3}),
    ("nezha", "masked_lm", {"max_relative_position": None}),
    ("nezha", "tag", {"position_type": "parametric_absolute", "max_position_embeddings": 12}),
    ("nezha", "tag", {"position_type": "parametric_relative", "max_relative_position": 3}),
    ("ernie_doc", "documents", {}),
    ("ernie_doc", "documents", {"official_memory": True}),
    ("ran", "masked_lm", {}),
    ("ran", "causal_lm", {}),
    ("transformer_xl", "causal_lm", {}),
]


def model_of(name: str, task: str, dropout: float, **values: Any) -> Any:
    """In training mode, with dropout of attention alone."""
    if name == "transformer_xl":
        torch.manual_seed(0)
        config = TransformerXLConfig(vocab_size=20, **SIZES_OF_XL, dropout=0.0, dropatt=dropout, **values)
        return TransformerXLForCausalLM(config).double().train()
    shares = {"hidden_dropout_prob": 0.0, "classifier_dropout": 0.0, "attention_probs_dropout_prob": dropout}
    return build(name, task, **shares, **values).train()


def inputs_of(name: str, model: Any) -> dict[str, Any]:
    """Rows with padding, and the memory of other rows where there is one."""
    batch: dict[str, Any] = dict(rows(12, 9))
    if name == "transformer_xl":
        del batch["attention_mask"]
    if name in ("nezha", "ernie_doc"):
        batch["token_type_ids"] = torch.arange(24).view(2, 12) % 2
    if "mems" in inspect.signature(model.forward).parameters and name != "nezha":
        with torch.no_grad():
            batch["mems"] = model(batch["input_ids"].flip(0)).mems
    return batch


@pytest.mark.parametrize(("name", "task", "values"), FORMS)
def test_they_have_a_gradient_and_change_no_other(name: str, task: str, values: dict[str, Any]) -> None:
    """Outputs and all parameters' gradients are those without `output_attentions`, with activations recomputed, too."""
    results = []
    for asked, checkpointing in ((False, False), (True, False), (True, True)):
        model = model_of(name, task, 0.0, **values)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        output = model(**inputs_of(name, model), output_attentions=asked)
        attentions = output.attentions if asked else ()
        for weights in attentions:
            weights.retain_grad()
        logits = [value for key, value in output.items() if "logits" in key]
        sum(one.square().sum() for one in logits).backward()
        assert len(attentions) == 2 * asked
        assert all(weights.grad.any() for weights in attentions)
        results.append([*logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    plain, *others = results
    for other in others:
        for ours, theirs in zip(other, plain, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("name", "task", "values"), FORMS)
def test_they_are_without_the_dropout_that_attention_has(name: str, task: str, values: dict[str, Any]) -> None:
    model = model_of(name, task, 0.5, **values)
    with torch.no_grad():
        batch = inputs_of(name, model.eval())
        exact = model(**batch, output_attentions=True)
        torch.manual_seed(0)
        dropped = model.train()(**batch, output_attentions=True)
    logits = next(key for key in exact if "logits" in key)
    assert not torch.allclose(dropped[logits], exact[logits])
    if name != "ran":  # whose cells come by attention before
        torch.testing.assert_close(dropped.attentions[0], exact.attentions[0], rtol=0, atol=1e-12)
    for weights in dropped.attentions:
        sums = weights.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)
