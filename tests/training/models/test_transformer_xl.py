"""Transformer-XL: golden numbers, the reach of each memory, positions pair by pair, and the adaptive softmax."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from reread.preprocessing.errors import UserError
from reread.training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
from reread.training.models.transformer_xl.attention_transformer_xl import TransformerXLSelfAttention, sinusoids
from reread.training.models.transformer_xl.convert import config_from_transformers, from_transformers
from reread.training.models.transformer_xl.spec import flops
from tests.conftest import GOLDEN

NUMBERS = GOLDEN / "transfo_xl.npz"
SEGATRON = ("segatron-exact", "segatron-official")
SOFTMAXES: list[dict[str, Any]] = [
    {},
    {"d_embed": 8},
    {"cutoffs": [10, 20]},
    {"cutoffs": [10, 20], "d_embed": 8},
    {"cutoffs": [10, 20], "div_val": 2},
    {"cutoffs": [10, 20], "div_val": 2, "tie_projs": [True, False, True]},
]


def tiny(seed: int = 0, **values: Any) -> TransformerXLForCausalLM:
    """In evaluation mode, float64, with weights large enough for every term to show."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 30, "d_model": 12, "n_head": 2, "d_head": 4, "d_inner": 16, "n_layer": 2, "mem_len": 4}
    ranges = {"initializer_range": 0.4, "proj_initializer_range": 0.4}
    model = TransformerXLForCausalLM(TransformerXLConfig(**{**sizes, **ranges, **values})).double().eval()
    with torch.no_grad():
        model.softmax.bias.normal_()
    return model


