"""Beam search for a head of next tokens that reads a target behind its source; copied beside exported weights.

Shapes: B rows, L tokens of the longest source, K beams, t tokens that are written, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def beam_search(
    logits_of: Callable[..., Tensor],
    sources: Tensor,
    mask: Tensor,
    *,
    beams: int,
    longest: int,
    end: int,
    banned: Sequence[int] = (),
) -> Tensor:
    """The best target [B, t] of each source: its tokens, `longest` at most, then `end`.

    sources, mask [B, L], 1 for tokens, behind which stands padding. `logits_of(**inputs)` are the logits [n, V] of the
    model at `masked_positions` [n] of input_ids, attention_mask and segment_ids (0 for the source, 1 for the target);
    each step reads whole rows again, since windows with a part of the target change with it.

    A target's score is the mean log-probability of its tokens, with that of `end`, which is never the first one; a
    target that is cut at `longest` has none. Each step keeps the `beams` best of all targets that have ended and of
    the others with one token more; of equals the better beam of the step before leads, then the smaller token. It ends
    when no target can overtake the best one. `beams` 1 is greedy search. Tokens that are `banned` are never written.
    """
    rows, device = len(sources), sources.device
    written = sources.new_zeros(rows, 1, 0)
    sums = torch.zeros(rows, 1, dtype=torch.float64, device=device)
    lengths = torch.zeros_like(sums)
    ended = torch.zeros_like(sums, dtype=torch.bool)
    never = torch.tensor(sorted(set(banned) - {end}), dtype=torch.long, device=device)
    for step in range(longest):
        # The sum of each target with each token more; one that has ended goes on with `end`, at no cost.
        logits = logits_of(**_inputs(sources, mask, written))
        following = logits.double().log_softmax(-1).unflatten(0, (rows, -1))
        following.index_fill_(-1, never, -torch.inf)
        if step == 0:
            following[..., end] = -torch.inf
        words = following.shape[-1]
        rest = torch.full_like(following[:1, :1], -torch.inf)
        rest[..., end] = 0
        following = torch.where(ended[..., None], rest, following)
        lengths = lengths + (~ended).double()
        candidates = sums[..., None] + following
        # The best of them
        best = _greatest((candidates / lengths[..., None]).flatten(1), beams)
        parent, token = best // words, best % words
        sums = candidates.flatten(1).gather(1, best)
        lengths, ended = lengths.gather(1, parent), ended.gather(1, parent) | (token == end)
        written = torch.cat([written.gather(1, parent[..., None].expand(-1, -1, step)), token[..., None]], dim=-1)
        # Log-probabilities are below 0, so a mean rises no further than if all tokens to come had 0.
        hope = (sums / longest).masked_fill(ended, -torch.inf).amax(1)
        if bool((ended[:, 0] & (hope < sums[:, 0] / lengths[:, 0])).all()):
            break
    return written[:, 0]


def _greatest(values: Tensor, count: int) -> Tensor:
    """The indices [B, count] of the greatest of values [B, n], the greatest first, of equals the first one; which of
    equals `topk` takes is not defined. Index 0 where there are no more than -inf."""
    values, found = values.clone(), []
    for _ in range(count):
        found.append(values.argmax(1, keepdim=True))
        values.scatter_(1, found[-1], -torch.inf)
    return torch.cat(found, dim=1)


def _inputs(sources: Tensor, mask: Tensor, written: Tensor) -> dict[str, Tensor]:
    """The model's inputs for `written` [B, K, t] behind each source: rows [B * K, L + t]."""
    beams, length = written.shape[1:]
    ids, mask = (x.repeat_interleave(beams, 0) for x in (sources, mask))
    ends = mask.sum(1, keepdim=True)  # of the sources
    places = ends + torch.arange(length, device=ids.device)
    index = torch.arange(ids.shape[1] + length, device=ids.device)
    ids = F.pad(ids, (0, length)).scatter(1, places, written.flatten(0, 1))
    last = ends[:, 0] + length - 1 + torch.arange(len(ids), device=ids.device) * len(index)
    return {
        "input_ids": ids,
        "attention_mask": (index < ends + length).long(),
        "segment_ids": (index >= ends).long(),
        "masked_positions": last,
    }
