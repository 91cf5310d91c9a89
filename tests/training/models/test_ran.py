"""RAN's model: windows in parallel are windows in turn, and nothing sees what it must not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.models.ran import (
    RanConfig,
    RanForCausalLM,
    RanForMaskedLM,
    RanForSequenceClassification,
    RanModel,
)
from reread.training.models.ran.attention_ran import RanLayer
from reread.training.models.ran.windows_ran import RanWindows
from tests.training.models import ran_equations

WINDOW = 8
PROFILES: list[dict[str, Any]] = [{"profile": "rannet"}, {"profile": "paper"}]
LENGTHS = (24, 18, 17, 11, 8, 5, 1, 0)  # three windows; rests of two and one, merged; of three; one window; nothing


def tiny(**values: Any) -> RanConfig:
    sizes = {"vocab_size": 40, "hidden_size": 12, "num_attention_heads": 2, "head_size": 4, "window_size": WINDOW}
    shortest = 1 if values.get("profile") == "paper" else 3
    return RanConfig(**{**sizes, "min_window_size": shortest, "initializer_range": 0.4, **values})


def build(kind: type, seed: int = 0, **values: Any) -> Any:
    """Biases and layer norms are random too: at zero and one they could hide a mistake."""
    torch.manual_seed(seed)
    model = kind(tiny(**values)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float("LayerNorm.weight" in name), std=0.3)
    return model


def some_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 40, (rows, length), generator=torch.Generator().manual_seed(seed))


def mask_of(lengths: tuple[int, ...], width: int) -> Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def prefixes(*lengths: int, width: int) -> Tensor:
    return (torch.arange(width) >= torch.tensor(lengths)[:, None]).long()


def changed(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> list[list[int]]:
    """For each row the places whose vectors differ."""
    return [row.nonzero().flatten().tolist() for row in (a - b).abs().amax(-1) > tolerance]


def changed_at(ids: Tensor, places: Sequence[int]) -> Tensor:
    """A row for each place, which differs from `ids` [1, length] there alone."""
    rows = ids.repeat(len(places), 1)
    for row, place in enumerate(places):
        rows[row, place] = ids[0, place] % 39 + 1
    return rows


def same(ours: Tensor, theirs: Tensor) -> None:
    """Equal but for rounding, in float64."""
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


WINDOWINGS = [
    {"length": 5},
    {"length": 24},
    {"length": 18},  # the rest is merged into the second window
    {"length": 20},
    {"length": 24, "padded": True},
    {"length": 21, "causal": True},
    {"length": 24, "padded": True, "causal": True},
    {"length": 24, "padded": True, "prefix": True},
    {"length": 18, "padded": True, "official_padding": True},
]


@pytest.mark.parametrize("windowing", WINDOWINGS)
@pytest.mark.parametrize("profile", PROFILES)
def test_windows_in_parallel_are_windows_in_turn(profile: dict[str, Any], windowing: dict[str, Any]) -> None:
    """Outputs and gradients of a layer are those of the equations, one text and one window after the other."""
    official = windowing.get("official_padding", False)
    torch.manual_seed(0)
    layer = RanLayer(tiny(**profile, official_padding=official)).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    length = windowing["length"]
    mask = mask_of(LENGTHS, length).bool()
    tokens = mask if "padded" in windowing else None
    segments = prefixes(*[3, 8, 17, 5, 0, 5, 1, 0], width=length) if "prefix" in windowing else None
    causal = windowing.get("causal", False)
    hidden, cell = (torch.randn(*shape, 12, dtype=torch.float64).requires_grad_() for shape in ([8, length], [8]))
    ours = layer(hidden, cell, RanWindows.of(layer.config, hidden, tokens, segments, causal))
    theirs = []
    for row in range(8):
        own = length if tokens is None or official else LENGTHS[row]
        order = list(range(1, own + 1)) if causal else None
        if segments is not None:
            order = segments[row, :own].cumsum(0).tolist()
        theirs.append(
            ran_equations.layer(
                dict(layer.named_parameters()),
                hidden[row, :own],
                cell[row],
                paper=profile["profile"] == "paper",
                window=WINDOW,
                shortest=1 if order is not None else layer.config.min_window_size,
                head_size=4,
                order=order,
                real=mask[row].tolist() if official else None,
            )
        )
    of_rows = [
        [ours[0][row, : len(tokens)], ours[1][row], ours[2][row, : len(raws)]]
        for row, (tokens, _, raws) in enumerate(theirs)
    ]
    results = []
    for form in (of_rows, theirs):
        outputs = [x for row in form for x in row]
        weighted = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in outputs)
        inputs = [hidden, cell, *layer.parameters()]
        gradients = torch.autograd.grad(weighted, inputs, allow_unused=True, materialize_grads=True)
        results.append([*outputs, *gradients])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 8, 20, 24, 27])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_model_is_the_papers_equations(profile: dict[str, Any], length: int) -> None:
    """Equations 1 to 11 and what profile `rannet` has instead, written a second time."""
    model, ids = build(RanModel, **profile).double(), some_ids(1, length)
    output = model(ids)
    expected = ran_equations.model(
        dict(model.named_parameters()), ids[0], model.config, paper=profile["profile"] == "paper"
    )
    got = (output.last_hidden_state[0], output.pooler_output[0], output.cell[0])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_cell_stays_as_large_over_256_windows(profile: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = RanModel(tiny(window_size=2, min_window_size=1, num_hidden_layers=1, **profile)).eval()
    ids = some_ids(1, 2 * 256)
    sizes = [model(ids[:, : 2 * windows]).cell.square().mean().sqrt().item() for windows in (1, 16, 256)]
    assert max(sizes) < 1.5 * min(sizes) < 2, sizes


def handed_on(length: int) -> int:
    """Numbers that the functions of a layer's backward pass hand to one another, for one row."""
    layer = RanLayer(tiny(memory_review=False))
    hidden = torch.randn(1, length, 12, requires_grad=True)
    windows = RanWindows.of(layer.config, hidden, torch.ones(1, length, dtype=torch.bool), None, causal=False)
    z = layer(hidden, torch.zeros(1, 12), windows)[0].sum()
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


