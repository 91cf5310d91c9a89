"""The chain over tags against the sum and the maximum over all sequences of tags."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reread.training.models.crf import best_tags, log_likelihood, rules_of, words_of
from reread.training.scoring.entities import entities

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", "B-X", "I-X", "E-X", "S-X"]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score(emissions: Tensor, transitions: Tensor, tags: tuple[int, ...]) -> float:
    """The definition, added up term by term."""
    total = sum(float(emissions[word, tag]) for word, tag in enumerate(tags))
    return total + sum(float(transitions[one, after]) for one, after in pairwise(tags))


@pytest.mark.parametrize("words", [1, 2, 5])
def test_likelihood_is_the_softmax_over_all_sequences(words: int) -> None:
    emissions, transitions = drawn(words, 3), drawn(3, 3, seed=1)
    scores = {tags: score(emissions, transitions, tags) for tags in product(range(3), repeat=words)}
    everything = np.logaddexp.reduce(list(scores.values()))
    for tags, own in scores.items():
        found = log_likelihood(emissions[None], torch.tensor([tags]), torch.ones(1, words, dtype=bool), transitions)
        assert float(found) == pytest.approx(own - everything, abs=1e-12)


def test_rows_of_other_lengths_and_words_between_pieces_do_not_matter() -> None:
    """Labelled positions are the words, wherever they stand in a row; a row without any adds nothing."""
    logits, transitions = drawn(3, 6, 4), drawn(4, 4, seed=1).requires_grad_()
    labels = torch.tensor([[-100, 2, -100, 0, 3, -100], [1, -100, -100, -100, -100, -100], [-100] * 6])
    found = log_likelihood(*words_of(logits, labels, 3), transitions)
    alone = [
        log_likelihood(
            logits[row, chosen][None], labels[row, chosen][None], torch.ones(1, len(chosen)) > 0, transitions
        )
        for row, chosen in ((0, [1, 3, 4]), (1, [0]))
    ]
    torch.testing.assert_close(found, torch.cat([*alone, torch.zeros(1, dtype=torch.float64)]), rtol=0, atol=1e-13)
    found.sum().backward()
    assert transitions.grad is not None and transitions.grad.isfinite().all()
    assert torch.autograd.gradcheck(
        lambda *x: log_likelihood(x[0], labels[:1, 1:5].clamp(min=0), torch.ones(1, 4) > 0, x[1]),
        (drawn(1, 4, 4).requires_grad_(), drawn(4, 4, seed=2).requires_grad_()),
    )


@given(st.integers(1, 5), st.integers(0, 1000), st.sampled_from([BIO, BIOES, ["NN", "VB", "O"]]))
def test_best_tags_are_the_best_of_all_sequences_that_the_scheme_allows(
    words: int, seed: int, labels: list[str]
) -> None:
    emissions, transitions = drawn(words, len(labels), seed=seed), drawn(len(labels), len(labels), seed=seed + 1)
    scheme = "BIOES" if labels is BIOES else "BIO"

    def allowed(tags: tuple[int, ...]) -> bool:
        """Whether tags are those of the entities that they name, by the scorer's strict reading of them."""
        names = [labels[tag] for tag in tags]
        if labels not in (BIO, BIOES):
            return True
        marked = ["O"] * len(names)
        for name, start, end in entities(names, scheme):
            inside = ["B", *"I" * (end - start - 1)]
            if scheme == "BIOES":
                inside = ["S"] if end - start == 1 else ["B", *"I" * (end - start - 2), "E"]
            marked[start:end] = [f"{letter}-{name}" for letter in inside]
        return marked == names

    best = max(
        filter(allowed, product(range(len(labels)), repeat=words)), key=lambda tags: score(emissions, transitions, tags)
    )
    assert tuple(best_tags(emissions, transitions, rules_of(labels)).tolist()) == best


def test_where_no_sequence_is_allowed_the_fewest_rules_are_broken() -> None:
    """Labels without O or S-: a text of one word has no tags that BIOES allows."""
    emissions = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    assert best_tags(emissions, torch.zeros(3, 3), rules_of(["B-X", "I-X", "E-X"])).tolist() == [2]
