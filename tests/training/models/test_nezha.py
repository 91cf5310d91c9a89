"""NEZHA's model: golden numbers, the forms of its attention, and what training relies on."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models import model_spec
from reread.training.models.nezha import NezhaConfig, NezhaForMaskedLM, NezhaForPreTraining, NezhaModel
from reread.training.models.nezha.attention_nezha import (
    MASKED,
    Rotations,
    Tables,
    clipped_attention,
    rotated_attention,
    sinusoids,
)
from tests.conftest import GOLDEN

NUMBERS = GOLDEN / "nezha.npz"
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")
FORMS: list[dict[str, Any]] = [
    {"max_relative_position": 3},
    {"max_relative_position": None},
    {"position_type": "parametric_absolute"},
    {"position_type": "parametric_relative", "max_relative_position": 3},
]


def tiny(**values: Any) -> NezhaConfig:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return NezhaConfig(**{**sizes, "intermediate_size": 24, "max_position_embeddings": 32, **values})


def pretraining(seed: int = 0, **values: Any) -> NezhaForPreTraining:
    torch.manual_seed(seed)
    return NezhaForPreTraining(tiny(initializer_range=0.2, **values)).eval()


def batch(rows: int = 3, length: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """The second row is half padding; every fourth token is predicted."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 40, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    labels = ids.clone()
    labels[:, torch.arange(length) % 4 != 1] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "next_sentence_label": torch.arange(rows) % 2}


