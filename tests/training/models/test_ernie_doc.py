"""ERNIE-Doc's model: golden numbers, the forms of its attention, and what its memory holds."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.models.ernie_doc import (
    ErnieDocConfig,
    ErnieDocForMaskedLM,
    ErnieDocForPreTraining,
    ErnieDocModel,
    attention_ernie_doc,
)
from reread.training.models.ernie_doc.spec import flops
from tests.conftest import GOLDEN

NUMBERS = GOLDEN / "ernie_doc.npz"
RENAMED = {
    "encoder.layers.": "encoder.layer.",
    "attn.q_proj": "attention.self.query",
    "attn.k_proj": "attention.self.key",
    "attn.v_proj": "attention.self.value",
    "attn.r_proj": "attention.self.position",
    "attn.t_proj": "attention.self.token_type",
    "attn.r_w_bias": "attention.self.content_bias",
    "attn.r_r_bias": "attention.self.position_bias",
    "attn.r_t_bias": "attention.self.token_type_bias",
    "attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "norm2": "output.LayerNorm",
    "ffn.linear1": "intermediate.dense",
    "ffn.linear2": "output.dense",
    "pos_emb.": "position_embeddings.",
    "token_type_emb.": "token_type_embeddings.",
    "word_emb.": "word_embeddings.",
    "norms.0": "word_layer_norm",
    "norms.1": "position_layer_norm",
    "norms.2": "token_type_layer_norm",
}
LENGTH, SLOTS = 6, 4


def tiny(**values: Any) -> ErnieDocConfig:
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"max_position_embeddings": LENGTH, "memory_length": SLOTS, "initializer_range": 0.2, "reorder_classes": 9}
    return ErnieDocConfig(**{**sizes, **more, "cls_token_id": 1, "sep_token_id": 2, **values})


def model(cls: Any = ErnieDocModel, seed: int = 0, **values: Any) -> Any:
    """In float64, with biases that a mistake could not hide behind."""
    torch.manual_seed(seed)
    made = cls(tiny(**values)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def segments(count: int, rows: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 40, (count, rows, length), generator=generator)


@torch.no_grad()
def read_all(encoder: Any, ids: Tensor, mems: Any = None, mask: Tensor | None = None) -> list[Any]:
    outputs = []
    for segment in ids:
        outputs.append(encoder(segment, mask, mems=mems))
        mems = outputs[-1].mems
    return outputs


def assert_near(ours: Any, theirs: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def test_golden_numbers_of_paddlenlp_are_met_over_four_segments() -> None:
    golden = np.load(NUMBERS)
    theirs, weights = json.loads(str(golden["config"])), {}
    for name in (key.removeprefix("weight/") for key in golden if key.startswith("weight/")):
        array = golden[f"weight/{name}"]
        weight = torch.tensor(array.T if array.ndim == 2 and "emb" not in name else array)
        for old, new in RENAMED.items():
            name = name.replace(old, new)  # noqa: PLW2901
        weights[name] = weight
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    config = ErnieDocConfig(**{k: theirs[k] for k in same}, memory_length=theirs["memory_len"], official_memory=True)
    encoder = ErnieDocModel(config).eval()
    encoder.load_state_dict(weights)
    mems = None
    for number in range(4):
        inputs = [torch.tensor(golden[f"{key}_{number}"]) for key in ("input_ids", "attention_mask", "type_ids")]
        output = encoder(*inputs, mems)
        mems = output.mems
        got = {"hidden": output.last_hidden_state, "pooled": output.pooler_output}
        got = {f"{key}_{number}": tensor for key, tensor in got.items()}
        got |= {f"memory_{number}_{layer}": tensor for layer, tensor in enumerate(mems)}
        for key, tensor in got.items():
            # both in float32, whose rounding of scores lowered by 1e8 is part of what padding attends to
            np.testing.assert_allclose(tensor.detach().numpy(), golden[key], atol=1e-4, rtol=0, err_msg=key)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, biases: tuple[Tensor, Tensor], term: Tensor | None, mask: Tensor | None
) -> Tensor:
    """As it is written in Transformer-XL: a product with all distances, shifted by padding and reshaping."""
    (u, w), (length, keys) = biases, (q.shape[1], k.shape[1])
    content = torch.einsum("binh,bjnh->bnij", q + u, k)
    position = torch.einsum("binh,pnh->bnip", q + w, r[:-1])
    padded = F.pad(position, (1, 0)).flatten(2)[..., length:]
    scores = (content + padded.view(*position.shape)[..., :keys]) / q.shape[-1] ** 0.5
    scores = scores + sum(added for added in (term, mask) if added is not None)
    return torch.einsum("bnij,bjnh->binh", scores.softmax(-1), v)


def with_gap(x: Tensor, gap: int, value: float, dim: int = 1) -> Tensor:
    """`x` with `gap` columns of `value` before the last."""
    last = x.shape[dim] - 1
    before, behind = x.split([last, 1], dim)
    shape = [gap if number == dim else size for number, size in enumerate(x.shape)]
    return torch.cat([before, x.new_full(shape, value), behind], dim)


@pytest.mark.parametrize("form", ["cpu", "bias"])
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(
    ("length", "slots", "gap"), [(1, 0, 0), (1, 3, 5), (7, 3, 0), (7, 3, 2), (64, 16, 0), (150, 33, 70)]
)
def test_fused_attention_is_the_plain_form(
    monkeypatch: pytest.MonkeyPatch, length: int, slots: int, gap: int, extras: bool, form: str
) -> None:
    """With a gap, what the plain form gives for rows that have so much padding before their last token."""
    if form == "bias":  # what is run where the kernel gives the bias a gradient
        monkeypatch.setattr(attention_ernie_doc, "_Attention", BiasForm)
    generator = torch.Generator().manual_seed(length)
    keys = length + slots
    shapes = [
        (2, length, 3, 4),
        (2, keys, 3, 4),
        (2, keys, 3, 4),
        (keys + length + 2 * gap, 3, 4),
        (3, 4),
        (3, 4),
        (2, 3, 1, keys),
    ]
    q, k, v, r, u, w, term = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    mask = torch.zeros(2, 1, 1, keys, dtype=torch.float64)
    mask[1, ..., : keys // 2] = attention_ernie_doc.MASKED
    added = (term, mask) if extras else (None, None)
    inputs = [q, k, v, r, u, w, *([term] if extras else [])]
    padded = with_gap(mask if extras else torch.zeros_like(mask), gap, attention_ernie_doc.MASKED, dim=3)
    padded_term = with_gap(term, gap, 7.0, dim=3) if extras else None
    theirs = plain_attention(*(with_gap(x, gap, 3.0) for x in (q, k, v)), r, (u, w), padded_term, padded)
    theirs = torch.cat([theirs[:, : length - 1], theirs[:, -1:]], dim=1)
    ours = attention_ernie_doc.relative_attention(q, k, v, r, (u, w), *added, dropout=0.0, gap=gap)
    assert_near(ours, theirs, 1e-12)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    for a, b in zip(*(torch.autograd.grad((z * weights).sum(), inputs) for z in (ours, theirs)), strict=True):
        assert_near(a, b, 1e-12)


class BiasForm:
    @staticmethod
    def apply(content: Tensor, q: Tensor, k: Tensor, v: Tensor, *bias: Tensor | None) -> Tensor:
        return attention_ernie_doc.fused(content, k, v, attention_ernie_doc._RelativeBias.apply(q, *bias))


def test_a_layer_is_the_papers_formula_pair_by_pair() -> None:
    """Types, biases, memory, and each pair's row of the table, read from the closed form."""
    encoder = model(type_vocab_size=2).double()
    attention = encoder.encoder.layer[0].attention.self
    hidden, memory = torch.randn(2, 5, 16).double().requires_grad_(), torch.randn(2, SLOTS, 16).double()
    types = torch.randint(2, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 1, 1, 9).double()
    mask[1, ..., 1] = attention_ernie_doc.MASKED
    table, kinds = encoder.embeddings.positions(5, SLOTS), encoder.embeddings.types()
    key_types = F.one_hot(types, 2).double()
    ours = attention(hidden, memory, table, kinds, key_types, mask)

    whole = encoder.embeddings.position_layer_norm(encoder.embeddings.position_embeddings.weight)
    distance = torch.arange(5)[:, None] - torch.arange(9) + SLOTS
    rows = torch.where(distance <= 0, -distance, LENGTH - 1 + distance)
    context = torch.cat([memory, hidden], dim=1)
    q = attention.query(hidden)
    products = (
        (q + attention.content_bias, attention.key(context)[:, None].expand(-1, 5, -1, -1)),
        (q + attention.position_bias, attention.position(whole[rows])[None]),
        (q + attention.token_type_bias, attention.token_type(kinds[types])[:, None]),
    )
    scores = sum((a[:, :, None] * b).unflatten(-1, (2, 8)).sum(-1) for a, b in products)
    a = (scores.permute(0, 3, 1, 2) / 8**0.5 + mask).softmax(-1)
    theirs = torch.einsum("bnij,bjnh->binh", a, attention.value(context).unflatten(-1, (2, 8))).flatten(2)
    assert_near(ours, theirs, 1e-12)
    learnt = [hidden, *attention.parameters(), *encoder.embeddings.token_type_layer_norm.parameters()]
    learnt.append(encoder.embeddings.position_embeddings.weight)
    for ours_grad, grad in zip(
        *(torch.autograd.grad(z.pow(3).sum(), learnt, retain_graph=True) for z in (ours, theirs)), strict=True
    ):
        assert_near(ours_grad, grad, 1e-11)


