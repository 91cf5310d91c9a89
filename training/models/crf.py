"""The head of tags, and a linear-chain conditional random field over the tags of a text (Lafferty et al. 2001).

Copied beside exported weights.

The score of the tags y of N words is sum_t E[t, y_t] + sum_t A[y_(t-1), y_t], with emissions E [N, K], which are the
logits of a model, and learned transitions A [K, K]. Their probability is the softmax over all K^N sequences.

Shapes: B rows, L tokens of a row, N words at most, K tags.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .blocks import at_least_float32
from .heads import TaskHead

FORBIDDEN = -1e4
"""Added to the score of a transition that `Rules` forbid: finite, so that the best tags break as few as they must."""


class Rules(NamedTuple):
    """Which tags may begin a text [K], follow one another [K, K], and end a text [K]; bool."""

    first: Tensor
    follows: Tensor
    last: Tensor


def rules_of(labels: Sequence[str]) -> Rules:
    """The rules of BIO, or of BIOES (BMES) if a tag begins with E- or S-; all is allowed if a label is of neither."""
    letters, types = [label[:1].replace("M", "I") for label in labels], [label[2:] for label in labels]
    if not all(label == "O" or (label[:1] in "BIMES" and label[1:2] == "-" and label[2:]) for label in labels):
        free = torch.ones(len(labels), dtype=torch.bool)
        return Rules(free, free.expand(len(labels), -1), free)
    is_open = torch.tensor([letter in "BI" for letter in letters])
    continues = torch.tensor([letter in "IE" for letter in letters])
    same = torch.tensor([[one == other for other in types] for one in types])
    joined, ends = is_open[:, None] & continues & same, set(letters) & {"E", "S"}
    if ends:
        return Rules(~continues, joined | (~is_open[:, None] & ~continues), ~is_open)
    return Rules(~continues, joined | ~continues, torch.ones_like(continues))


def words_of(logits: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of each row that have a label (not -100), moved to its front; `most` of a row have one.

    logits [B, L, K], labels int [B, L] -> emissions [B, N, K], tags [B, N], and which of them are there, bool [B, N].
    """
    labelled = labels != -100
    order = torch.sort(~labelled, dim=1, stable=True).indices[:, : max(1, most)]
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


class ForTokenClassification(TaskHead):
    """A tag for each token. With `config.crf` the logits are a chain's emissions, and `tags` finds the best tags."""

    pooling = False
    overlaps = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.is_chain = bool(getattr(config, "crf", False))
        if self.is_chain:
            self.transitions = nn.Embedding(config.num_labels, config.num_labels)
            """Of a tag, the score of each tag after it."""
            self.post_init()

    def chain_loss(self, logits: Tensor, labels: Tensor, most: int) -> Tensor:
        """-log p of each row's labelled tokens [B], `most` at most, as one chain; logits [B, L, K], labels [B, L], -100
        for none."""
        return -log_likelihood(*words_of(logits, labels, most), at_least_float32(self.transitions.weight))

    def tags(self, logits: Tensor) -> Tensor:
        """The tag of each word [N] of one text, by the logits [N, K] of the first tokens of its words."""
        if not self.is_chain:
            return logits.argmax(-1)
        names: Any = self.config.id2label
        return best_tags(logits, self.transitions.weight, rules_of([names[number] for number in range(len(names))]))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not self.is_chain:
            return super().loss(logits, labels)
        labelled = labels.ne(-100)
        return self.chain_loss(logits, labels, int(labelled.sum(1).amax())).sum() / labelled.sum()
