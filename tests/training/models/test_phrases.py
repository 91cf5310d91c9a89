"""The head of key phrases against its equations written a second time, in float64."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.models.test_heads import MODELS, body_of, build, rows

OUTSIDE = -1e4
SPECIAL = {"cls_token_id": 2, "sep_token_id": 3}


def by_hand(model: Any, states: Tensor, words: list[int]) -> dict[tuple[int, int], Tensor]:
    """(token at which a phrase begins, words of it) -> its logit, from states [L, D] and the words' first tokens."""
    found = {}
    for count in range(1, model.num_labels + 1):
        layer = model.convolutions[count - 1]
        weight = layer.weight.view(16, count, 16).transpose(1, 2)  # out, in, place
        if len(words) >= count:
            runs = F.conv1d(states[words].T[None], weight, layer.bias)[0].T.clamp(min=0)
            logits = runs @ model.classifier.weight[count - 1] + model.classifier.bias[count - 1]
            found |= {(words[at], count): logits[at] for at in range(len(words) - count + 1)}
    return found


def batch_of() -> tuple[dict[str, Tensor], list[list[int]]]:
    batch = rows(12, 9, 5)
    words = [[1, 2, 4, 5, 8, 10], [1, 3, 5], [3]]
    batch["word_starts"] = torch.zeros_like(batch["input_ids"])
    for row, places in enumerate(words):
        batch["word_starts"][row, places] = 1
    batch["word_starts"][1, 11] = 1  # of padding, which counts for nothing
    return batch, words


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_loss_are_those_of_convolutions_over_words(name: str) -> None:
    model = build(name, "phrases", num_labels=4)
    batch, words = batch_of()
    states = body_of(model)(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    if name == "ernie_doc":  # where padding stands changes nothing in the head
        states = torch.stack(
            [
                F.pad(
                    body_of(model)(batch["input_ids"][row : row + 1, :length]).last_hidden_state[0],
                    (0, 0, 0, 12 - length),
                )
                for row, length in enumerate((12, 9, 5))
            ]
        )
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (3, 12, 4), generator=generator)
    expected = torch.full((3, 12, 4), OUTSIDE, dtype=torch.float64)
    losses = []
    for row, places in enumerate(words):
        logits = by_hand(model, states[row], places)
        assert len(logits) == sum(max(0, len(places) - count + 1) for count in range(1, 5))
        for at, count in itertools.product(range(12), range(1, 5)):
            if (at, count) not in logits:
                labels[row, at, count - 1] = -100
                continue
            expected[row, at, count - 1] = logits[at, count]
            p = 1 / (1 + (-logits[at, count]).exp())
            losses.append(-(p if labels[row, at, count - 1] else 1 - p).log())
    output = model(**batch, labels=labels)
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(output.loss, torch.stack(losses).mean(), rtol=0, atol=1e-11)
    output.loss.backward()
    gradients = {key: p.grad for key, p in model.named_parameters() if key.startswith(("convolutions", "classifier"))}
    assert len(gradients) == 10 and all(gradient is not None and gradient.any() for gradient in gradients.values())


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_without_word_starts_each_token_that_is_not_special_is_a_word(name: str) -> None:
    model = build(name, "phrases", num_labels=2, **SPECIAL)
    batch = rows(12, 9)
    given = (batch["input_ids"] > 3) & (batch["attention_mask"] == 1)
    expected = model(**batch, word_starts=given).logits
    assert torch.equal(model(**batch).logits, expected)
    assert ((expected > OUTSIDE)[..., 0] == given).all()
    ids = batch["input_ids"][:1]
    assert torch.equal(model(ids).logits, model(ids, word_starts=ids > 3).logits)


@pytest.mark.parametrize("name", ["nezha", "ran", "ernie_doc"])
@torch.no_grad()
def test_a_longer_text_is_read_in_windows_each_word_where_it_has_most_context(name: str) -> None:
    """Every second token begins a word; windows of 12 tokens that move by 3."""
    reading = {"length": 12, "step": 3, "predict": "mean", "retrospective": False}
    model = build(name, "phrases", num_labels=3, reading=reading, **SPECIAL)
    text = torch.randint(5, 20, (31,), generator=torch.Generator().manual_seed(2))
    head, tail = {"nezha": ([2], [3]), "ran": ([], []), "ernie_doc": ([], [3, 2])}[name]
    room, first = 12 - len(head) - len(tail), len(head)
    starts = torch.arange(31) % 2 == 0

    def framed(part: Tensor, fill: Any) -> Tensor:
        around = [torch.tensor(ids if fill is None else [0] * len(ids), dtype=torch.long) for ids in (head, tail)]
        return torch.cat([around[0], part.long(), around[1]])[None]

    whole = model(framed(text, None), word_starts=framed(starts, 0)).logits[0, first : first + 31]
    found, mems = [], None
    for begin in range(0, 31 - room + 3, 3):
        part = slice(begin, min(begin + room, 31))
        more = {"mems": mems} if mems else {}
        model.config.reading = None
        output = model(framed(text[part], None), word_starts=framed(starts[part], 0), **more)
        mems = output.mems
        found.append((part, output.logits[0, first : first + part.stop - part.start]))
    for token in range(31):
        context = [
            min(token - part.start, part.stop - 1 - token) + 0.01 * (part.stop - part.start)
            if part.start <= token < part.stop
            else -1
            for part, _ in found
        ]
        part, logits = found[context.index(max(context))]
        torch.testing.assert_close(whole[token], logits[token - part.start], rtol=0, atol=1e-12)
    assert ((whole > OUTSIDE)[:, 0] == starts).all()
