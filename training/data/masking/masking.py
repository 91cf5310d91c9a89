"""BERT's masking (Devlin et al. 2019, section 3.1) for a whole batch at once: single tokens, whole words or spans.

A row is cut into units: tokens, or words (a token with those that continue its word). The units are shuffled, and each
is chosen in turn if it still fits into the budget of max(1, round(probability * tokens)), special tokens included. This
is exactly the greedy choice of Google's `create_masked_lm_predictions`. If all units of a row are larger than the
budget, the shortest one is chosen whole, so that every row has a prediction. Spans of words have the same budget but
are drawn differently (spans.py).

Chosen tokens become [MASK] (80 %), become a random id (10 %) or stay (10 %). The draw is per token, for spans per span.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.training.data.batch import IGNORED
from reread.training.data.masking.spans import draw_spans
from reread.training.data.order import random
from reread.training.data.order.random import Purpose
from reread.training.data.settings import MaskingSettings

_LONG_WORD = 5
"""Words of more tokens are so rare that a separate loop over them is faster."""


def mask(
    ids: NDArray[np.int32],
    continues: NDArray[np.bool_],
    eligible: NDArray[np.bool_],
    *,
    lengths: NDArray[Any],
    keys: NDArray[np.uint64],
    settings: MaskingSettings,
    shares: NDArray[np.float64] | None = None,
    replacements: NDArray[Any],
    mask_id: int,
    unknown_id: int,
) -> NDArray[np.int32]:
    """Mask `ids` [B, L] in place; returns labels int32 [B, L], `IGNORED` where nothing is predicted.

    `continues` [B, L] marks tokens that continue the word of the token before them, `eligible` [B, L] those that may be
    predicted (no special token, no padding). `lengths` [B] counts the tokens of a row with its special tokens, of which
    the share of `shares` [B] is predicted (None: `settings.probability`); random ids are drawn from `replacements`.
    Unless `settings.predict_unknown`, no unit that contains `unknown_id` is chosen: the model could only learn that the
    vocabulary lacks something there.
    """
    # Choose units: tokens, words or spans.
    columns = ids.shape[1]
    budgets = np.maximum(1, np.rint((settings.probability if shares is None else shares) * lengths)).astype(np.int32)
    units = eligible.astype(_small(columns)) if settings.strategy == "token" else _words(continues, eligible)
    if not settings.predict_unknown:
        _leave_out(units, np.flatnonzero((ids == unknown_id) & eligible))
    if settings.strategy == "span":
        chosen, chosen_lengths = draw_spans(units, budgets, keys, settings)
    else:
        chosen, chosen_lengths = _choose(units, budgets, keys)

    # Draw what their tokens become: one draw for each token, or for each span.
    before = np.cumsum(chosen_lengths) - chosen_lengths
    tokens = np.repeat(chosen - before, chosen_lengths)
    tokens += np.arange(len(tokens))
    rows, column = np.divmod(tokens, columns)
    decided_by = np.repeat(chosen % columns, chosen_lengths) if settings.strategy == "span" else column
    action = random.to_unit(random.bits(random.streams(keys, Purpose.ACTION)[rows], decided_by))
    masked = action < settings.mask_share
    replaced = np.flatnonzero(~masked & (action < settings.mask_share + settings.random_share))

    # Replace them, and keep the original ids as labels.
    labels = np.full(ids.shape, IGNORED, np.int32)
    flat = ids.reshape(-1)
    labels.reshape(-1)[tokens] = original = flat[tokens]
    shown = np.where(masked, np.int32(mask_id), original)
    draw = random.bits(random.streams(keys, Purpose.REPLACEMENT)[rows[replaced]], column[replaced])
    shown[replaced] = replacements[(random.to_unit(draw) * len(replacements)).astype(np.int64)]
    flat[tokens] = shown
    return labels


def span_boundaries(labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """The borders of the spans of rows [B, L], int64 [3, n], for each of the n predicted tokens in order.

    In a span, a run of predicted tokens s ... e, token i gets the positions of s - 1 and e + 1 in [B * L], and i - s.
    """
    positions = np.flatnonzero(labels != IGNORED)
    begins = np.ones(len(positions), bool)
    begins[1:] = (np.diff(positions) > 1) | (positions[1:] % labels.shape[1] == 0)
    sizes = np.diff(np.append(np.flatnonzero(begins), len(positions)))
    first = np.repeat(positions[begins], sizes)
    return np.stack([first - 1, first + np.repeat(sizes, sizes), positions - first])


def _small(columns: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if columns < 256 else np.uint16


def _words(continues: NDArray[np.bool_], eligible: NDArray[np.bool_]) -> NDArray[Any]:
    """Unsigned [B, L]: the number of tokens of the word that begins at a token, 0 if none begins there."""
    # A word cut by the edge of the row or by a special token counts from its first token after the cut.
    follows = continues & eligible
    follows[:, 0] = False
    following = follows.reshape(-1)  # rows are concatenated; no word crosses their ends
    following[1:] &= eligible.reshape(-1)[:-1]
    begins = eligible & ~follows
    lengths: NDArray[Any] = begins.astype(_small(eligible.shape[1]))
    flat, longer, size = lengths.reshape(-1), begins.reshape(-1), 1
    while size < _LONG_WORD:
        longer = longer[:-1] & following[size:]
        flat[: len(longer)] += longer.view(np.uint8)
        size += 1
    tokens = np.flatnonzero(longer)
    while len(tokens):
        tokens = tokens[tokens + size < len(following)]
        tokens = tokens[following[tokens + size]]
        flat[tokens] += 1
        size += 1
    return lengths


def _leave_out(units: NDArray[Any], tokens: NDArray[np.int64]) -> None:
    """Set the length of each unit that contains one of these tokens (row * L + column) to 0."""
    if len(tokens):
        begins = np.flatnonzero(units)
        units.reshape(-1)[begins[np.searchsorted(begins, tokens, side="right") - 1]] = 0


def _choose(
    lengths: NDArray[Any], budgets: NDArray[np.int32], keys: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The units chosen from `lengths` [B, L]: the token at which each begins (row * L + column), and its length.

    The greedy choice in rounds: drop the shuffled units that can no longer fit, choose the longest prefix that fits,
    and continue with the rest. A loop over the units would skip the dropped ones, so both choose the same units.
    """
    columns = lengths.shape[1]
    # Shuffle by one sort of 32-bit numbers a row: random upper bits, and the column in the lower ones. Tokens that
    # begin no unit come last.
    low = np.uint32((1 << (columns - 1).bit_length()) - 1)
    order = random.words(keys, Purpose.UNIT_ORDER, columns)
    order |= np.subtract(lengths, 1, dtype=np.uint32)  # all bits if no unit begins, otherwise lower bits only
    order &= ~low
    order |= np.arange(columns, dtype=np.uint32)
    order.sort(axis=1)
    order &= low
    order += np.arange(len(budgets), dtype=np.uint32)[:, None] * np.uint32(columns)

    # A row whose budget is too small for any unit gets room for its shortest one.
    tight = np.flatnonzero(budgets < lengths.max(initial=0))
    smallest = np.where(lengths[tight] > 0, lengths[tight].astype(np.int32), columns).min(axis=1)
    left = budgets.copy()
    left[tight] = np.maximum(left[tight], smallest)

    # Choose in rounds.
    waiting_at = lengths.reshape(-1).copy()
    chosen = []
    width = min(int(left.max(initial=1)), columns)  # a longer prefix cannot fit in the first round
    while len(order):
        head = order[:, :width]
        waiting = waiting_at[head].astype(np.int32)
        waiting *= waiting <= left[:, None]
        fits = (np.cumsum(waiting, axis=1, dtype=np.int32) <= left[:, None]) & (waiting > 0)
        left -= (waiting * fits).sum(axis=1, dtype=np.int32)
        chosen.append(head[fits])
        waiting_at[chosen[-1]] = 0
        rest = left > 0
        if width == columns:
            rest &= fits.any(axis=1)
        order, left, width = order[rest], left[rest], min(2 * width, columns)
    units = np.concatenate(chosen).astype(np.int64)
    return units, lengths.reshape(-1)[units].astype(np.int64)