def test_a_shorter_segment_reads_the_same_rows_of_the_table() -> None:
    embeddings = model().embeddings
    full, short = embeddings.positions(LENGTH, SLOTS), embeddings.positions(2, SLOTS)
    assert torch.equal(short, full[LENGTH - 2 : LENGTH + SLOTS + 2])


def test_the_longest_segment_and_memory_are_what_the_table_ends_at() -> None:
    with pytest.raises(ValueError, match="a segment of 7 tokens, but max_position_embeddings is 6"):
        model()(segments(1, length=7)[0])
    with pytest.raises(ValueError, match="6 slots of memory before 6 tokens reach past"):
        model()(segments(1)[0], mems=(torch.ones(2, 6, 16),) * 2)
    with pytest.raises(ValueError, match="3 mems, but the model has 2"):
        model()(segments(1)[0], mems=(torch.ones(2, SLOTS, 16),) * 3)


def test_an_empty_memory_is_no_memory() -> None:
    encoder, ids = model(), segments(1)[0]
    nothing, empty = encoder(ids), encoder(ids, mems=encoder.empty_mems(2))
    assert_near(empty.last_hidden_state, nothing.last_hidden_state)
    assert_near(empty.mems, nothing.mems)
    official = model(official_memory=True)
    assert (official(ids).last_hidden_state - nothing.last_hidden_state).abs().max() > 1e-3


