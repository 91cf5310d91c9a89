"""Longformer's model: golden numbers, transformers' own as a rival, and what training relies on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LongformerForMaskedLM as TheirLongformerForMaskedLM

from reread.training.models.longformer import (
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerModel,
    attention_longformer,
)
from reread.training.models.longformer.attention_longformer import Chunks, Sight
from reread.training.models.longformer.spec import COPIED, flops, longest
from tests.conftest import GOLDEN

VOCABULARY, PAD = 40, 1


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_longformer, "CHUNK", 16)
    monkeypatch.setattr(attention_longformer, "SCORES", 3000)


def tiny(**values: Any) -> LongformerConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    kept = {"intermediate_size": 24, "max_position_embeddings": 202, "attention_window": [8, 4], "type_vocab_size": 1}
    return LongformerConfig(**{**sizes, **kept, "layer_norm_eps": 1e-5, "initializer_range": 0.2, **values})


def model_of(seed: int = 0, **values: Any) -> LongformerForMaskedLM:
    torch.manual_seed(seed)
    return LongformerForMaskedLM(tiny(**values)).eval()


def batch(length: int, rows: int = 3, share: float = 0.0, seed: int = 0) -> dict[str, Tensor]:
    """The second row is half padding; a token is global with probability `share`, none is in the last row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, (length + 1) // 2 :] = 0
    ids[mask == 0] = PAD
    labels = ids.masked_fill((torch.rand(rows, length, generator=generator) > 0.3) | (mask == 0), -100)
    labels[:, 0] = ids[:, 0]
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if share:
        chosen = (torch.rand(rows, length, generator=generator) < share).long()
        chosen[-1] = 0
        chosen[0, 0] = 1
        inputs["global_attention_mask"] = chosen
    return inputs


def weights(golden: Any, old: str = "", new: str = "") -> dict[str, Tensor]:
    return {
        name.removeprefix("weight/").replace(old, new): torch.tensor(golden[name])
        for name in golden
        if name.startswith("weight/")
    }


def close(ours: Any, theirs: Any, name: str, tolerance: float = 2e-5) -> None:
    """Ours in float64; theirs are of float32."""
    np.testing.assert_allclose(torch.as_tensor(ours).detach(), theirs, atol=tolerance, rtol=0, err_msg=name)


def test_golden_numbers_of_transformers_are_met() -> None:
    golden = np.load(GOLDEN / "longformer.npz")
    model = LongformerForMaskedLM(LongformerConfig(**json.loads(str(golden["config"])))).double().eval()
    model.load_state_dict(weights(golden))
    names = ("input_ids", "attention_mask", "global_attention_mask", "labels")
    inputs = {name: torch.tensor(golden[name]) for name in names}
    output = model(**inputs, output_hidden_states=True)
    output.loss.backward()
    attention = model.longformer.encoder.layer[0].attention.self
    close(output.loss, golden["loss"], "loss")
    close(output.logits, golden["logits"], "logits")
    close(output.hidden_states[-1], golden["hidden"], "hidden")
    close(attention.query.weight.grad, golden["grad_query_0"], "query")
    close(attention.query_global.weight.grad, golden["grad_query_global_0"], "query_global")
    without = model(inputs["input_ids"], inputs["attention_mask"]).logits
    close(without, golden["logits_without_global"], "logits_without_global")


def test_robertas_weights_give_robertas_outputs_while_the_window_covers_the_text() -> None:
    golden = np.load(GOLDEN / "roberta.npz")
    config = LongformerConfig(**json.loads(str(golden["config"])), attention_window=64)
    model = LongformerForMaskedLM(config).double().eval()
    missing, unexpected = model.load_state_dict(weights(golden, "roberta.", "longformer."), strict=False)
    assert not unexpected and all(name.split(".")[-2] in COPIED for name in missing)
    ids = torch.tensor(golden["input_ids"])
    close(model(ids, (ids != PAD).long()).logits, golden["logits"], "logits")
    model.longformer.encoder.layer[0].attention.self.window = 5
    assert np.abs(model(ids).logits.detach().numpy() - golden["logits"]).max() > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("length", "window"), [(1, [8, 4]), (7, [8, 4]), (33, [8, 4]), (101, [16, 4]), (160, 64)])
