"""RAN's settings, heads, saved folders, sizes and FLOPs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from reread.pipeline.recipe.load import load_recipe
from reread.training.models.ran import (
    RanConfig,
    RanForCausalLM,
    RanForMaskedLM,
    RanForSequenceClassification,
    RanForTokenClassification,
    RanModel,
    attention_ran,
)
from reread.training.models.ran.spec import TENSOR_PLAN, flops
from tests.training.models.test_ran import LENGTHS, PROFILES, build, mask_of, prefixes, some_ids, tiny

WORDS: dict[str, Any] = {"cutoffs": [10, 25], "div_val": 2}
"""Of an adaptive language model."""
SWITCHES: list[dict[str, Any]] = [
    {"min_window_size": 1},
    {"cell_transform": "always"},
    {"cell_transform": "always", "cell_activation": "linear"},
    {"attention_activation": "linear"},
    {"attention_residual": False},
    {"norm_denominator": "std"},
    {"cell_residual": "plain"},
    {"cell_residual": "none"},
    {"first_cell_residual": True},
    {"review_cells": "residual"},
    {"review_activation": "linear"},
    {"review_output": False},
    {"review_residual": False},
    {"memory_review": False},
    {"rotary": False},
    {"cell_handover": False},
    {"window_handover": True},
    {"layer_residual": True},
    {"window_size": 5},
]


@pytest.mark.slow
def test_each_switch_is_another_model() -> None:
    ids = some_ids(2, 26)
    outputs = [build(RanModel, **values)(ids).last_hidden_state for values in [{}, *SWITCHES, PROFILES[1]]]
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert (a - b).abs().max() > 1e-4
    one, added = (build(RanModel, num_hidden_layers=1, layer_residual=value)(ids)[0] for value in (False, True))
    assert torch.equal(one, added), "the first layer has none"
    heads = [{}, {"classifier": "linear"}, {"pooling": "mean"}, {"cell_pooling": "mean"}, {"cell_pooling": "max"}]
    vectors = [build(RanModel, **values)(ids).pooler_output for values in heads]
    for i, a in enumerate(vectors):
        assert all((a - b).abs().max() > 1e-4 for b in vectors[:i])


@pytest.mark.parametrize("values", [*PROFILES, *SWITCHES])
def test_configurations_come_back_as_they_went(values: dict[str, Any]) -> None:
    config = tiny(**values)
    again = RanConfig(**json.loads(config.to_json_string(use_diff=False)))
    assert again.to_dict() == config.to_dict()


def test_paper_ablations_are_one_setting_each() -> None:
    for profile in ("rannet", "paper"):
        for values in ({"cell_residual": "none"}, {"memory_review": False}, {"rotary": False}, {"pooling": "mean"}):
            assert RanConfig(profile=profile, **values).profile == profile  # type: ignore[arg-type]
        for window in (64, 128, 256, 512, 1024):
            assert RanConfig(profile=profile, window_size=window).window_size == window
        for layers in (1, 2, 3, 4):
            assert RanConfig(profile=profile, num_hidden_layers=layers).num_hidden_layers == layers


@pytest.mark.parametrize(
    "values",
    [
        {"profile": "code"},
        {"cell_transform": "never"},
        {"cell_residual": "lstm"},
        {"norm_denominator": "max"},
        {"pooling": "last"},
        {"min_window_size": 9},
        {"min_window_size": 0},
        {"head_size": 3},
        {"first_cell_residual": True, "cell_residual": "none"},
        {"tie_word_embeddings": False},
        {"num_hidden_layers": 0},
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        tiny(**values)


def test_odd_heads_are_no_mistake_without_rotary_positions() -> None:
    assert build(RanModel, head_size=3, rotary=False)(some_ids(1, 9))[0].shape == (1, 9, 12)


@pytest.mark.parametrize("kind", [RanForMaskedLM, RanForCausalLM])
@pytest.mark.parametrize("profile", PROFILES)
def test_activation_checkpointing_changes_nothing(profile: dict[str, Any], kind: type) -> None:
    results = []
    ids, mask = some_ids(8, 24), mask_of(LENGTHS, 24)
    for checkpointing in (False, True):
        model = build(kind, **profile).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert model.ran.encoder.layer[0].gradient_checkpointing
        torch.manual_seed(1)  # dropout is on
        loss = model(ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_a_new_model_begins_with_a_cell_as_large_as_those_to_come() -> None:
    """At zero, gradients of the norm that reads it overflow float16."""
    for layer in RanModel(tiny(hidden_size=400)).encoder.layer:
        assert layer.initial.LayerNorm.bias.std().item() == pytest.approx(1, abs=0.2)


def test_attention_takes_its_heads_from_the_tensor() -> None:
    """What tensor parallelism relies on: the outputs of half the heads each add up to those of all."""
    layers = [build(RanForMaskedLM).double().ran.encoder.layer[0] for _ in range(3)]
    hidden = torch.randn(2, 20, 12, dtype=torch.float64)
    halves = []
    for layer, heads in zip(layers, (slice(0, 8), slice(0, 4), slice(4, 8)), strict=True):
        for linear in (layer.attention.query, layer.attention.key, layer.attention.value):
            linear.weight, linear.bias = (torch.nn.Parameter(p[heads]) for p in (linear.weight, linear.bias))
        q, k, v = (layer.attention.split(x) for x in layer.attention.project(hidden))
        context = layer.attention.heads(q, k, v, None)
        halves.append(F.linear(context, layer.attention.output.weight[:, heads]))
    torch.testing.assert_close(halves[1] + halves[2], halves[0])
    assert not list(layers[0].attention.heads.parameters())
    assert {"*.attention.heads": "split", "*.attention.output": "row"}.items() <= TENSOR_PLAN.items()


@pytest.mark.parametrize("order", [{}, {"segment_ids": prefixes(3, 8, 17, 5, 0, 5, 1, 0, width=24)}])
def test_heads_too_wide_for_fused_kernels_give_the_same(order: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for largest in (attention_ran.LARGEST_FUSED, 3):
        monkeypatch.setattr(attention_ran, "LARGEST_FUSED", largest)
        model = build(RanModel).double()
        output = model(some_ids(8, 24), mask_of(LENGTHS, 24), **order)
        loss = output.last_hidden_state.square().sum() + output.pooler_output.sum()
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append([output.last_hidden_state, *gradients])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(plain, fused, rtol=1e-10, atol=1e-12)


def test_masked_positions_give_the_logits_and_loss_of_the_full_head() -> None:
    model, ids, mask = build(RanForMaskedLM).double(), some_ids(8, 24), mask_of(LENGTHS, 24)
    labels = ids.masked_fill((mask == 0) | (torch.arange(24) % 4 != 1), -100)
    full = model(ids, mask, labels=labels)
    positions = (labels.flatten() != -100).nonzero().flatten()
    some = model(ids, mask, masked_positions=positions, labels=labels.flatten()[positions])
    torch.testing.assert_close(some.logits, full.logits.flatten(0, 1)[positions])
    torch.testing.assert_close(some.loss, full.loss)
    half = model.to(torch.bfloat16)(ids, mask, labels=labels)
    assert half.logits.dtype == torch.float32 and abs(half.loss - full.loss) < 0.05 * full.loss


def test_losses_are_those_of_transformers() -> None:
    ids, mask = some_ids(8, 24), mask_of(LENGTHS, 24)
    causal = build(RanForCausalLM).double()(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    expected = F.cross_entropy(causal.logits[:, :-1][mask[:, 1:].bool()], ids[:, 1:][mask[:, 1:].bool()])
    torch.testing.assert_close(causal.loss, expected)
    following = some_ids(8, 24, seed=1)
    given = build(RanForCausalLM).double()(ids, attention_mask=mask, labels=ids, shift_labels=following)
    torch.testing.assert_close(given.loss, F.cross_entropy(causal.logits.flatten(0, 1), following.flatten()))
    classifier = build(RanForTokenClassification, num_labels=3).double()
    tags = classifier(ids, mask, labels=(ids % 3).masked_fill(mask == 0, -100))
    assert tags.logits.shape == (8, 24, 3)
    torch.testing.assert_close(tags.loss, F.cross_entropy(tags.logits[mask.bool()], (ids % 3)[mask.bool()]))
    classes = build(RanForSequenceClassification, num_labels=3).double()
    single = classes(ids, mask, labels=torch.arange(8) % 3)
    torch.testing.assert_close(single.loss, F.cross_entropy(single.logits, torch.arange(8) % 3))
    several = classes(ids, mask, labels=torch.ones(8, 3).double())
    torch.testing.assert_close(several.loss, F.softplus(-several.logits).mean())
    numbers = torch.arange(8.0).double()
    number = build(RanForSequenceClassification, num_labels=1).double()(ids, mask, labels=numbers)
    torch.testing.assert_close(number.loss, (number.logits[:, 0] - numbers).square().mean())
    assert classes(ids, mask).loss is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RanForMaskedLM, RanForCausalLM])
@pytest.mark.parametrize("profile", PROFILES)
def test_it_trains(profile: dict[str, Any], kind: type) -> None:
    torch.manual_seed(0)
    model = kind(tiny(**profile, num_attention_heads=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    ids = torch.arange(1, 25).repeat(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < (0.5 if profile["profile"] == "rannet" else 0.95) * losses[0]
    # Of an empty cell's transformation only the bias counts; and a layer that gets a cell transforms it "always" or not
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    begins = "ran.encoder.layer.{}.initial.{}"
    expected = {begins.format(0, name) for name in ("dense.weight", "LayerNorm.weight")}
    if kind is RanForCausalLM:
        expected |= {name.replace("layer.0", "layer.1") for name in expected}
    elif profile["profile"] == "rannet":
        expected |= {begins.format(1, name) for name in ("dense.weight", "LayerNorm.weight", "LayerNorm.bias")}
    assert idle == expected


@pytest.mark.parametrize(("kind", "values"), [(RanForMaskedLM, {}), (RanForCausalLM, {}), (RanForCausalLM, WORDS)])
def test_saved_folders_are_read_as_they_were(kind: Any, values: dict[str, Any], tmp_path: Path) -> None:
    model, ids = build(kind, **values), some_ids(2, 20)
    model.save_pretrained(tmp_path)
    again, found = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    again, model = again.double().eval(), model.double()  # bits depend on where the weights lie
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    if not values:
        assert again.cls.predictions.decoder.weight is again.ran.embeddings.word_embeddings.weight
    encoder, found = RanModel.from_pretrained(tmp_path, output_loading_info=True)
    assert all("pooler" in name for name in found["missing_keys"])
    assert not found["unexpected_keys"]
    assert encoder.state_dict().keys() == build(RanModel, **values).state_dict().keys()


def parameters_of(kind: Any, **values: Any) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in kind(RanConfig(**values)).parameters()) / 1e6


def test_sizes_are_those_of_the_paper() -> None:
    """96 million for classification are 12 heads of 768 each; 64 each would be 42. Table 6 is 300 wide, 8 x 128."""
    assert parameters_of(RanForSequenceClassification) == pytest.approx(95.5, abs=0.05)
    assert parameters_of(RanForMaskedLM) == pytest.approx(93.8, abs=0.05)
    assert parameters_of(RanForMaskedLM, vocab_size=33000) == pytest.approx(95.7, abs=0.05)
    assert parameters_of(RanForMaskedLM, head_size=64) == pytest.approx(41.8, abs=0.05)
    glove = {"hidden_size": 300, "num_attention_heads": 8, "head_size": 128, "vocab_size": 40000}
    one, two = (parameters_of(RanModel, num_hidden_layers=layers, **glove) for layers in (1, 2))
    assert two - one == pytest.approx(2.23, abs=0.005)


def test_the_language_models_recipe_has_about_the_papers_150_million() -> None:
    """At WikiText-103's 267,735 words; the paper does not give its clusters."""
    settings = load_recipe("ran-lm", []).train
    assert settings
    sizes = {key: value for key, value in settings.model.items() if key != "type"}
    assert parameters_of(RanForCausalLM, vocab_size=267735, **sizes) == pytest.approx(142.2, abs=0.05)
    assert pytest.approx(150, rel=0.06) == 142.2