def test_gradients_of_windows_grow_as_the_length() -> None:
    assert handed_on(512) < 4.2 * handed_on(128), "four times the length"


@pytest.mark.parametrize("more", [0, 1, 7, 8, 30])
@pytest.mark.parametrize("profile", [*PROFILES, {"pooling": "mean", "cell_pooling": "mean"}, {"cell_pooling": "max"}])
def test_padding_changes_nothing(profile: dict[str, Any], more: int) -> None:
    model, ids = build(RanModel, **profile).double(), some_ids(8, 24 + more)
    together = model(ids, mask_of(LENGTHS, 24 + more))
    for row, length in enumerate(LENGTHS[:-1]):
        alone = model(ids[row : row + 1, :length])
        same(together.last_hidden_state[row, :length], alone.last_hidden_state[0])
        same(together.pooler_output[row], alone.pooler_output[0])
        same(together.cell[row], alone.cell[0])


def test_tokens_after_padding_are_read_and_padding_between_is_not() -> None:
    model, ids = build(RanModel).double(), some_ids(1, 24)
    mask = torch.ones_like(ids)
    mask[0, 8:16] = 0  # a whole window
    output = model(ids, mask)
    without = torch.cat([ids[:, :8], ids[:, 16:]], dim=1)
    same(output.last_hidden_state[0, [*range(8), *range(16, 24)]], model(without)[0][0])
    same(output.cell, model(without).cell)


@pytest.mark.parametrize("prefix", [0, 8])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_window_of_padding_between_is_not_reviewed_in_order(profile: dict[str, Any], prefix: int) -> None:
    model, ids, segments = build(RanForCausalLM, **profile).double(), some_ids(1, 32), prefixes(prefix, width=32)
    mask = torch.ones_like(ids)
    mask[0, 8:16] = 0
    output = model(ids, attention_mask=mask, segment_ids=segments)
    kept = [*range(8), *range(16, 32)]
    without = model(ids[:, kept], segment_ids=segments[:, kept])
    same(output.logits[:, kept], without.logits)
    same(output.mems[0], without.mems[0])


def test_official_padding_counts() -> None:
    ids, mask = some_ids(1, 24), mask_of((11,), 24)
    official, own = (build(RanModel, official_padding=value).double() for value in (True, False))
    torch.testing.assert_close(official(ids)[0], own(ids)[0], atol=0, rtol=0)
    padded = official(ids, mask)
    assert (padded[0] - own(ids, mask)[0])[:, :11].abs().max() > 0.01
    assert (padded.cell - official(ids[:, :18], mask[:, :18]).cell).abs().max() > 0.01, "a window of padding counts"
    pooled = official.pooler(padded.last_hidden_state, padded.cell, padded.cell[:, None], None, None)
    same(padded.pooler_output, pooled)
    alike = build(RanModel, profile="paper", official_padding=True)(ids, mask).last_hidden_state
    assert changed(alike, alike[:, -1:]) == [list(range(11))], "padding reviews all cells alike"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", [*PROFILES, {"official_padding": True}, {"pooling": "mean", "cell_pooling": "mean"}])