def test_transformers_own_model_gives_the_same(length: int, window: Any, share: float) -> None:
    ours = model_of(attention_window=window).double()
    theirs = TheirLongformerForMaskedLM(tiny(attention_window=window)).eval()  # which float64 turns into NaN
    theirs.load_state_dict(ours.state_dict())
    inputs = batch(length, share=share)
    results = [model(**inputs, output_hidden_states=True) for model in (ours, theirs)]
    for name in ("loss", "logits"):
        close(results[0][name], results[1][name].detach(), name)
    for a, b in zip(*(result.hidden_states for result in results), strict=True):
        close(a, b.detach(), "hidden states")
    expected = dict(theirs.named_parameters())
    for result in results:
        result.loss.backward()
    for name, parameter in ours.named_parameters():
        gradient = expected[name].grad
        if parameter.grad is None:  # transformers leaves zeros where a global token met nothing
            assert gradient is None or not gradient.any(), name
        else:
            close(parameter.grad, gradient, name)


def test_a_2_in_the_attention_mask_is_a_global_token() -> None:
    model, inputs = model_of(), batch(70, share=0.1)
    merged = inputs["attention_mask"] * (1 + inputs["global_attention_mask"])
    assert torch.equal(model(inputs["input_ids"], merged).logits, model(**inputs).logits)
    assert not torch.equal(model(inputs["input_ids"], inputs["attention_mask"]).logits, model(**inputs).logits)


def sight_of(length: int, padded: bool, share: float) -> Sight:
    inputs = batch(length, share=share)
    marks = inputs["attention_mask"] if padded else torch.ones(3, length, dtype=torch.long)
    return Sight(marks * (1 + inputs.get("global_attention_mask", torch.zeros_like(marks))))


def plain_attention(attention: Any, hidden: Tensor, sight: Sight) -> Tensor:
    """What it computes as it is written, with L x L scores."""
    places = torch.arange(hidden.shape[1])
    real = torch.ones(hidden.shape[:2], dtype=torch.bool) if sight.real is None else sight.real
    chosen = torch.zeros_like(real)
    if sight.positions is not None:
        chosen = chosen.scatter(1, sight.positions, sight.chosen)
    near = ((places - places[:, None]).abs() <= attention.window) | chosen[:, None]
    results = []
    for seen, suffix in ((near & real[:, None], ""), (real[:, None].expand_as(near), "_global")):
        projections = (getattr(attention, name + suffix) for name in ("query", "key", "value"))
        q, k, v = (project(hidden).unflatten(-1, (-1, attention.head_size)) for project in projections)
        scores = torch.einsum("binh,bjnh->bnij", q, k) / attention.head_size**0.5
        a = scores.masked_fill(~seen[:, None], -1e9).softmax(-1)
        results.append(torch.einsum("bnij,bjnh->binh", a, v).flatten(2))
    return torch.where(chosen[..., None], results[1], results[0]) * real[..., None]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("length", "window"), [(5, 1), (16, 30), (18, 1), (19, 1), (60, 5), (97, 24), (200, 40)])
