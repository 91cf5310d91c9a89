"""The head of clusters against its equations written a second time, span by span and over all sets of antecedents."""

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.models.coreference import Coreference, link_losses
from reread.training.models.head_options import kept_spans


def scorer(**more: Any) -> Any:
    torch.manual_seed(0)
    own = {"span_words": 3, "spans_per_word": 1.0, "antecedents": 50, "head_size": 7, **more}
    config = SimpleNamespace(coreference=own, hidden_size=6, hidden_dropout_prob=0.0)
    return Coreference(config).double().eval()


def score(head: Any, layer: str, x: Tensor) -> Tensor:
    return getattr(head, f"{layer}_score")(getattr(head, layer)(x).relu())[0]


def vector(head: Any, states: Tensor, first: int, last: int) -> Tensor:
    inside = states[first : last + 1]
    mean = head.attention(inside)[:, 0].softmax(0) @ inside
    return torch.cat([states[first], states[last], mean, head.widths.weight[last - first]])


def bucket(distance: int) -> int:
    return [number for number, least in enumerate((1, 2, 3, 4, 5, 8, 16, 32, 64)) if least <= distance][-1]


def scores(head: Any, states: Tensor, spans: list[tuple[int, int]], i: int, j: int) -> tuple[Tensor, Tensor]:
    """The coarse and the whole score of span j as the antecedent of i."""
    g, h = (vector(head, states, *spans[one]) for one in (i, j))
    coarse = score(head, "mention", g) + score(head, "mention", h) + head.bilinear(g) @ h
    return coarse, coarse + score(head, "pair", torch.cat([g, h, g * h, head.distances.weight[bucket(i - j)]]))


@pytest.mark.parametrize(("ratio", "most"), [(1.0, 50), (0.7, 2)])
@torch.no_grad()
def test_the_best_spans_and_their_best_antecedents(ratio: float, most: int) -> None:
    head, states = scorer(spans_per_word=ratio, antecedents=most), torch.randn(9, 6, dtype=torch.float64)
    every = [(first, last) for first in range(9) for last in range(first, min(9, first + 3))]
    mention = {one: float(score(head, "mention", vector(head, states, *one))) for one in every}
    spans = sorted(sorted(every, key=lambda one: -mention[one])[: int(9 * ratio)])
    links = head(states)
    assert [tuple(one) for one in links.spans.tolist()] == spans
    for i in range(len(spans)):
        both = {j: scores(head, states, spans, i, j) for j in range(i)}
        best = sorted(both, key=lambda j: -float(both[j][0]))[:most]
        found = {
            int(j): float(value)
            for j, value in zip(links.antecedents[i], links.scores[i, 1:], strict=True)
            if value > -math.inf
        }
        assert found.keys() == set(best) and links.scores[i, 0] == 0
        for j in best:
            assert found[j] == pytest.approx(float(both[j][1]), abs=1e-12)


def test_the_loss_is_that_of_all_sets_of_antecedents() -> None:
    """-log of the summed probability of every choice of antecedents that is right throughout."""
    head, states = scorer(), torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    links = head(states)
    spans = [tuple(one) for one in links.spans.tolist()]
    gold = torch.tensor([[*spans[0], 1], [*spans[2], 1], [*spans[5], 1], [*spans[3], 0], [4, 9, 0], [-1, -1, -1]])
    cluster = {0: 1, 2: 1, 5: 1, 3: 0}
    of_pair = {(i, j): scores(head, states, spans, i, j)[1] for i in range(6) for j in range(i)}
    total, right = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    best, chosen = -math.inf, ()
    for antecedents in product(*([None, *range(i)] for i in range(6))):
        value = sum(
            (of_pair[i, j] for i, j in enumerate(antecedents) if j is not None),
            start=torch.zeros((), dtype=torch.float64),
        )
        wanted = [[j for j in range(i) if i in cluster and cluster.get(j) == cluster[i]] for i in range(6)]
        is_right = all((j in allowed) if allowed else j is None for j, allowed in zip(antecedents, wanted, strict=True))
        total, right = total + value.exp(), right + value.exp() * is_right
        if float(value.detach()) > best:
            best, chosen = float(value.detach()), antecedents
    losses, correct = link_losses(links, gold)
    expected = -(right / total).log()
    torch.testing.assert_close(losses.sum(), expected, rtol=0, atol=1e-12)
    made = torch.autograd.grad(losses.sum(), states, retain_graph=True)[0]
    torch.testing.assert_close(made, torch.autograd.grad(expected, states)[0], rtol=0, atol=1e-11)
    assert correct.tolist() == [
        (j in allowed) if allowed else j is None for j, allowed in zip(chosen, wanted, strict=True)
    ]


def test_a_text_of_a_word_has_a_span_without_antecedents() -> None:
    head = scorer()
    links = head(torch.randn(1, 6, dtype=torch.float64))
    assert links.spans.tolist() == [[0, 0]] and links.scores.tolist() == [[0.0]]
    losses, right = link_losses(links, torch.zeros(0, 3, dtype=torch.long))
    losses.sum().backward()
    assert losses.tolist() == [0.0] and right.tolist() == [True]
    assert [kept_spans(words, 0.4) for words in (0, 1, 2, 5, 100)] == [0, 1, 1, 2, 40]
