"""A larger encoder that begins as a smaller one, beside loops that walk from the centre outwards."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from reread.preprocessing.errors import UserError
from reread.training.exchange.convert import convert
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.models.conversion import Conversion
from reread.training.models.tiling import repeated_layers, tiled

SMALL = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 6}
LARGE = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 9}
OWN: dict[str, dict[str, Any]] = {
    "bert": {"max_position_embeddings": 12},
    "modernbert": {"global_attn_every_n_layers": 2, "attention_bias": True, "global_rope_theta": 9.0},
    "electra": {"embedding_size": 6, "max_position_embeddings": 12},
    "nezha": {"max_relative_position": 4},
}


def walked(count: int, wanted: int) -> list[int]:
    """The old number at each place: the old ones in the middle, then one step after the other to both sides."""
    left = (wanted - count) // 2
    places = list(range(count))
    for _ in range(left):
        places.insert(0, places[0] - 1 if places[0] else count - 1)
    while len(places) < wanted:
        places.append(places[-1] + 1 if places[-1] < count - 1 else 0)
    return places


def looped(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    new = torch.empty(shape)
    rows = walked(len(weight), shape[0])
    for row, old in enumerate(rows):
        if len(shape) == 1:
            new[row] = weight[old]
            continue
        for column, other in enumerate(walked(weight.shape[1], shape[1])):
            new[row, column] = weight[old, other]
    return new


@pytest.mark.parametrize(
    ("old", "new"), [((5,), (5,)), ((5,), (8,)), ((3,), (17,)), ((4, 3), (7, 11)), ((2, 5), (2, 8)), ((1, 1), (3, 2))]
)
def test_weights_lie_in_the_centre_and_wrap_around_both_ways(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    weight = torch.arange(float(torch.Size(old).numel())).view(old)
    assert torch.equal(tiled(weight, new), looped(weight, new))


def test_layers_repeat_in_order_as_in_the_authors_code() -> None:
    """ModernBERT-large's 28 are round(22 i / 28), written out; at four times as many none is beyond the last."""
    assert repeated_layers(22, 28) == [
        *(0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10),
        *(11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 19, 20, 20, 21),
    ]
    assert repeated_layers(2, 8) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert repeated_layers(3, 3) == [0, 1, 2]


@pytest.fixture(params=OWN)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    """A small model of each kind, all of whose weights are random, in the folder `small`."""
    name: str = request.param
    spec = model_spec(name)
    torch.manual_seed(0)
    config = model_config(spec, {**SMALL, **OWN[name]}, 20, None, {"pad": 0, "cls": 1, "sep": 2})
    model = build_model(spec.converted, config, None, 0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "small")
    return name, model


def test_a_converted_model_is_the_larger_one_and_trains(source: tuple[str, Any], tmp_path: Path) -> None:
    name, small = source
    convert(tmp_path / "small", tmp_path / "out", name, **LARGE)
    stated = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: stated[key] for key in LARGE} == LARGE
    spec = model_spec(name)
    config = model_config(spec, {}, 20, tmp_path / "out")
    if name == "modernbert":
        assert config.layer_types == ["full_attention", "sliding_attention", "full_attention"]
        assert config.rope_parameters["full_attention"]["rope_theta"] == 9.0
    model: Any = build_model(spec.converted, config, tmp_path / "out", 1)
    weights = dict(small.named_parameters())
    for key, ours in model.named_parameters():
        origin = re.sub(r"(layers?)\.(\d+)\.", lambda found: f"{found[1]}.{[0, 1, 1][int(found[2])]}.", key)
        parts = 3 if "Wqkv" in key else 2 if ".Wi." in key else 1
        blocks = weights[origin].chunk(parts), ours.chunk(parts)
        for theirs, block in zip(*blocks, strict=True):
            assert torch.equal(block, looped(theirs.detach(), tuple(block.shape))), key
    ids = torch.arange(3, 11)[None]
    positions = torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), masked_positions=positions)
        loss = cross_entropy(output.logits.view(8, 20), ids[0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("source", ["modernbert"], indirect=True)
def test_a_norm_that_the_repeated_first_layer_has_not_is_the_next_layers(
    source: tuple[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "reread"):
        convert(tmp_path / "small", tmp_path / "out", "modernbert", num_hidden_layers=4)
    assert "layers.1.attn_norm.weight begins as that of layer 1, since layer 0 has none" in caplog.text
    assert "tiled to 4 layers, which begin as 0, 0, 1, 1" in caplog.text


@pytest.mark.parametrize("source", ["bert"], indirect=True)
def test_sizes_that_make_no_sense_are_one_line(source: tuple[str, Any], tmp_path: Path) -> None:
    for sizes, line in (
        ((2, 4, 2), "hidden_size: 4 is less than the source's 8, which is tiled to a larger model"),
        ((1, 8, 2), "num_hidden_layers: 1 is less than the source's 2"),
        ((2, 16, 2), "16 with 2 heads, but a head keeps the source's size, 4; choose num_attention_heads=4$"),
        ((2, 18, 4), "a head keeps the source's size, 4; choose hidden_size=16$"),
        ((2, 12, 3), "3 would cut heads in two, .* 2 lie in the middle; choose 4 with hidden_size=16$"),
    ):
        given = dict(zip(("num_hidden_layers", "hidden_size", "num_attention_heads"), sizes, strict=True))
        with pytest.raises(UserError, match=line) as raised:
            convert(tmp_path / "small", tmp_path / "out", "bert", **given)
        assert len(str(raised.value).splitlines()) == 1 and not (tmp_path / "out").exists()


def test_other_models_do_not_take_sizes_and_a_plan_knows_them() -> None:
    takers = "models that take it: nezha, bert, roberta, modernbert, electra$"
    for model in ("longformer", "ran"):
        with pytest.raises(UserError, match=f"--hidden-size: not for {model}; {takers}"):
            convert(Path("small"), Path("out"), model, hidden_size=8)
    assert Conversion(**LARGE).known() == LARGE