def test_what_a_lane_read_before_its_memory_was_emptied_changes_no_number() -> None:
    encoder, ids = model(), segments(4)
    other = ids.clone()
    other[:2, 0] = segments(2, seed=1)[:, 0]  # document A of lane 0; lane 1 goes on with its own
    after = []
    for text in (ids, other):
        mems = read_all(encoder, text[:2])[-1].mems
        for memory in mems:
            memory[0] = 0
        after.append(read_all(encoder, text[2:], mems))
    for ours, theirs in zip(*after, strict=True):
        assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)
        assert torch.equal(ours.pooler_output, theirs.pooler_output)
        assert all(torch.equal(a, b) for a, b in zip(ours.mems, theirs.mems, strict=True))
    fresh, undisturbed = read_all(encoder, ids[2:, :1]), read_all(encoder, ids[:, 1:])
    for ours, begun, gone_on in zip(after[0], fresh, undisturbed[2:], strict=True):
        assert_near(ours.last_hidden_state, torch.cat([begun.last_hidden_state, gone_on.last_hidden_state]))
    leaked = read_all(encoder, ids)[2].last_hidden_state - fresh[0].last_hidden_state
    assert leaked[0].abs().max() > 1e-3, "the test would see a leak"


@pytest.mark.parametrize("real", [1, 3, 5])
def test_padding_changes_nothing_and_is_not_remembered(real: int) -> None:
    encoder, before = model(), read_all(model(), segments(2))[-1].mems
    ids = segments(1, seed=3)[0]
    mask = (torch.arange(LENGTH) < real).long().expand(2, -1)
    padded, short = encoder(ids, mask, mems=before), encoder(ids[:, :real], mems=before)
    assert_near(padded.last_hidden_state[:, :real], short.last_hidden_state)
    assert_near(padded.mems, short.mems)
    own = torch.cat([before[1], short.last_hidden_state], dim=1)[:, -SLOTS:]
    assert_near(padded.mems[1], own)


