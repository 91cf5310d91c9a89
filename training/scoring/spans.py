"""Answers from the start and end logits of a document's windows: numpy alone, no model.

The method is that of BERT's run_squad.py and of ERNIE-Doc's mrc. In each window the best starts and the best ends are
paired, and the pair with the highest sum of raw logits in any window wins. Windows are not normalised one by one, since
a window without the answer would then be as certain as one with it.

Three things differ from the official codes:

- A span counts in the window where the whole span has the most context. The official codes take the window where its
  first token has the most context, and lose the span if that window ends before it.
- The best starts and ends are taken among the tokens of the text. The official codes take the best of all positions
  first, question and padding included, and answer "empty" if none of these pairs is valid.
- A position whose logit is not finite is never part of an answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

N_BEST = 20


class Window(NamedTuple):
    """The model's outputs for one window of L tokens."""

    start: NDArray[np.floating]
    """Logits [L] that the answer starts here."""
    end: NDArray[np.floating]
    """Logits [L] that the answer ends here, this token included."""
    offsets: NDArray[np.integer]
    """[L, 2]: the characters of the context at which each token begins and ends; (-1, -1) outside the context."""
    first: int = 0
    """The number, in the document, of the window's first token of context; the others follow it."""
    null: float | None = None
    """The score of "no answer" in this window, the sum of [CLS]'s two logits; None if every question has one."""


class Span(NamedTuple):
    """The characters [start, end) of the context; start = end = 0 is "no answer", and -1 - n is choice n."""

    start: int
    end: int
    score: float
    """Start logit + end logit."""
    probability: float
    """The softmax of the scores over the spans listed."""


class Decoded(NamedTuple):
    """The answer (None if no span is possible), and the best spans by falling score, with the answer among them."""

    best: Span | None
    n_best: tuple[Span, ...]


def decode(
    windows: Sequence[Window],
    context: str,
    *,
    n_best: int = N_BEST,
    longest: int = 100,
    null_threshold: float = 0.0,
    choices: Sequence[float] = (),
) -> Decoded:
    """The best spans over all windows of one question: at most `n_best`, each of at most `longest` tokens.

    Of spans with the same text only the best is listed. Equal scores are ordered by window, then by start logit, end
    logit and position. If the windows have `null`, the lowest of these is the score of "no answer", which is listed
    beside the spans and is the answer if it is higher than the best span's by more than `null_threshold`, or if there
    is no span. `choices` are the scores of answers that are no part of the context; they compete with the spans.
    """
    found = _owned(windows, n_best, longest)
    scores = np.concatenate([scores for scores, _ in found]) if found else np.empty(0)
    spans = np.concatenate([spans for _, spans in found]) if found else np.empty((0, 2), np.int64)
    listed: dict[str, tuple[int, int, float]] = {}
    for index in np.argsort(-scores, kind="stable"):
        start, end = (int(character) for character in spans[index])
        listed.setdefault(context[start:end], (start, end, float(scores[index])))
        if len(listed) == n_best:
            break
    ranked = list(listed.values())
    if choices:
        ranked += [(-1 - number, -1 - number, one) for number, one in enumerate(choices) if np.isfinite(one)]
        ranked = sorted(ranked, key=lambda one: -one[2])[:n_best]
    nulls = [window.null for window in windows if window.null is not None]
    if not nulls:
        answers = _with_probabilities(ranked)
        return Decoded(answers[0] if answers else None, answers)
    null = float(min(nulls))
    is_null = not ranked or null - ranked[0][2] > null_threshold
    rank = sum(score >= null for *_, score in ranked)
    answers = _with_probabilities([*ranked[:rank], (0, 0, null), *ranked[rank:]])
    return Decoded(answers[rank] if is_null else answers[0 if rank else 1], answers)