def test_chunks_are_the_plain_form(length: int, window: int, share: float, padded: bool) -> None:
    attention = model_of().longformer.encoder.layer[0].attention.self.double()
    attention.window, sight = window, sight_of(length, padded, share)
    hidden = torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
    ours, theirs = attention(hidden, sight), plain_attention(attention, hidden, sight)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    inputs = [hidden, *attention.parameters()]
    gradients = [torch.autograd.grad((z * weights).sum(), inputs, allow_unused=True) for z in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(torch.zeros_like(b) if a is None else a, b, atol=1e-10, rtol=0)


def saved_bytes(attention: Any, length: int, sight: Sight) -> int:
    """Distinct bytes that autograd keeps of the attention of one row."""
    kept: dict[int, Tensor] = {}  # holds them, that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hidden = torch.randn(1, length, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        z = attention(hidden, sight)
    assert z.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("share", [0, 1])
def test_memory_grows_as_the_length(share: int, dropout: float) -> None:
    attention = model_of().longformer.encoder.layer[0].attention.self.train()
    attention.dropout = dropout
    kept = []
    for length in (256, 1024):
        marks = torch.ones(1, length, dtype=torch.long)
        marks[0, 0] += share
        kept.append(saved_bytes(attention, length, Sight(marks)))
    assert kept[1] < 4.2 * kept[0], "four times the length"
    assert kept[0] > 256 * 16 * 4 * 3, "queries, keys and values are kept at least"


def handed_on(attention: Any, length: int) -> int:
    """Numbers that the functions of the backward pass hand to one another, for one row."""
    z = attention(torch.randn(1, length, 16, requires_grad=True), Sight(None)).sum()
    sizes: list[int] = []
    nodes, met = [z.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in met:
            met.add(node)
            node.register_hook(lambda gradients, _: sizes.extend(g.numel() for g in gradients if g is not None))
            nodes.extend(parent for parent, _ in node.next_functions)
    z.backward()
    return sum(sizes)


def test_gradients_of_overlapping_chunks_grow_as_the_length() -> None:
    attention = model_of().longformer.encoder.layer[0].attention.self
    assert handed_on(attention, 1024) < 4.2 * handed_on(attention, 256), "four times the length"


def test_layers_of_one_window_share_a_mask_and_a_row_within_it_needs_none() -> None:
    sight, like = Sight(None), torch.zeros(2, 70, 16)
    mask = sight.local(Chunks(70, 4), like)
    assert mask is sight.local(Chunks(70, 4), like)
    assert sight.local(Chunks(70, 2), like) is not mask
    assert Sight(None).local(Chunks(5, 4), like[:, :5]) is None
    assert Sight(torch.ones(2, 5)).local(Chunks(5, 4), like[:, :5]) is None
    assert Sight(None).local(Chunks(6, 4), like[:, :6]) is not None


def test_global_projections_work_only_for_global_tokens() -> None:
    model, called = model_of(), []
    for name, module in model.named_modules():
        if name.endswith("_global"):
            module.register_forward_hook(lambda *_: called.append(1))
    inputs = batch(40)
    model(**inputs, global_attention_mask=torch.zeros_like(inputs["input_ids"]))
    assert not called
    model(**batch(40, share=0.1))
    assert len(called) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [9, 90])
def test_a_row_of_padding_alone_gives_no_nan(length: int, dtype: torch.dtype) -> None:
    model = model_of().to(dtype).train()  # type: ignore[arg-type]
    inputs = batch(length, share=0.2)
    inputs["attention_mask"][2] = 0
    inputs["global_attention_mask"][2] = 1
    with torch.no_grad():  # scores as large as float16 stands
        model.longformer.encoder.layer[0].attention.self.query.weight.mul_(100)
    output = model(**inputs)
    output.loss.backward()
    assert output.logits.isfinite().all() and output.logits.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_logits_in_half_precision_are_near_the_exact_ones(share: float) -> None:
    model, inputs = model_of(), batch(90, share=share)
    exact = model(**inputs).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert abs(model(**inputs).loss - exact) < 0.05 * exact
    assert abs(model.to(torch.bfloat16)(**inputs).loss - exact) < 0.05 * exact  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_padding_changes_nothing_for_other_tokens(share: float) -> None:
    model, inputs = model_of().double(), batch(90, share=share)
    short = {name: tensor[1:2, :45] for name, tensor in inputs.items() if name != "labels"}
    short.pop("attention_mask")
    torch.testing.assert_close(model(**inputs).logits[1:2, :45], model(**short).logits, atol=1e-12, rtol=0)


def test_without_global_tokens_nothing_passes_beyond_the_windows() -> None:
    model, ids = model_of().double(), batch(80)["input_ids"][:1]
    changed = ids.clone()
    changed[0, 40] = 2 if ids[0, 40] != 2 else 3
    moved = (model(ids).logits - model(changed).logits).abs().amax((0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == list(range(34, 47))  # windows of 4 and 2 to each side


@pytest.mark.slow
def test_dropout_drops_probabilities_of_windows_and_of_global_rows() -> None:
    attention = model_of().longformer.encoder.layer[0].attention.self
    attention.dropout, sight = 0.3, sight_of(40, True, 0.1)
    hidden = torch.randn(3, 40, 16)
    torch.manual_seed(1)
    exact, mean = attention(hidden, sight), torch.zeros(3, 40, 16)
    attention.train()
    for _ in range(300):
        mean += attention(hidden, sight).detach() / 300
    assert 1e-3 < (mean - exact).abs().max() < 0.5
    assert (mean - exact).abs().mean() < 0.05


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_activation_checkpointing_changes_nothing(share: float) -> None:
    results = []
    for checkpointing in (False, True):
        model = model_of(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert model.longformer.encoder.layer[0].gradient_checkpointing
        torch.manual_seed(1)
        loss = model(**batch(60, share=share)).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_attention_takes_its_heads_from_the_tensor(share: float) -> None:
    """What tensor parallelism relies on: half of the rows of the projections give half of the output."""
    attention = model_of().double().longformer.encoder.layer[0].attention.self
    hidden = torch.randn(3, 60, 16, dtype=torch.float64)
    full = attention(hidden, sight_of(60, True, share))
    for linear in attention.children():
        linear.weight, linear.bias = (torch.nn.Parameter(p[:8]) for p in (linear.weight, linear.bias))
    torch.testing.assert_close(attention(hidden, sight_of(60, True, share)), full[..., :8])


def test_masked_positions_give_the_logits_and_loss_of_the_full_head() -> None:
    model, inputs = model_of().double(), batch(50)
    full = model(**inputs)
    labels = inputs.pop("labels").flatten()
    positions = (labels != -100).nonzero().flatten()
    some = model(**inputs, masked_positions=positions, labels=labels[positions])
    torch.testing.assert_close(some.logits, full.logits.flatten(0, 1)[positions])
    torch.testing.assert_close(some.loss, full.loss)


def test_transformers_loads_what_is_saved_and_what_it_saves_is_loaded(tmp_path: Path) -> None:
    ours, ids = model_of(), batch(50)["input_ids"]
    ours.save_pretrained(tmp_path / "ours")
    theirs, info = TheirLongformerForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    # in float32; compared more closely above
    torch.testing.assert_close(theirs.eval()(ids).logits, ours(ids).logits, atol=1e-4, rtol=0)
    theirs.save_pretrained(tmp_path / "theirs")
    again, info = LongformerForMaskedLM.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(again.eval()(ids).logits, ours(ids).logits)
    assert again.lm_head.decoder.weight is again.longformer.embeddings.word_embeddings.weight
    assert again.lm_head.decoder.bias is again.lm_head.bias


def test_positions_end_with_their_table_and_padding_takes_none() -> None:
    model = model_of(max_position_embeddings=34)
    assert longest(model.config) == 32
    ids = torch.full((2, 40), 5)
    ids[:, 32:] = PAD
    assert model(ids, (ids != PAD).long()).logits.isfinite().all()
    ids[1, 32] = 5
    with pytest.raises(ValueError, match="33 tokens in a row, but positions end at 32"):
        model(ids)


def test_the_pooler_reads_the_first_token() -> None:
    torch.manual_seed(0)
    model, ids = LongformerModel(tiny()).double().eval(), batch(30)["input_ids"]
    output = model(ids)
    expected = torch.tanh(model.pooler.dense(output.last_hidden_state[:, 0]))
    torch.testing.assert_close(output.pooler_output, expected)
    assert len(model(ids, output_hidden_states=True, return_dict=False)[2]) == 3


@pytest.mark.parametrize("window", [7, 0, [8], [8, 8, 8], [8, -2]])
def test_windows_that_fit_no_layers_are_refused(window: Any) -> None:
    with pytest.raises(ValueError, match="attention_window"):
        LongformerForMaskedLM(tiny(attention_window=window))


def test_a_model_trains() -> None:
    model, inputs = model_of().train(), batch(60, share=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_flops_count_windows_and_not_rows() -> None:
    def attention(length: int, window: int) -> float:
        wide, none = (tiny(attention_window=w, num_hidden_layers=1) for w in (window, 2))
        totals = {"rows": 2.0, "predicted": 5.0}
        return (flops(wide, length, totals) - flops(none, length, totals)) / (3 * 4 * 2 * length * 16)

    assert attention(100, 16) == 17 - 3
    assert attention(12, 64) == 12 - 3
    base = LongformerConfig(vocab_size=50265, max_position_embeddings=4098)
    layers = 12 * 2 * 4096 * (12 * 768**2 + 2 * 513 * 768)
    assert flops(base, 4096, {"rows": 1.0, "predicted": 0.0}) == 3 * layers