def test_tokens_around_padding_are_remembered_in_their_order() -> None:
    encoder, ids = model(), segments(1)[0]
    mask = torch.tensor([[1, 1, 0, 0, 0, 1], [1] * 6])
    output = encoder(ids, mask)
    first = torch.cat([torch.zeros(1, 16), output.last_hidden_state[0, [0, 1, 5]]])
    assert torch.equal(output.mems[1], torch.stack([first, output.last_hidden_state[1, -SLOTS:]]))
    changed = ids.clone()
    changed[0, 2:5] = 7
    assert torch.equal(encoder(changed, mask).pooler_output, output.pooler_output)


def test_a_row_of_padding_alone_keeps_its_memory() -> None:
    encoder, before = model(), read_all(model(), segments(2))[-1].mems
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0] = 0
    after = encoder(segments(1)[0], mask, mems=before).mems
    assert all(
        torch.equal(new[0], old[0]) and not torch.equal(new[1], old[1]) for new, old in zip(after, before, strict=True)
    )


def test_layers_remember_what_the_recurrence_says() -> None:
    ids = segments(2)
    for recurrence, remembered in {"enhanced": [1, 2], "shifted": [0, 1], "enhanced-above-first": [0, 2]}.items():
        encoder = model(recurrence=recurrence)
        output = encoder(ids[0], output_hidden_states=True)
        assert len(output.mems) == 2
        for layer, memory in enumerate(output.mems):
            assert torch.equal(memory, output.hidden_states[remembered[layer]][:, -SLOTS:])
    none = model(recurrence="none")
    output = none(ids[0])
    assert output.mems == none.empty_mems(2) == ()
    assert torch.equal(none(ids[1], mems=output.mems).last_hidden_state, none(ids[1]).last_hidden_state)
    with pytest.raises(ValueError, match="1 mems, but the model has 0"):
        none(ids[0], mems=(torch.zeros(2, SLOTS, 16),))
    assert model(memory_length=0)(ids[0]).mems == ()


@pytest.mark.parametrize(("recurrence", "reached"), [("enhanced", [1, 2, 3, 4]), ("shifted", [1, 2]), ("none", [])])
def test_how_far_back_a_model_of_two_layers_knows(recurrence: str, reached: list[int]) -> None:
    encoder, ids = model(recurrence=recurrence), segments(5)
    other = ids.clone()
    other[0, :, -1] = 39 - other[0, :, -1] + 3
    hidden = [[output.last_hidden_state for output in read_all(encoder, text)] for text in (ids, other)]
    assert [n for n in range(1, 5) if not torch.equal(hidden[0][n], hidden[1][n])] == reached


def test_no_gradient_flows_into_memory() -> None:
    encoder = model()
    first, second = torch.full((2, LENGTH), 5), torch.full((2, LENGTH), 6)
    mems = encoder(first).mems
    assert not any(memory.requires_grad for memory in mems)
    encoder(second, mems=mems).last_hidden_state.pow(2).sum().backward()
    gradient = encoder.embeddings.word_embeddings.weight.grad
    assert gradient[6].any()
    assert not gradient[5].any()