def test_adaptive_losses_are_those_of_the_log_probabilities() -> None:
    """Which are written a second time: shortlist and clusters, by the embeddings' own tables and projections."""
    model, ids = build(RanForCausalLM, **WORDS).double(), some_ids(2, 20)
    table, softmax = model.ran.embeddings.adaptive_embeddings, model.softmax
    hidden = F.silu(model.transform(model.ran(ids, causal=True).last_hidden_state))
    found = model(ids)
    scores = []
    for number, (start, end) in enumerate(model.config.clusters):
        of_words = hidden @ table.projections[number] @ table.tables[number].weight.T + softmax.bias[start:end]
        scores.append(of_words)
    of_clusters = hidden @ table.projections[0] @ softmax.cluster_weight.T + softmax.cluster_bias
    head = torch.cat([scores[0], of_clusters], dim=-1).softmax(-1)
    tails = [head[..., 10 + number, None] * tail.softmax(-1) for number, tail in enumerate(scores[1:])]
    expected = torch.cat([head[..., :10], *tails], dim=-1)
    torch.testing.assert_close(found.logits.exp(), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(expected.sum(-1), torch.ones(2, 20, dtype=torch.float64))
    following = some_ids(2, 20, seed=1)
    following[0, 3] = -100
    losses = model(ids, shift_labels=following).losses
    nll = -expected.log().gather(-1, following.clamp(min=0)[..., None]).squeeze(-1)
    torch.testing.assert_close(losses, nll.masked_fill(following == -100, 0), atol=1e-12, rtol=1e-12)
    shifted = model(ids, labels=ids)
    assert shifted.logits is None
    own = -expected[:, :-1].log().gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(shifted.loss, own, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, WORDS])
