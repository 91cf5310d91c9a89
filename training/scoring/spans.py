"""Answers from the start and end logits of a document's windows: numpy alone, no model.

As BERT's run_squad.py and ERNIE-Doc's mrc do it: in each window the best starts and the best ends are paired, a start
must stand where its token has the most context, and the pair with the highest sum of raw logits in any window wins.
Windows are not normalised one by one, since a window without the answer would then be as sure as one with it.

Two things differ. The best starts and ends are taken among the places that may be one; the official codes take the
best of all places first, question and padding included, and answer "empty" where no pair of these is left. And a
place whose logit is not finite is never part of an answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

N_BEST = 20


class Window(NamedTuple):
    """One window of L tokens as the model read it."""

    start: NDArray[np.floating]
    """Logits [L] that the answer starts here."""
    end: NDArray[np.floating]
    """Logits [L] that it ends here, this token included."""
    offsets: NDArray[np.integer]
    """[L, 2]: where each token begins and ends in the context, in characters; (-1, -1) for what is not context."""
    is_max_context: NDArray[np.bool_]
    """[L]: whether this is the window that has the token with the most context (`max_context`)."""
    null: float | None = None
    """The score of "no answer" in this window, the sum of [CLS]'s two logits; None if every question has one."""


class Span(NamedTuple):
    """The characters [start, end) of the context; start = end = 0 is "no answer"."""

    start: int
    end: int
    score: float
    """Start logit + end logit."""
    probability: float
    """The softmax of the scores over the spans listed."""


class Decoded(NamedTuple):
    """The answer, None if no place may be one, and the best spans in falling order of score, the answer among them."""

    best: Span | None
    n_best: tuple[Span, ...]


def decode(
    windows: Sequence[Window],
    context: str,
    *,
    n_best: int = N_BEST,
    longest: int = 100,
    null_threshold: float = 0.0,
) -> Decoded:
    """The best spans over all windows of one question: at most `n_best`, each of at most `longest` tokens.

    Of spans with the same text only the best is listed. Equal scores go by window, then by start logit, end logit and
    place. If the windows have `null`, the lowest of these is the score of "no answer", which is listed beside the spans
    and is the answer if it is higher than the best span's by more than `null_threshold`, or if there is no span.
    """
    found = [_pairs(window, n_best, longest) for window in windows]
    scores = np.concatenate([scores for scores, _ in found]) if found else np.empty(0)
    spans = np.concatenate([spans for _, spans in found]) if found else np.empty((0, 2), np.int64)
    listed: dict[str, tuple[int, int, float]] = {}
    for place in np.argsort(-scores, kind="stable"):
        start, end = (int(character) for character in spans[place])
        listed.setdefault(context[start:end], (start, end, float(scores[place])))
        if len(listed) == n_best:
            break
    ranked = list(listed.values())
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


def _pairs(window: Window, n_best: int, longest: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores [P] and characters [P, 2] of one window's pairs of a best start and a best end, by rank of start, end."""
    start, end = window.start.astype(np.float64), window.end.astype(np.float64)
    is_context = window.offsets[:, 0] >= 0
    starts = _highest(start, is_context & window.is_max_context, n_best)
    ends = _highest(end, is_context, n_best)
    tokens = ends[None] - starts[:, None] + 1
    characters = np.stack(np.broadcast_arrays(window.offsets[starts, 0][:, None], window.offsets[ends, 1][None]), -1)
    allowed = (tokens >= 1) & (tokens <= longest) & (characters[..., 0] < characters[..., 1])
    return (start[starts][:, None] + end[ends][None])[allowed], characters[allowed].astype(np.int64)


def _highest(logits: NDArray[np.float64], allowed: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
    """The places of the highest logits among those allowed, in falling order; equal ones in their own order."""
    places = np.flatnonzero(allowed & np.isfinite(logits))
    return places[np.argsort(-logits[places], kind="stable")[:number]]


def _with_probabilities(ranked: Sequence[tuple[int, int, float]]) -> tuple[Span, ...]:
    if not ranked:
        return ()
    scores = np.array([score for *_, score in ranked])
    shares = np.exp(scores - scores.max())
    return tuple(
        Span(*span, probability=float(share)) for span, share in zip(ranked, shares / shares.sum(), strict=True)
    )