def test_a_row_of_padding_alone_gives_finite_numbers(values: dict[str, Any], dtype: torch.dtype) -> None:
    ids, mask = some_ids(8, 24), mask_of(LENGTHS, 24)
    model = build(RanForSequenceClassification, **values).to(dtype)
    output = model(ids, mask, labels=torch.arange(8) % 2)
    causal = build(RanForCausalLM, **values).to(dtype)
    following = causal(ids, attention_mask=mask, segment_ids=prefixes(*range(8), width=24), labels=ids)
    (output.loss + following.loss).backward()
    assert output.logits.isfinite().all() and following.logits.isfinite().all() and following.mems[0].isfinite().all()
    gradients = [p.grad for p in [*model.parameters(), *causal.parameters()] if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("profile", PROFILES)
def test_large_activations_do_not_overflow_in_float16(profile: dict[str, Any]) -> None:
    """Their squares and dot products do: these are taken in float32."""
    layer = build(RanForMaskedLM, **profile).ran.encoder.layer[0].half()
    hidden = torch.randn(2, 20, 12, generator=torch.Generator().manual_seed(0)).half() * 4000
    windows = RanWindows.of(layer.config, hidden, None, None, False)
    half, probed = layer(hidden, hidden[:, 0], windows), layer(hidden, hidden[:, 0], windows, True)
    exact = layer.float()(hidden.float(), hidden[:, 0].float(), windows, True)
    for ours, expected in zip((*half[:3], *probed), (*exact[:3], *exact), strict=True):
        torch.testing.assert_close(ours.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("profile", PROFILES)
def test_autocast_trains(profile: dict[str, Any]) -> None:
    model, ids = build(RanForMaskedLM, **profile).train(), some_ids(8, 24)
    exact = model.eval()(ids, mask_of(LENGTHS, 24), labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, mask_of(LENGTHS, 24), labels=ids).loss
    loss.backward()
    assert abs(loss - exact) < 0.05 * exact
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("profile", [*PROFILES, {"memory_review": False}, {"layer_residual": True}])
def test_no_token_sees_what_comes_after_it(profile: dict[str, Any]) -> None:
    model, ids = build(RanForCausalLM, num_hidden_layers=3, **profile).double(), some_ids(1, 29)
    places = (0, 3, 7, 8, 15, 20, 28)
    for place, seen in zip(places, changed(model(changed_at(ids, places)).logits, model(ids).logits), strict=True):
        assert place <= min(seen)
        later = set(range((place // WINDOW + 1) * WINDOW, 29))
        assert later <= set(seen), "windows after it know of it"


@pytest.mark.parametrize("profile", PROFILES)
def test_what_comes_after_a_token_need_not_be_there(profile: dict[str, Any]) -> None:
    """Neither as tokens, nor as padding, nor by where the windows end."""
    model, ids = build(RanForCausalLM, **profile).double(), some_ids(1, 24)
    causal, lengths = model(ids), tuple(range(1, 24))
    padded = model(ids.repeat(23, 1), attention_mask=mask_of(lengths, 24))
    for row, length in enumerate(lengths):
        short = model(ids[:, :length])
        same(short.logits, causal.logits[:, :length])
        same(padded.logits[row : row + 1, :length], causal.logits[:, :length])
        same(padded.mems[0][:, row : row + 1], short.mems[0])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("prefix", [5, 8, 10])
def test_a_prefix_need_not_know_its_target(profile: dict[str, Any], prefix: int) -> None:
    model, ids = build(RanForCausalLM, **profile).double(), some_ids(1, 24)
    segments = prefixes(prefix, width=24)
    expected, lengths = model(ids, segment_ids=segments).logits, tuple(range(prefix, 24))
    mask = mask_of(lengths, 24)
    padded = model(ids.repeat(len(lengths), 1), attention_mask=mask, segment_ids=segments * mask).logits
    for row, length in enumerate(lengths):
        short = model(ids[:, :length], segment_ids=segments[:, :length])
        same(short.logits, expected[:, :length])
        same(padded[row : row + 1, :length], expected[:, :length])


@pytest.mark.parametrize("profile", PROFILES)
def test_memory_carries_over_segments_and_zeros_are_empty(profile: dict[str, Any]) -> None:
    model, first, second = build(RanForCausalLM, **profile).double(), some_ids(2, 20), some_ids(2, 20, seed=1)
    mems = model(first).mems
    assert len(mems) == 1 and mems[0].shape == model.empty_mems(2)[0].shape == (2, 2, 12) and not mems[0].requires_grad
    with_memory = model(second, mems).logits
    assert changed(with_memory, model(second).logits) == [list(range(20))] * 2
    other = first.clone()
    other[0, 2] = first[0, 2] % 39 + 1
    assert changed(model(second, model(other).mems).logits, with_memory) == [list(range(20)), []]
    emptied = (mems[0].index_fill(model.mems_dim, torch.tensor([1]), 0),)
    half = model(second, emptied).logits
    same(half[1], model(second).logits[1])
    same(half[0], with_memory[0])
    same(model(second, model.empty_mems(2)).logits, model(second).logits)


def test_a_segment_of_padding_alone_leaves_the_memory_as_it_is() -> None:
    for profile in PROFILES:
        model, ids = build(RanForCausalLM, **profile), some_ids(2, 20)
        mems = model(ids).mems
        after = model(ids, mems, attention_mask=mask_of((20, 0), 20)).mems
        torch.testing.assert_close(after[0][:, 1], mems[0][:, 1], atol=0, rtol=0)
        assert (after[0][:, 0] - mems[0][:, 0]).abs().max() > 0.01
        assert not model(ids, attention_mask=mask_of((20, 0), 20)).mems[0][:, 1].any()


@pytest.mark.parametrize("prefix", [16, 18, 23])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_prefix_is_read_in_both_directions_and_its_target_in_one(profile: dict[str, Any], prefix: int) -> None:
    """Two windows are prefix from end to end; the cell of one that begins with the target is nothing for the prefix."""
    model, ids = build(RanForCausalLM, num_hidden_layers=3, **profile).double(), some_ids(1, 32)
    segments = prefixes(prefix, width=32)
    others = model(changed_at(ids, range(32)), segment_ids=segments.repeat(32, 1)).logits
    seen = [set(places) for places in changed(others, model(ids, segment_ids=segments).logits)]
    for place in (0, 5, 15):
        assert seen[place] == set(range(32))
    for place in range(16, prefix):
        assert set(range(16, prefix)) <= seen[place] <= set(range(16, 32))
    for place in range(prefix, 32):
        assert min(seen[place]) >= place


def test_sums_of_segment_ids_tell_who_sees_whom() -> None:
    """As rannet has it: a run of 0 after a 1 is seen in both directions by itself, in a window."""
    model, ids = build(RanForCausalLM, memory_review=False), some_ids(1, 6)
    segments = torch.tensor([[0, 0, 1, 0, 0, 1]])
    base = model(ids, segment_ids=segments).logits
    for place, expected in ((1, [0, 1, 2, 3, 4, 5]), (2, [2, 3, 4, 5]), (4, [2, 3, 4, 5]), (5, [5])):
        other = ids.clone()
        other[0, place] = ids[0, place] % 39 + 1
        assert changed(model(other, segment_ids=segments).logits, base) == [expected]


def test_without_masks_every_token_reaches_every_other() -> None:
    model, ids = build(RanModel), some_ids(1, 24)
    for place in (0, 12, 23):
        other = ids.clone()
        other[0, place] = ids[0, place] % 39 + 1
        assert changed(model(other)[0], model(ids)[0]) == [list(range(24))]


def test_memory_needs_a_mask() -> None:
    model = build(RanModel)
    with pytest.raises(ValueError, match="set causal or segment_ids"):
        model(some_ids(1, 5), mems=model.empty_mems(1))
    with pytest.raises(ValueError, match=r"one tensor \[2, 1, 12\], not \[\[2, 3, 12\]\]"):
        model(some_ids(1, 5), causal=True, mems=model.empty_mems(3))


@pytest.mark.parametrize("values", [PROFILES[0], {**PROFILES[1], "layer_residual": True}])
def test_the_last_layers_cell_is_handed_to_the_next_window(values: dict[str, Any]) -> None:
    """Against a plain loop: each window through all layers, the cell up through them and on to the next window."""
    paper, lengths = values["profile"] == "paper", (24, 18, 11, 5)
    model, ids = build(RanModel, window_handover=True, num_hidden_layers=3, **values).double(), some_ids(4, 24)
    output = model(ids, mask_of(lengths, 24), output_attentions=True, output_hidden_states=True)
    plain = model(ids, mask_of(lengths, 24))
    same(output.last_hidden_state[0], plain.last_hidden_state[0])
    assert [states.shape for states in output.attentions] == [(4, 2, 24, 1 + WINDOW + (0 if paper else 2))] * 3
    assert len(output.hidden_states) == 4
    for row, length in enumerate(lengths):
        tokens, cell = ran_equations.window_by_window(
            dict(model.named_parameters()), ids[row, :length], model.config, paper=paper
        )
        same(plain.last_hidden_state[row, :length], tokens)
        same(plain.cell[row], cell)
    with pytest.raises(ValueError, match="a cell shows later tokens"):
        model(ids, causal=True)
    with pytest.raises(ValueError, match="would show the words to predict"):
        RanForCausalLM(tiny(window_handover=True))