def test_input_embeddings_can_be_replaced(settings: dict[str, Any]) -> None:
    model, other = build(RanForCausalLM, **settings), build(RanForCausalLM, **settings)
    table = other.get_input_embeddings()
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table
    assert sum(module is table for module in model.modules()) == 1
    assert model.state_dict().keys() == other.state_dict().keys()


def test_adaptive_words_are_for_the_next_word_alone() -> None:
    with pytest.raises(ValueError, match="cutoffs are for models of the next word"):
        build(RanForMaskedLM, **WORDS)
    for values in ({"cutoffs": [25, 10]}, {"cutoffs": [40]}, {"cutoffs": [10], "div_val": 13}, {"div_val": 0}):
        with pytest.raises(ValueError, match=r"cutoffs|div_val"):
            tiny(**values)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return (scores if attn_mask is None else scores.masked_fill(~attn_mask, -1e4)).softmax(-1) @ v


@pytest.mark.parametrize("values", [*PROFILES, {"memory_review": False}, {"first_cell_residual": True}])
@pytest.mark.parametrize("length", [5, 8, 10, 24])
def test_flops_are_those_of_the_forward_pass(
    values: dict[str, Any], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", plain_attention)
    # A rest of two tokens is merged, for the last window is computed as a full one
    model = build(RanForMaskedLM, **{**values, "min_window_size": 3}).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(some_ids(3, length), masked_positions=torch.arange(7))
    expected = flops(model.config, length, {"rows": 3, "predicted": 7})
    assert 3 * counter.get_total_flops() == pytest.approx(expected, rel=1e-9)