def test_memory_has_the_type_of_its_own_rows_first_token() -> None:
    encoder, ids = model(), segments(2)
    mems = encoder(ids[0]).mems
    plain, ones = encoder(ids[1], mems=mems), encoder(ids[1], None, torch.ones(2, LENGTH, dtype=torch.long), mems)
    assert_near(ones.last_hidden_state, plain.last_hidden_state)  # one type alone says nothing
    types = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 0, 0, 1, 1, 1]])
    both = encoder(ids[1], None, types, mems).last_hidden_state
    assert (both - plain.last_hidden_state).abs().max() > 1e-3
    alone = encoder(ids[1, 1:], None, types[1:], tuple(memory[1:] for memory in mems)).last_hidden_state
    assert_near(both[1:], alone)
    official = model(official_memory=True)
    theirs = official(ids[1, 1:], None, types[1:], tuple(memory[1:] for memory in mems)).last_hidden_state
    assert_near(theirs, alone)
    of_others = official(ids[1], None, types, mems).last_hidden_state
    assert (of_others[1:] - alone).abs().max() > 1e-3


def test_types_may_be_of_any_integer_type() -> None:
    encoder, ids = model(), segments(1)[0]
    types = torch.arange(LENGTH).remainder(3).expand(2, -1)
    outputs = [encoder(ids, token_type_ids=types.to(kind)).last_hidden_state for kind in (torch.int32, torch.int64)]
    assert torch.equal(*outputs)


def test_the_epsilon_of_layer_norms_is_the_authors() -> None:
    pretraining = model(ErnieDocForPreTraining, layer_norm_eps=1e-12)
    norms = {name: module.eps for name, module in pretraining.named_modules() if isinstance(module, nn.LayerNorm)}
    others = {name for name, eps in norms.items() if eps == 1e-5}
    assert others == {name for name in norms if ".embeddings." in name or ".predictions." in name}
    assert {norms[name] for name in norms.keys() - others} == {1e-12}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("official", [False, True])
def test_a_row_of_padding_alone_and_huge_scores_stay_finite(dtype: torch.dtype, official: bool) -> None:
    encoder = model(official_memory=official).to(dtype)
    with torch.no_grad():
        for layer in encoder.encoder.layer:
            layer.attention.self.position.weight *= 50
    ids = segments(2)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0], mask[1, -1] = 0, 0
    mems = None
    for segment in ids:
        output = encoder(segment, mask, mems=mems)
        mems = output.mems
        output.last_hidden_state.float().pow(2).sum().backward()
    assert output.last_hidden_state.isfinite().all()
    assert all(memory.isfinite().all() and memory.dtype == dtype for memory in mems)
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("official", [False, True])
def test_gradients_under_autocast_are_near_those_without(official: bool) -> None:
    gradients = []
    for lowered in (False, True):
        encoder, ids = model(official_memory=official), segments(2)
        mask, types = torch.ones_like(ids[0]), ids[0] % 3
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            output = encoder(ids[1], mask, types, encoder(ids[0], mask, types).mems)
        output.last_hidden_state.float().pow(3).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
    assert F.cosine_similarity(*gradients, dim=0) > 0.99


def test_a_masked_score_fits_float16() -> None:
    """A kernel may not forgive a row of nothing but infinities, as CPUs do."""
    q, table = (
        torch.full((1, 2, 1, 4), 60.0).half(),
        torch.tensor([[-80.0], [80.0], [0.0], [0.0]]).expand(4, 4)[:, None],
    )
    added = torch.full((1, 1, 1, 2), attention_ernie_doc.MASKED).half()
    bias = attention_ernie_doc._relative_bias(q, table.half(), added)
    assert bias.isfinite().all()
    assert bias.min() < -50000


def batch() -> dict[str, Tensor]:
    ids = segments(1, rows=3)[0]
    mask = torch.ones_like(ids)
    mask[1, 3:5] = 0
    labels = ids.clone()
    labels[:, ::2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "reorder_labels": torch.tensor([-100, 8, 0])}


