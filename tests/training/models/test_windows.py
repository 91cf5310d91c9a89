"""Texts longer than a window: the exported heads cut, read and merge them as the definition says."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reread.training.models import model_spec
from reread.training.models.heads import Text
from tests.training.models.test_heads import TASKS, body_of, build

CLS, SEP = 2, 3
READING = {"length": 12, "step": 3}


def reader(name: str, task: str, given: Mapping[str, Any] = {}, **reading: Any) -> Any:
    values = {"cls_token_id": CLS, "sep_token_id": SEP, "reading": {**READING, **reading}, "num_labels": 3, **given}
    return build(name, task, **values)


def framed(name: str, task: str, text: list[int], other: list[int]) -> tuple[list[int], list[int], int]:
    """A row of a text and, if not empty, another part, its types, and the place where the text begins."""
    if name == "ernie_doc":
        behind = [*other, SEP] if other else []
        types = [0] * (len(text) + 1) + [int(task != "answer")] * len(behind) + [0]
        return [*text, SEP, *behind, CLS], types, 0
    if name == "ran":
        before = [*other, SEP] if other else []
        return [*before, *text], [], len(before)
    if task == "answer":
        return [CLS, *other, SEP, *text, SEP], [0] * (len(other) + 2) + [1] * (len(text) + 1), len(other) + 2
    behind = [*other, SEP] if other else []
    return [CLS, *text, SEP, *behind], [0] * (len(text) + 2) + [1] * len(behind), 1


def inputs(name: str, rows: list[tuple[list[int], list[int], int]], left: bool = False) -> dict[str, Tensor]:
    """A batch of such rows, padded."""
    width = max(len(ids) for ids, _, _ in rows)
    batch: dict[str, Any] = {"input_ids": [], "attention_mask": [], "token_type_ids": []}
    for ids, types, _ in rows:
        fill = [0] * (width - len(ids))
        for key, values in zip(batch, (ids, [1] * len(ids), types), strict=True):
            batch[key].append([*fill, *values] if left else [*values, *fill])
    if name == "ran":
        batch.pop("token_type_ids")
    return {key: torch.tensor(value) for key, value in batch.items()}


def in_turn(model: Any, name: str, task: str, text: list[int], other: list[int], room: int) -> list[tuple[int, Tensor]]:
    """The begin of each window and its logits, one window after the other, by the encoder and the head's layer."""
    begins = [0]
    while begins[-1] + room < len(text):
        begins.append(begins[-1] + model.config.reading["step"])
    windows = [framed(name, task, text[begin : begin + room], other) for begin in begins]
    rounds = 1 + (name == "ernie_doc" and model.config.reading["retrospective"])
    mems = None
    found: list[tuple[int, Tensor]] = []
    for _ in range(rounds):
        found = []
        for begin, window in zip(begins, windows, strict=True):
            memory = {"mems": mems} if mems else {}
            encoded = body_of(model)(**inputs(name, [window]), **memory)
            mems = getattr(encoded, "mems", None)
            layer = model.qa_outputs if task == "answer" else model.classifier
            features = encoded.pooler_output if task in ("classify", "choose") else encoded.last_hidden_state
            if features is None:
                features = encoded.last_hidden_state.mean(1)
            found.append((begin, layer(features)[0]))
    return found