def plain_attention(q: Tensor, k: Tensor, v: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
    """The formula as it is written, with tables [L, L, h] of keys and values."""
    keys, values = positions
    scores = torch.einsum("bnih,bnjh->bnij", q, k) + torch.einsum("bnih,ijh->bnij", q, keys)
    scores = scores / q.shape[-1] ** 0.5
    a = (scores if mask is None else scores + mask).softmax(-1)
    return torch.einsum("bnij,bnjh->bnih", a, v) + torch.einsum("bnij,ijh->bnih", a, values)


def heads(length: int, size: int = 8, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(2, 3, length, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for _ in range(3)
    ]


def padding_mask(length: int) -> Tensor:
    mask = torch.zeros(2, 1, 1, length, dtype=torch.float64)
    mask[1, ..., length // 2 :] = MASKED
    return mask


def distances(length: int) -> Tensor:
    return torch.arange(length) - torch.arange(length)[:, None]


def unclipped_positions(length: int, size: int, start: int = 0, shift: int = 0) -> Rotations:
    places = torch.arange(start, start + length)
    table = sinusoids(places, size)
    return Rotations(sinusoids(places + shift, size), torch.stack([table[:, 1::2], table[:, ::2]], dim=-1))


def assert_same_with_gradients(ours: Tensor, theirs: Tensor, inputs: list[Tensor], tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    for a, b in zip(*(torch.autograd.grad((z * weights).sum(), inputs) for z in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


def test_golden_numbers_of_transformers_are_met() -> None:
    golden = np.load(NUMBERS)
    model = NezhaForPreTraining(NezhaConfig(**json.loads(str(golden["config"])))).double().eval()
    model.load_state_dict({k.removeprefix("weight/"): torch.tensor(golden[k]) for k in golden if "weight/" in k})
    output = model(**{name: torch.tensor(golden[name]) for name in INPUTS}, output_hidden_states=True)
    output.loss.backward()
    query = model.nezha.encoder.layer[0].attention.self.query
    got = {
        "loss": output.loss,
        "prediction_logits": output.prediction_logits,
        "seq_relationship_logits": output.seq_relationship_logits,
        "hidden": output.hidden_states[-1],
        "grad_word_embeddings": model.nezha.embeddings.word_embeddings.weight.grad,
        "grad_query_0": query.weight.grad,
    }
    for name, tensor in got.items():
        np.testing.assert_allclose(tensor.detach().numpy(), golden[name], atol=2e-5, rtol=0, err_msg=name)  # float32


def test_fused_unclipped_attention_is_the_papers_formula() -> None:
    q, k, v = heads(33)
    table = sinusoids(distances(33).flatten(), 8).view(33, 33, 8)
    theirs = plain_attention(q, k, v, (table, table), padding_mask(33))
    ours = rotated_attention(q, k, v, unclipped_positions(33, 8), padding_mask(33), dropout=0.0)
    assert_same_with_gradients(ours, theirs, [q, k, v], 1e-12)


@pytest.mark.parametrize("clip", [1, 5, 32, 64])
def test_clipped_attention_is_the_plain_form(clip: int) -> None:
    q, k, v = heads(33)
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(2 * clip + 1, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    rows = distances(33).clamp(-clip, clip) + clip
    theirs = plain_attention(q, k, v, (tables[0][rows], tables[1][rows]), padding_mask(33))
    ours = clipped_attention(q, k, v, Tables(*tables), padding_mask(33), dropout=0.0)
    assert_same_with_gradients(ours, theirs, [q, k, v, *tables], 1e-12)


def test_rows_too_short_to_be_clipped_take_the_fused_form() -> None:
    clip, length = 11, 12
    q, k, v = heads(length)
    table = sinusoids(torch.arange(2 * clip + 1), 8)
    theirs = clipped_attention(q, k, v, Tables(table, table), None, dropout=0.0)
    ours = rotated_attention(q, k, v, unclipped_positions(length, 8, shift=clip), None, dropout=0.0)
    assert_same_with_gradients(ours, theirs, [q, k, v], 1e-12)
    encoder = NezhaModel(tiny(max_relative_position=clip)).encoder
    fused, clipped = (encoder._positions(n, torch.zeros(())) for n in (length, length + 1))
    assert isinstance(fused, Rotations)
    assert isinstance(clipped, Tables)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("start", [0, 8000])
def test_fused_form_in_half_precision_is_as_accurate_as_the_plain_form(dtype: torch.dtype, start: int) -> None:
    q, k, v = (x.detach() for x in heads(64, 32, dtype))
    table = sinusoids(distances(64).flatten(), 32).view(64, 64, 32)
    exact = plain_attention(q.double(), k.double(), v.double(), (table, table), None)
    plain = plain_attention(q, k, v, (table.to(dtype), table.to(dtype)), None)
    features, turns = unclipped_positions(64, 32, start)
    fused = rotated_attention(q, k, v, Rotations(features.float(), turns.float()), None, dropout=0.0)
    assert (fused - exact).abs().max() < 2 * (plain - exact).abs().max()


def test_sinusoids_are_exact_at_any_position() -> None:
    table = sinusoids(torch.tensor([0, 7, 8191]), 64)
    k = np.arange(32)
    for row, position in zip(table.numpy(), (0, 7, 8191), strict=True):
        np.testing.assert_allclose(row[::2], np.sin(position * 10000.0 ** (-2 * k / 64)), atol=1e-11)
        np.testing.assert_allclose(row[1::2], np.cos(position * 10000.0 ** (-2 * k / 64)), atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_padding_alone_gives_no_nan(form: dict[str, Any], dtype: torch.dtype) -> None:
    model = pretraining(**form).to(dtype)  # type: ignore[arg-type]
    inputs = batch()
    inputs["attention_mask"][2] = 0
    output = model(**inputs)
    output.loss.backward()
    assert output.prediction_logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_padding_changes_nothing_for_other_tokens(form: dict[str, Any]) -> None:
    model, inputs = pretraining(**form).double(), batch()
    short = model(inputs["input_ids"][1:2, :6]).prediction_logits
    torch.testing.assert_close(model(**inputs).prediction_logits[1:2, :6], short, atol=1e-12, rtol=0)


@pytest.mark.parametrize("clip", [3, None])
def test_functional_positions_tell_only_distances(clip: int | None) -> None:
    model, ids = pretraining(max_relative_position=clip).double(), batch()["input_ids"]
    moved = torch.cat([torch.zeros(3, 5, dtype=torch.long), ids], dim=1)
    logits = model(moved, attention_mask=(moved != 0).long()).prediction_logits[:, 5:]
    torch.testing.assert_close(logits, model(ids).prediction_logits, atol=1e-11, rtol=0)


@pytest.mark.parametrize("cls", [NezhaForPreTraining, NezhaForMaskedLM])
def test_masked_positions_give_the_logits_and_loss_of_the_full_head(cls: type) -> None:
    torch.manual_seed(0)
    model, inputs = cls(tiny()).double().eval(), batch()
    inputs.pop("next_sentence_label")
    full = model(**inputs)
    labels = inputs.pop("labels").flatten()
    positions = (labels != -100).nonzero().flatten()
    some = model(**inputs, masked_positions=positions, labels=labels[positions])
    key = "logits" if cls is NezhaForMaskedLM else "prediction_logits"
    torch.testing.assert_close(some[key], full[key].flatten(0, 1)[positions])
    torch.testing.assert_close(some.loss, full.loss)


def test_the_clipping_distance_and_the_kind_of_positions_matter() -> None:
    ids = batch()["input_ids"]
    outputs = [pretraining(**form)(ids).prediction_logits for form in [*FORMS, {"max_relative_position": 2}]]
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert (a - b).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_positions_trains(form: dict[str, Any]) -> None:
    model, inputs = pretraining(**form).train(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    untrained = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert untrained == []


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[3]])
def test_relative_positions_go_past_max_position_embeddings(form: dict[str, Any]) -> None:
    ids = torch.ones(1, 80, dtype=torch.long)
    assert pretraining(**form)(ids).prediction_logits.shape == (1, 80, 40)


def test_absolute_positions_end_with_their_table() -> None:
    with pytest.raises(ValueError, match="33 tokens, but parametric_absolute positions end at 32"):
        pretraining(position_type="parametric_absolute")(torch.ones(1, 33, dtype=torch.long))


@pytest.mark.parametrize("form", FORMS)
def test_activation_checkpointing_changes_nothing(form: dict[str, Any]) -> None:
    results = []
    for checkpointing in (False, True):
        model = pretraining(**form).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.nezha.encoder.layer[0].gradient_checkpointing
        torch.manual_seed(1)  # dropout is on
        loss = model(**batch()).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_attention_takes_its_heads_from_the_tensor(form: dict[str, Any]) -> None:
    """What tensor parallelism relies on: half of the query, key and value rows give half of the output."""
    model = NezhaModel(tiny(**form)).double().eval()
    attention, hidden = model.encoder.layer[0].attention.self, torch.randn(2, 12, 16, dtype=torch.float64)
    positions = model.encoder._positions(12, hidden)
    full = attention(hidden, None, positions)
    for linear in (attention.query, attention.key, attention.value):
        linear.weight, linear.bias = (torch.nn.Parameter(p[:8]) for p in (linear.weight, linear.bias))
    torch.testing.assert_close(attention(hidden, None, positions), full[..., :8])


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_float32_in_half_precision_and_near_the_exact_ones(form: dict[str, Any]) -> None:
    model, inputs = pretraining(**form), batch()
    exact = model(**inputs)
    half = model.to(torch.bfloat16)(**inputs)  # type: ignore[arg-type]
    assert half.prediction_logits.dtype == half.seq_relationship_logits.dtype == torch.float32
    assert (half.loss - exact.loss).abs() < 0.05 * exact.loss


def test_masked_language_model_takes_the_weights_of_pretraining() -> None:
    source, inputs = pretraining(), batch()
    model = NezhaForMaskedLM(source.config).eval()
    unexpected = model.load_state_dict(source.state_dict(), strict=False).unexpected_keys
    assert all(name.startswith(("nezha.pooler.", "cls.seq_relationship.")) for name in unexpected)
    assert torch.equal(model(inputs["input_ids"]).logits, source(inputs["input_ids"]).prediction_logits)


def test_the_loss_is_the_sum_of_those_whose_labels_are_given() -> None:
    model, inputs = pretraining().double(), batch()
    both = model(**inputs).loss
    parts = [model(**{k: v for k, v in inputs.items() if k != left_out}).loss for left_out in INPUTS[-2:]]
    torch.testing.assert_close(both, parts[0] + parts[1])
    assert model(inputs["input_ids"]).loss is None


def test_the_tanh_form_of_gelu_is_another_function() -> None:
    ids = batch()["input_ids"]
    exact, tanh = (pretraining(hidden_act=name)(ids).prediction_logits for name in ("gelu", "gelu_new"))
    assert 1e-6 < (exact - tanh).abs().max() < 0.1


@pytest.mark.parametrize(
    "values",
    [
        {"position_type": "absolute"},
        {"hidden_act": "swish"},
        {"num_attention_heads": 3},
        {"position_type": "parametric_relative", "max_relative_position": None},
        {"max_relative_position": 0},
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hidden_size" if "num_attention_heads" in values else next(iter(values))):
        tiny(**values)


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="`nezah` is unknown; did you mean `nezha`"):
        model_spec("nezah")


def test_flops_are_those_of_the_survey() -> None:
    spec = model_spec("nezha")
    assert spec.flops(spec.config(), 128, {"rows": 1, "predicted": 0.15 * 128}) / 1e9 == pytest.approx(69.0, abs=0.1)
    assert spec.flops(spec.config(), 512, {"rows": 10, "predicted": 10 * 0.15 * 512}) / 1e10 == pytest.approx(
        297.7, abs=0.1
    )
