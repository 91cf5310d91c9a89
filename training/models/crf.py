"""A linear-chain conditional random field over the tags of a text (Lafferty et al. 2001).

Copied beside exported weights.

The score of the tags y of N words is sum_t E[t, y_t] + sum_t A[y_(t-1), y_t], with emissions E [N, K], which are the
logits of a model, and learned transitions A [K, K]. Their probability is the softmax over all K^N sequences.

Shapes: B rows, L tokens of a row, N words at most, K tags.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FORBIDDEN = -1e4
"""Added to the score of a transition that `Rules` forbid: finite, so that the best tags break as few as they must."""


class Rules(NamedTuple):
    """Which tags may begin a text [K], follow one another [K, K], and end a text [K]; bool."""

    first: Tensor
    follows: Tensor
    last: Tensor


def rules_of(labels: Sequence[str]) -> Rules:
    """The rules of BIO, or of BIOES if a tag begins with E- or S-; everything is allowed if a label is of neither."""
    letters, types = [label[:1] for label in labels], [label[2:] for label in labels]
    if not all(label == "O" or (label[:1] in "BIES" and label[1:2] == "-" and label[2:]) for label in labels):
        free = torch.ones(len(labels), dtype=torch.bool)
        return Rules(free, free.expand(len(labels), -1), free)
    is_open = torch.tensor([letter in "BI" for letter in letters])
    continues = torch.tensor([letter in "IE" for letter in letters])
    same = torch.tensor([[one == other for other in types] for one in types])
    joined, ends = is_open[:, None] & continues & same, set(letters) & {"E", "S"}
    if ends:
        return Rules(~continues, joined | (~is_open[:, None] & ~continues), ~is_open)
    return Rules(~continues, joined | ~continues, torch.ones_like(continues))


def words_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of each row that have a label (not -100), moved to its front.

    logits [B, L, K], labels int [B, L] -> emissions [B, N, K], tags [B, N], and which of them are there, bool [B, N].
    """
    labelled = labels != -100
    order = torch.sort(~labelled, dim=1, stable=True).indices[:, : max(1, int(labelled.sum(1).amax()))]
    emissions = logits.gather(1, order[..., None].expand(-1, -1, logits.shape[-1]))
    there = labelled.gather(1, order)
    return emissions, labels.gather(1, order).where(there, 0), there


def log_likelihood(emissions: Tensor, tags: Tensor, there: Tensor, transitions: Tensor) -> Tensor:
    """log p(tags) of each row [B]; 0 for a row without words.

    emissions [B, N, K], tags int [B, N], there bool [B, N] (the first words of a row), transitions [K, K].
    """
    # The score of the tags
    score = (emissions.gather(2, tags[..., None])[..., 0] * there).sum(1)
    score = score + (transitions[tags[:, :-1], tags[:, 1:]] * there[:, 1:]).sum(1)
    # The logarithm of the sum over all sequences, by the forward algorithm
    sums = emissions[:, 0]
    for emission, is_there in zip(emissions.unbind(1)[1:], there.unbind(1)[1:], strict=True):
        further = (sums[:, :, None] + transitions).logsumexp(1) + emission
        sums = torch.where(is_there[:, None], further, sums)
    return torch.where(there[:, 0], score - sums.logsumexp(1), 0.0)


@torch.no_grad()
def best_tags(emissions: Tensor, transitions: Tensor, rules: Rules) -> Tensor:
    """The tags [N] with the highest score among those that obey the rules (Viterbi); emissions [N, K], N above 0."""
    emissions, transitions = emissions.cpu(), transitions.to("cpu", emissions.dtype)
    first, follows, last = ((~one).to(emissions.dtype) * FORBIDDEN for one in rules)
    scores, before = emissions[0] + first, []
    for emission in emissions[1:]:
        best = (scores[:, None] + transitions + follows).max(0)
        scores = best.values + emission
        before.append(best.indices)
    found = [(scores + last).argmax()]
    for previous in reversed(before):
        found.append(previous[found[-1]])
    return torch.stack(found[::-1])