def max_context(begins: Sequence[int], lengths: Sequence[int]) -> NDArray[np.int64]:
    """For each token of a document the index of the window in which it has the most context; -1 if none holds it.

    Window w holds the tokens [begins[w], begins[w] + lengths[w]). A token's context there is the smaller number of
    tokens on either side + .01 x the window's length; the first of equal windows counts (run_squad.py,
    `_check_is_max_context`). Computed in hundredths, so that rounding decides no tie. Scoring each token in this window
    alone scores each token once.
    """
    first, sizes = np.asarray(begins, np.int64), np.asarray(lengths, np.int64)
    tokens = int((first + sizes).max(initial=0))
    best, index = np.full(tokens, -1, np.int64), np.full(tokens, -1, np.int64)
    for window, (begin, length) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True)):
        left = np.arange(length)
        context = 100 * np.minimum(left, length - 1 - left) + length
        here = slice(begin, begin + length)
        better = context > best[here]
        best[here][better], index[here][better] = context[better], window
    return index


def span_owners(begins: NDArray[np.int64], lengths: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each span [P, 2] of first and last tokens, the index of the window in which it has the most context; -1 if no
    window holds it.

    As `max_context`, whose token is a span of one: a span's context is the smaller number of tokens on either side of
    it + .01 x the window's length.
    """
    first, last = spans.T
    beside = np.minimum(first - begins[:, None], (begins + lengths)[:, None] - 1 - last)
    context = np.where(beside >= 0, 100 * beside + lengths[:, None], -1)
    return np.where(context.max(0) >= 0, context.argmax(0), -1)


def _owned(windows: Sequence[Window], n_best: int, longest: int) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """`_pairs` of each window, without the spans that have more context in another one."""
    begins = np.array([window.first for window in windows], np.int64)
    lengths = np.array([(window.offsets[:, 0] >= 0).sum() for window in windows], np.int64)
    found = []
    for number, window in enumerate(windows):
        scores, characters, spans = _pairs(window, n_best, longest)
        near = np.flatnonzero((begins < begins[number] + lengths[number]) & (begins + lengths > begins[number]))
        if len(near) > 1:
            owned = near[span_owners(begins[near], lengths[near], spans)] == number
            scores, characters = scores[owned], characters[owned]
        found.append((scores, characters))
    return found


def _pairs(
    window: Window, n_best: int, longest: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Scores [P], characters [P, 2] and tokens of the document [P, 2] of the pairs of a best start and a best end in
    one window, ordered by start and then by end."""
    start, end = window.start.astype(np.float64), window.end.astype(np.float64)
    is_context = window.offsets[:, 0] >= 0
    starts = _highest(start, is_context, n_best)
    ends = _highest(end, is_context, n_best)
    positions = np.stack(np.broadcast_arrays(starts[:, None], ends[None]), -1).reshape(-1, 2)
    characters = np.stack([window.offsets[positions[:, 0], 0], window.offsets[positions[:, 1], 1]], -1)
    tokens = positions[:, 1] - positions[:, 0] + 1
    allowed = (tokens >= 1) & (tokens <= longest) & (characters[:, 0] < characters[:, 1])
    positions = positions[allowed]
    scores = start[positions[:, 0]] + end[positions[:, 1]]
    spans = positions - int(is_context.argmax()) + window.first
    return scores, characters[allowed].astype(np.int64), spans.astype(np.int64)


def _highest(logits: NDArray[np.float64], allowed: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
    """The allowed positions with the highest logits, in falling order; equal logits in the order of their positions."""
    positions = np.flatnonzero(allowed & np.isfinite(logits))
    return positions[np.argsort(-logits[positions], kind="stable")[:number]]


def _with_probabilities(ranked: Sequence[tuple[int, int, float]]) -> tuple[Span, ...]:
    if not ranked:
        return ()
    scores = np.array([score for *_, score in ranked])
    shares = np.exp(scores - scores.max())
    return tuple(
        Span(*span, probability=float(share)) for span, share in zip(ranked, shares / shares.sum(), strict=True)
    )