def text(length: int, rows: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Sentences of some three tokens, paragraphs of some two sentences, different in each row."""
    generator = torch.Generator().manual_seed(seed)
    sentence_ends = torch.rand(rows, length, generator=generator) < 0.35
    return {
        "input_ids": torch.randint(30, (rows, length), generator=generator),
        "sentence_ends": sentence_ends,
        "paragraph_ends": sentence_ends & (torch.rand(rows, length, generator=generator) < 0.5),
    }


def fed(
    model: TransformerXLForCausalLM, batch: dict[str, Tensor], lengths: Sequence[int], mem_len: int | None = None
) -> tuple[Tensor, Any]:
    """Log-probabilities of a text fed in segments of these lengths, and the last mems."""
    mems, parts, start = None, [], 0
    for length in lengths:
        segment = {name: values[:, start : start + length] for name, values in batch.items()}
        output = model(**segment, mems=mems, mem_len=mem_len)
        parts.append(output.logits)
        mems, start = output.mems, start + length
    return torch.cat(parts, dim=1), mems


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.fixture
def golden() -> dict[str, Any]:
    return dict(np.load(NUMBERS))


def golden_weights(golden: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("weight/"): values for name, values in golden.items() if name.startswith("weight/")}


def test_golden_numbers_of_transformers_are_met(golden: dict[str, Any]) -> None:
    config = TransformerXLConfig(**config_from_transformers(json.loads(str(golden["config"]))))
    model = TransformerXLForCausalLM(config).double().eval()
    model.load_state_dict(from_transformers(golden_weights(golden)))
    mems = None
    for segment in range(4):
        output = model(torch.from_numpy(golden[f"input_ids_{segment}"]), mems)
        mems = output.mems
        assert_same(output.logits, torch.from_numpy(golden[f"log_probs_{segment}"]).double(), 2e-5)
        assert len(mems) == config.n_layer
        for layer, memory in enumerate(mems):
            assert_same(memory, torch.from_numpy(golden[f"mem_{segment}_{layer}"]).double(), 2e-5)


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_conversion_takes_any_softmax(softmax: dict[str, Any]) -> None:
    """Under the source's names, which hold each shared matrix twice; with div_val 1 all words are in one table."""
    model = tiny(**softmax).float()
    ours, config, embedding = model.state_dict(), model.config, model.transformer.embeddings
    source: dict[str, Tensor] = {}
    for name, values in ours.items():
        head, _, number = name.rpartition(".")
        if head == "transformer.embeddings.projections":
            source[f"transformer.word_emb.emb_projs.{number}"] = values
        elif head.startswith("transformer.embeddings.tables"):
            source[f"transformer.word_emb.emb_layers.{head[-1]}.weight"] = values
            source[f"crit.out_layers.{head[-1]}.weight"] = values.clone()
        elif name.startswith("softmax.cluster"):
            source[f"crit.{name.removeprefix('softmax.')}"] = values
        elif name != "softmax.bias" and not name.startswith("softmax.projections"):
            source[name] = values
    sizes = [end - start for start, end in embedding.borders]
    for table, bias in enumerate(ours["softmax.bias"].split(sizes)):
        source[f"crit.out_layers.{table}.bias"] = bias
    for cluster in range(len(config.clusters)):
        projection = ours.get(f"softmax.projections.{cluster}", embedding.projection(cluster))
        if projection is not None:
            source[f"crit.out_projs.{cluster}"] = projection.detach()
    converted = from_transformers(source)
    assert converted.keys() == ours.keys()
    assert all(torch.equal(converted[name], ours[name]) for name in ours)


def test_conversion_refuses_other_models(golden: dict[str, Any]) -> None:
    weights = golden_weights(golden)
    weights["crit.out_layers.1.weight"] = weights["crit.out_layers.1.weight"] + 1
    with pytest.raises(UserError, match=r"crit\.out_layers\.1\.weight"):
        from_transformers(weights)
    with pytest.raises(UserError, match="untie_r"):
        config_from_transformers({"untie_r": True})


@pytest.mark.parametrize(
    "values",
    [
        {"cutoffs": [40]},
        {"cutoffs": [20, 10]},
        {"div_val": 4, "cutoffs": [10, 20], "d_embed": 8},
        {"tie_projs": [True], "cutoffs": [10]},
        {"recurrence": "enhanced_recurrence"},
        {"same_length": True, "mem_len": 0},
        {"positions": "absolute"},
        {"initial_memory": "noise"},
        {"positions": "segatron-exact", "d_model": 4},
        {"d_model": 11},
        {"clamp_len": 0},
        {"mem_len": -1},
    ],
)
def test_contradictions_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        tiny(**values)


def test_mems_of_another_model_and_missing_ends_are_refused() -> None:
    batch = text(4)
    with pytest.raises(ValueError, match="mems"):
        tiny(n_layer=3)(batch["input_ids"], tiny()(batch["input_ids"]).mems)
    with pytest.raises(ValueError, match="sentence_ends"):
        tiny(positions="segatron-exact")(batch["input_ids"])


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_labels_give_the_log_probabilities_of_the_softmax(softmax: dict[str, Any]) -> None:
    model, batch = tiny(**softmax), text(12)
    ids, labels = batch["input_ids"], batch["input_ids"].roll(-1, dims=1)
    labels[1, 5:] = -100
    logits = model(ids).logits
    assert_same(logits.exp().sum(-1), torch.ones_like(ids).double())
    expected = F.nll_loss(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    output = model(ids, labels=labels)
    assert output.logits is None
    assert_same(output.losses, expected)
    assert_same(output.loss, expected.sum() / 17)
    gradients = [torch.autograd.grad(losses.sum(), list(model.parameters())) for losses in (output.losses, expected)]
    for name, ours, theirs in zip(dict(model.named_parameters()), *gradients, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_every_parameter_gets_a_gradient_though_no_word_is_in_a_cluster() -> None:
    model = tiny(cutoffs=[10, 20], div_val=2)
    ids = text(5)["input_ids"] % 10
    model(ids, labels=ids).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert model(ids, labels=torch.full_like(ids, -100)).loss == 0


def test_half_precision_loses_little() -> None:
    ids = text(8)["input_ids"]
    model = tiny(cutoffs=[10], div_val=2)
    exact = model(ids, labels=ids).losses
    output = model.half()(ids, labels=ids)
    assert output.losses.dtype == torch.float32
    assert output.mems[0].dtype == torch.float16
    assert_same(output.losses.double(), exact, 0.05)


def pairwise(model: TransformerXLForCausalLM, batch: dict[str, Tensor], past: int, mems: Sequence[Tensor]) -> Tensor:
    """Hidden states [B, T, D] by the formula as it is written, a vector R for every pair: [B, T, S, D].

    `batch` is the text of memory and segment; its first `past` tokens are in `mems`.
    """
    config = model.config
    ids = batch["input_ids"]
    rows, size = ids.shape
    ends = [torch.ones_like(ids), batch["sentence_ends"].long(), batch["paragraph_ends"].long()]
    numbers = torch.stack([end.cumsum(1) - end for end in ends], dim=-1)  # of each token, counted from the text's start
    distances = torch.zeros(rows, size - past, size, 3, dtype=torch.long)
    for i in range(size - past):
        for j in range(past + i + 1):
            if config.positions == "segatron-official":
                distances[:, i, j] = numbers[:, -1] - numbers[:, j + size - past - 1 - i]
            else:
                distances[:, i, j] = numbers[:, past + i] - numbers[:, j]
    if config.clamp_len is not None:
        distances[..., 0].clamp_(max=config.clamp_len)
    r = torch.cat([sinusoids(distances[..., n], width) for n, width in enumerate(config.widths)], dim=-1)
    later = torch.arange(size) > torch.arange(past, size)[:, None]
    transformer = model.transformer
    hidden = transformer.embeddings(ids[:, past:])
    for layer, memory in zip(transformer.layer, mems, strict=False):
        attention: TransformerXLSelfAttention = layer.attention.self
        keys = torch.cat([memory.transpose(0, 1), hidden], dim=1)
        q, k, v = (
            project(x).unflatten(-1, (config.n_head, -1))
            for project, x in ((attention.query, hidden), (attention.key, keys), (attention.value, keys))
        )
        pairs = attention.position(r).unflatten(-1, (config.n_head, -1))
        scores = torch.einsum("binh,bjnh->bnij", q + transformer.content_bias, k)
        scores = scores + torch.einsum("binh,bijnh->bnij", q + transformer.position_bias, pairs)
        a = (scores / config.d_head**0.5).masked_fill(later, -torch.inf).softmax(-1)
        z = torch.einsum("bnij,bjnh->binh", a, v).flatten(2)
        hidden = layer.attention.output(z, hidden)
        hidden = layer.output(layer.intermediate(hidden), hidden)
    return hidden


@pytest.mark.parametrize("values", [{"positions": name} for name in ("token", *SEGATRON)] + [{"clamp_len": 3}])
@pytest.mark.parametrize("recurrence", ["shifted", "enhanced"])
def test_attention_is_the_formula_pair_by_pair(values: dict[str, Any], recurrence: str) -> None:
    model, batch = tiny(recurrence=recurrence, mem_len=7, **values), text(12)
    before, segment = ({name: x[:, part] for name, x in batch.items()} for part in (slice(7), slice(7, None)))
    mems = model(**before).mems
    ours = model.transformer(mems=mems, **segment).last_hidden_state
    theirs = pairwise(model, batch, 7, mems)
    assert_same(ours, theirs)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    parameters = list(model.transformer.parameters())
    for a, b in zip(*(torch.autograd.grad((x * weights).sum(), parameters) for x in (ours, theirs)), strict=True):
        assert_same(a, b)


def test_official_and_exact_positions_agree_for_the_last_query_alone() -> None:
    batch, exact = text(9), tiny(n_layer=1, positions="segatron-exact")
    official = tiny(n_layer=1, positions="segatron-official")
    official.load_state_dict(exact.state_dict())
    ours, theirs = exact(**batch).logits, official(**batch).logits
    assert_same(ours[:, -1], theirs[:, -1])
    assert (ours - theirs)[:, :-1].abs().amax() > 1e-3


@pytest.mark.parametrize("positions", SEGATRON)
@pytest.mark.parametrize("ends", ["sentence_ends", "paragraph_ends"])
def test_sentences_and_paragraphs_count(positions: str, ends: str) -> None:
    model, batch = tiny(positions=positions), text(8)
    other = {**batch, ends: ~batch[ends]}
    assert (model(**batch).logits - model(**other).logits).abs().amax() > 1e-3


@pytest.mark.parametrize("positions", ["token", "segatron-exact"])
def test_a_text_in_segments_gives_what_it_gives_whole(positions: str) -> None:
    """With a memory that holds all of it, whatever the lengths; that of the configuration is too short."""
    model, batch = tiny(positions=positions), text(13)
    whole, _ = fed(model, batch, [13])
    assert_same(fed(model, batch, [3, 5, 1, 4], mem_len=13)[0], whole)
    assert (fed(model, batch, [3, 5, 1, 4])[0] - whole).abs().amax() > 1e-3


def test_evaluation_has_a_memory_of_its_own_length() -> None:
    batch, short, long = text(20), tiny(mem_len=4), tiny(mem_len=9)
    long.load_state_dict(short.state_dict())
    ours, mems = fed(short, batch, [5] * 4, mem_len=9)
    assert [len(memory) for memory in mems] == [9, 9]
    assert_same(ours, fed(long, batch, [5] * 4)[0])


@pytest.mark.parametrize("positions", ["token", *SEGATRON])
@pytest.mark.parametrize("recurrence", ["enhanced", "shifted", "none"])
def test_no_output_depends_on_later_tokens(recurrence: str, positions: str) -> None:
    model, batch = tiny(recurrence=recurrence, positions=positions), text(12)
    before = fed(model, batch, [4] * 3)[0]
    other = text(12, seed=1)
    later = {name: torch.cat([batch[name][:, :6], other[name][:, 6:]], dim=1) for name in batch}
    if positions == "segatron-official":  # its distances are to the segment's last token
        later = {**batch, "input_ids": later["input_ids"]}
    after = fed(model, later, [4] * 3)[0]
    assert_same(after[:, :6], before[:, :6])
    assert (after[:, 6] - before[:, 6]).abs().amax() > 1e-3


@pytest.mark.parametrize(
    ("recurrence", "reached"), [("none", 0), ("shifted", 2), ("enhanced", 5), ("enhanced-above-first", 5)]
)
def test_how_many_segments_back_a_memory_reaches(recurrence: str, reached: int) -> None:
    """Shifted, a layer adds one segment: two layers reach two back. Enhanced, there is no end (ERNIE-Doc, fig. 3)."""
    model, batch = tiny(recurrence=recurrence), text(24)
    before = fed(model, batch, [4] * 6)[0]
    batch["input_ids"][:, 0] = (batch["input_ids"][:, 0] + 1) % 30
    changed = (fed(model, batch, [4] * 6)[0] - before).abs().unflatten(1, (6, 4)).amax(dim=(0, 2, 3)) > 0
    assert changed.tolist() == [True] * (reached + 1) + [False] * (5 - reached)


def test_memory_holds_inputs_or_outputs_of_layers_without_their_gradient() -> None:
    ids = text(4)["input_ids"]
    for recurrence, remembered in {"shifted": [0, 1], "enhanced": [1, 2], "enhanced-above-first": [0, 2]}.items():
        model = tiny(recurrence=recurrence, dropout=0.0).train()
        states = [model.transformer.embeddings(ids)]
        for layer in model.transformer.layer:
            layer.register_forward_hook(lambda module, inputs, output, states=states: states.append(output))
        output = model(ids, output_hidden_states=True)
        for layer, memory in enumerate(output.mems):
            assert not memory.requires_grad
            assert_same(memory.transpose(0, 1), states[remembered[layer]])
        assert len(output.hidden_states) == 3
        for ours, seen in zip(output.hidden_states, states, strict=True):
            assert_same(ours, seen)
        logits, mems = model(ids, return_dict=False)
        assert_same(logits, output.logits)
        assert len(mems) == 2
    assert tiny(recurrence="none")(ids).mems == ()


@pytest.mark.parametrize("positions", ["token", "segatron-exact"])
def test_empty_slots_are_no_memory(positions: str) -> None:
    """A row whose memory is zeroed begins anew, beside one that goes on; the official way attends to the zeros."""
    model, official = tiny(positions=positions), tiny(positions=positions, official_memory=True)
    batch, following = text(3), text(3, seed=1)
    mems = model(**batch).mems
    assert all(len(memory) == 4 and not memory[0].any() for memory in mems)
    fresh, carried = model(**following).logits, model(**following, mems=mems).logits
    for memory in mems:
        memory[:, 0] = 0
    mixed = model(**following, mems=mems).logits
    assert_same(mixed[0], fresh[0])
    assert_same(mixed[1], carried[1])
    assert (fresh - carried).abs().amin(dim=(1, 2)).sum() > 0
    zeros = [torch.zeros_like(memory) for memory in mems]
    assert_same(official(**batch).logits, official(**batch, mems=zeros).logits)
    assert (official(**batch).logits - model(**batch).logits).abs().amax() > 1e-3


def test_same_length_and_clamp_rule_evaluation_alone() -> None:
    """Of five tokens, with mem_len 4 and one layer, the last does not see the first; another mem_len, another view."""
    ids = text(5)["input_ids"]
    other = ids.clone()
    other[:, 0] = (other[:, 0] + 1) % 30
    model = tiny(n_layer=1, same_length=True, dropout=0.0)
    changed = (model(ids).logits - model(other).logits).abs().amax(dim=(0, 2)) > 0
    assert changed.tolist() == [True] * 4 + [False]
    longer = (model(ids, mem_len=5).logits - model(other, mem_len=5).logits).abs().amax(dim=(0, 2)) > 0
    assert longer.all()
    plain, limited = tiny(dropout=0.0), tiny(same_length=True, clamp_len=2, dropout=0.0)
    assert (plain(ids).logits - limited(ids).logits).abs().amax() > 1e-3
    assert torch.equal(plain.train()(ids).logits, limited.train()(ids).logits)


@pytest.mark.parametrize("positions", ["token", *SEGATRON])
def test_recomputing_activations_changes_no_gradient(positions: str) -> None:
    batch, gradients = text(6), []
    for checkpointing in (False, True):
        model = tiny(positions=positions, dropatt=0.3, recurrence="enhanced").train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(1)
        mems = model(**batch).mems
        model(**batch, mems=mems, labels=batch["input_ids"]).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_a_saved_model_is_read_again(tmp_path: Path, softmax: dict[str, Any]) -> None:
    batch = text(6)
    model = tiny(positions="segatron-exact", recurrence="enhanced", **softmax)
    model.save_pretrained(tmp_path)
    again, info = TransformerXLForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert again.config.num_attention_heads == 2
    assert torch.equal(fed(again.double().eval(), batch, [3, 3])[0], fed(model, batch, [3, 3])[0])


def test_weights_begin_as_the_authors_say() -> None:
    config = TransformerXLConfig(vocab_size=4000, cutoffs=[2000], div_val=2, n_layer=1, d_model=128, d_inner=256)
    model = TransformerXLForCausalLM(config)
    layer = model.transformer.layer[0]
    for weight, deviation in (
        (model.transformer.embeddings.tables[0].weight, 0.02),
        (model.transformer.embeddings.projections[1], 0.01),
        (model.softmax.projections["0"], 0.01),
        (model.transformer.content_bias, 0.02),
        (layer.intermediate.dense.weight, 0.02),
        (layer.output.LayerNorm.weight, 0.02),
    ):
        assert weight.std().item() == pytest.approx(deviation, rel=0.2)
    assert layer.output.LayerNorm.weight.mean().item() == pytest.approx(1, abs=0.01)
    assert not model.softmax.bias.any()


def test_flops_are_those_of_the_matrix_products() -> None:
    """The counter sees W_r R too, which the formula leaves out: little beside 16 rows."""
    model = tiny(n_layer=2, d_model=32, d_head=16, d_inner=64, mem_len=16, vocab_size=300, dropout=0.0).train()
    ids = torch.randint(300, (16, 16), generator=torch.Generator().manual_seed(0))
    mems = model(ids).mems
    with FlopCounterMode(display=False) as counter:
        model(ids, mems, labels=ids).loss.backward()
    counted = flops(model.config, 16, {"rows": 16, "predicted": 256})
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.05)