def by_context(found: list[tuple[int, Tensor]], first: int, tokens: int, room: int) -> Tensor:
    """[tokens, K]: each token's logits where min(left, right) + 0.01 * length is greatest."""
    chosen = []
    for token in range(tokens):
        scores = []
        for begin, _ in found:
            end = min(begin + room, tokens)
            inside = begin <= token < end
            scores.append(min(token - begin, end - 1 - token) + 0.01 * (end - begin) if inside else -1.0)
        best = scores.index(max(scores))
        chosen.append(found[best][1][first + token - found[best][0]])
    return torch.stack(chosen)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("nezha", {}),
        ("ernie_doc", {}),
        ("ran", {}),
        *((n, {"classifier_pooling": "mean"}) for n in ("nezha", "ernie_doc")),
    ],
)
@pytest.mark.parametrize("predict", ["mean", "last"])
@pytest.mark.parametrize("other", [[], [9, 8]])
@torch.no_grad()
def test_a_class_is_that_of_the_windows_together(
    name: str, pooling: dict[str, str], predict: str, other: list[int]
) -> None:
    text = torch.randint(5, 20, (31,), generator=torch.Generator().manual_seed(1)).tolist()
    model = reader(name, "classify", pooling, predict=predict, retrospective=True)
    row = framed(name, "classify", text, other)
    room = 12 - (len(row[0]) - 31)
    windows = torch.stack([logits for _, logits in in_turn(model, name, "classify", text, other, room)])
    assert len(windows) == 1 + -(-(31 - room) // 3)
    short = framed(name, "classify", text[:4], other)
    batch = inputs(name, [row, short])
    logits = model(**batch).logits
    expected = windows[-1] if predict == "last" else windows.softmax(-1).mean(0).log()
    torch.testing.assert_close(logits[0].softmax(-1), expected.softmax(-1), rtol=0, atol=1e-12)
    alone = model(**inputs(name, [short])).logits[0].softmax(-1)
    torch.testing.assert_close(logits[1].softmax(-1), alone, rtol=0, atol=1e-12)
    by_hand = in_turn(model, name, "classify", text[:4], other, room)[0][1]
    torch.testing.assert_close(alone, by_hand.softmax(-1), rtol=0, atol=1e-12)
    if predict == "mean":
        model.config.problem_type = "multi_label_classification"
        torch.testing.assert_close(model(**batch).logits[0].sigmoid(), windows.sigmoid().mean(0), rtol=0, atol=1e-12)
        model.config.problem_type = "regression"
        torch.testing.assert_close(model(**batch).logits[0], windows.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
@pytest.mark.parametrize("task", ["tag", "answer"])
@torch.no_grad()
def test_a_token_is_scored_once_where_it_has_most_context(name: str, task: str) -> None:
    text = torch.randint(5, 20, (31,), generator=torch.Generator().manual_seed(2)).tolist()
    other = [9, 8] if task == "answer" else []
    model = reader(name, task)
    row = framed(name, task, text, other)
    first, room = row[2], 12 - (len(row[0]) - 31)
    expected = by_context(in_turn(model, name, task, text, other, room), first, 31, room)
    short = framed(name, task, text[:5], other)
    for left in (False, True):
        output = model(**inputs(name, [row, short], left))
        logits = torch.stack([output.start_logits, output.end_logits], -1) if task == "answer" else output.logits
        torch.testing.assert_close(logits[0, first : first + 31], expected, rtol=0, atol=1e-12)
        fill = len(row[0]) - len(short[0])
        real = logits[1, fill:] if left else logits[1, : len(short[0])]
        alone = model(**inputs(name, [short]))
        alone = torch.stack([alone.start_logits, alone.end_logits], -1) if task == "answer" else alone.logits
        torch.testing.assert_close(real, alone[0], rtol=0, atol=1e-12)
        assert (logits[1] < -9000).all(-1).sum() == fill


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
@torch.no_grad()
def test_options_are_compared_window_by_window(name: str) -> None:
    """Cut at the same places, with the room that the longest option leaves."""
    text = torch.randint(5, 20, (31,), generator=torch.Generator().manual_seed(3)).tolist()
    others = [[9, SEP, 8], [9, SEP, 7, 6]]
    model = reader(name, "choose")
    rows = [framed(name, "choose", text, other) for other in others]
    room = 12 - (len(rows[1][0]) - 31)
    each = [in_turn(model, name, "choose", text, other, room) for other in others]
    z = torch.stack([torch.cat([logits for _, logits in found]) for found in each], dim=-1)  # [windows, options]
    batch = {key: value[None] for key, value in inputs(name, rows).items()}
    output = model(**batch, labels=torch.tensor([1]))
    torch.testing.assert_close(output.logits[0].softmax(-1), z.softmax(-1).mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(output.loss, -z.softmax(-1).mean(0)[1].log(), rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_first_window_knows_the_last_only_after_a_skim() -> None:
    text = list(range(5, 20)) * 3
    other = [*text[:-1], 6]
    for retrospective in (False, True):
        model = reader("ernie_doc", "tag", retrospective=retrospective)
        one, two = (model(torch.tensor([[*ids, SEP, CLS]])).logits[0, 0] for ids in (text, other))
        assert torch.equal(one, two) is not retrospective


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
@pytest.mark.parametrize("task", TASKS)
def test_a_text_in_windows_can_be_learned_from(name: str, task: str) -> None:
    text = list(range(5, 20)) * 2
    model = reader(name, task)
    others = [[], []] if task in ("classify", "tag") else [[9], [8]]
    batch = inputs(name, [framed(name, task, text, other) for other in others])
    labels: dict[str, Tensor] = {"labels": torch.tensor([1, 0])}
    if task == "choose":
        batch, labels = {key: value[None] for key, value in batch.items()}, {"labels": torch.tensor([1])}
    if task == "tag":
        labels = {"labels": torch.ones_like(batch["input_ids"])}
    if task == "answer":
        labels = {"start_positions": torch.tensor([20, 21]), "end_positions": torch.tensor([22, 23])}
    model(**batch, **labels).loss.backward()
    assert body_of(model).get_input_embeddings().weight.grad.isfinite().all()


@given(st.integers(0, 60), st.integers(1, 12), st.integers(1, 12))
def test_every_token_is_in_a_window_and_the_last_one_ends_the_text(tokens: int, room: int, step: int) -> None:
    windows = Text(torch.arange(tokens + 2), (1, tokens + 1)).cut(room, step)
    spans = [(begin - 1, end - 1) for begin, end in windows.spans]
    assert set(range(tokens)) == {token for begin, end in spans for token in range(begin, end)}
    assert spans[-1][1] == tokens
    assert all(end < tokens for _, end in spans[:-1])
    assert all(end - begin <= room for begin, end in spans)
    if step <= room:
        assert [begin for begin, _ in spans] == [step * number for number in range(len(spans))]
        assert len(spans) == (1 if tokens <= room else 1 + -(-(tokens - room) // step))
    logits = [
        torch.arange(len(positions))[:, None] + 100.0 * number for number, positions in enumerate(windows.positions)
    ]
    joined = windows.joined(logits, tokens + 3)[:, 0].tolist()
    assert (joined[0], joined[tokens + 1], joined[-1]) == (0, spans[0][1] - spans[0][0] + 1, -1e4)


def test_what_cannot_be_read_is_refused() -> None:
    ids = torch.full((1, 30), 7)
    for name in ("nezha", "ernie_doc"):
        with pytest.raises(ValueError, match="let the tokenizer add special tokens"):
            reader(name, "tag")(ids)
    crowded = torch.tensor([[CLS, *[7] * 12, SEP, *[8] * 12, SEP]])
    with pytest.raises(ValueError, match="leave it no room in 12"):
        reader("nezha", "answer")(crowded)
    model = reader("nezha", "classify")
    model.config.sep_token_id = None
    with pytest.raises(ValueError, match="sep_token_id is None"):
        model(crowded)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"length": 8, "step": 0}, "reading.step is a number of tokens, 1 or more, not 0"),
        ({"length": 0, "step": 2}, "reading.length is a number"),
        ({"length": 8, "step": 2, "predict": "first"}, "reading.predict is mean or last, not 'first'"),
        ({"length": 8, "step": 2, "retrospective": 1}, "reading.retrospective is true or false"),
        ({"length": 8, "stride": 2}, "not 'stride'"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, reading: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_spec(name).config(reading=reading)


def test_a_window_is_no_longer_than_the_model_reads() -> None:
    config = model_spec("ernie_doc").config
    with pytest.raises(ValueError, match=r"reading.length is 13, but the model reads at most 12"):
        config(max_position_embeddings=12, reading={"length": 13, "step": 2})
    values = config(max_position_embeddings=12, reading={"length": 12, "step": 2}).reading
    assert values == {"length": 12, "step": 2, "predict": "mean", "retrospective": False}