@pytest.mark.parametrize("cls", [ErnieDocForPreTraining, ErnieDocForMaskedLM])
def test_masked_positions_give_the_logits_and_loss_of_the_full_head(cls: type) -> None:
    heads, inputs = model(cls), batch()
    inputs.pop("reorder_labels")
    full = heads(**inputs)
    labels = inputs.pop("labels").flatten()
    positions = (labels != -100).nonzero().flatten()
    some = heads(**inputs, masked_positions=positions, labels=labels[positions])
    key = "logits" if cls is ErnieDocForMaskedLM else "prediction_logits"
    torch.testing.assert_close(some[key], full[key].flatten(0, 1)[positions])
    torch.testing.assert_close(some.loss, full.loss)
    half = heads.to(torch.bfloat16)(**inputs, masked_positions=positions)
    assert half[key].dtype == torch.float32


def test_the_loss_is_the_sum_of_those_whose_labels_are_given() -> None:
    heads, inputs = model(ErnieDocForPreTraining), batch()
    output = heads(**inputs)
    parts = [heads(**{k: v for k, v in inputs.items() if k != left_out}).loss for left_out in list(inputs)[-2:]]
    torch.testing.assert_close(output.loss, parts[0] + parts[1])
    torch.testing.assert_close(parts[0], F.cross_entropy(output.reorder_logits[1:], torch.tensor([8, 0])))


def test_masked_language_model_takes_the_weights_of_pretraining() -> None:
    source, inputs = model(ErnieDocForPreTraining), segments(2)
    target = ErnieDocForMaskedLM(source.config).double().eval()
    unexpected = target.load_state_dict(source.state_dict(), strict=False).unexpected_keys
    assert all(name.startswith(("ernie_doc.pooler.", "cls.segment_reorder.")) for name in unexpected)
    mems = source(inputs[0]).mems
    assert torch.equal(target(inputs[1], mems=mems).logits, source(inputs[1], mems=mems).prediction_logits)


def test_activation_checkpointing_changes_nothing() -> None:
    results = []
    for checkpointing in (False, True):
        heads = model(ErnieDocForPreTraining).train()
        if checkpointing:
            heads.gradient_checkpointing_enable()
            assert heads.ernie_doc.encoder.layer[0].gradient_checkpointing
        torch.manual_seed(1)  # dropout is on
        mems = heads(segments(1, rows=3)[0]).mems
        output = heads(**batch(), mems=mems)
        output.loss.backward()
        results.append([output.loss, *output.mems, *(p.grad for p in heads.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_it_trains_and_every_parameter_takes_part() -> None:
    heads, inputs = model(ErnieDocForPreTraining).train(), batch()
    types, mems = torch.arange(18).view(3, 6) % 3, heads(segments(1, rows=3, seed=5)[0]).mems
    optimizer = torch.optim.Adam(heads.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = heads(**inputs, token_type_ids=types, mems=mems).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert [name for name, p in heads.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_weights_begin_truncated_normal_and_biases_of_attention_too() -> None:
    fresh = ErnieDocForPreTraining(tiny(hidden_size=64, initializer_range=0.02))
    for name, parameter in fresh.named_parameters():
        if name.endswith("_bias") or (name.endswith("weight") and parameter.dim() == 2):
            assert 0.01 < parameter.std() < 0.02, name
            assert parameter.abs().max() <= 0.04, name
        else:
            assert torch.all(parameter == (1 if name.endswith("weight") else 0)), name


@pytest.mark.parametrize(
    "values",
    [
        {"recurrence": "both"},
        {"hidden_act": "swish"},
        {"num_attention_heads": 3},
        {"memory_length": -1},
        {"max_position_embeddings": 0},
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        tiny(**values)


def test_flops_are_counted_product_by_product() -> None:
    config = tiny(intermediate_size=24)
    per_layer = 2 * (6 * 16 * 16 * 2 + 10 * 16 * 16 * 2 + 6 * 16 * 24 * 2 + 3 * 6 * 10 * 16)
    head = 2 * (16 * 16 + 16 * 40)
    totals = {"rows": 5.0, "skimmed": 3.0, "predicted": 7.0}
    assert flops(config, 6, totals) == 3 * (5 * 2 * per_layer + 7 * head) + 3 * 2 * per_layer
