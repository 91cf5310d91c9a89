"""Spans of whole words as SpanBERT draws them (Joshi et al. 2020, section 3.1), for a whole batch at once.

The length of a span is counted in words and drawn from the geometric distribution truncated at a maximum: P(l) is
proportional to p (1 - p)^(l - 1) for l = 1 ... maximum, of mean 3.8 with p = 0.2 and 10. It begins at a word drawn
uniformly. If a span would leave its text, or meet or touch another one, another beginning is drawn for the same length,
so each run of predicted tokens is one span and has the length that was drawn.

SpanBERT's code cuts the last span when 15 % of the tokens are covered, and joins spans that touch. The cut would make
a quarter of the spans in rows of 128 tokens shorter than drawn. Here the last span is whole, too: a row gets spans
until their tokens plus the mean overshoot of a span reach its budget. This rule ignores the length drawn next, so it
favours no length; a row's share varies by a few tokens, and its mean is the budget.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.training.data.order import random
from reread.training.data.order.random import Purpose
from reread.training.data.settings import MaskingSettings

_TRIES = 8
"""Beginnings drawn at a time for a span; if none of them is free, the span is made a word shorter."""


def length_shares(settings: MaskingSettings) -> NDArray[np.float64]:
    """P(1) ... P(span_maximum) of a span's length in words; they sum to 1."""
    shares = (1 - settings.span_geometric) ** np.arange(settings.span_maximum)
    return shares / shares.sum()


def draw_spans(
    lengths: NDArray[Any], budgets: NDArray[Any], keys: NDArray[np.uint64], settings: MaskingSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The token at which each span begins (row * L + column), and its number of tokens.

    `lengths` [B, L] counts the tokens of the word that begins at a token, 0 if none begins there; `budgets` [B] is the
    number of tokens that a row should have in spans. A row gets at least one span, and no span is longer than the
    row's budget or, if that is longer, its shortest word.
    """
    words = _Words(lengths, budgets, settings.span_maximum)
    up_to = np.cumsum(length_shares(settings))[:-1]
    of_lengths, of_begins = (random.streams(keys, purpose) for purpose in (Purpose.SPAN_LENGTH, Purpose.UNIT_ORDER))

    def wanted_by(rows: NDArray[np.int64], numbers: Any) -> NDArray[np.int64]:
        """The length of span `numbers` of each row, in words."""
        draw = random.to_unit(random.bits(of_lengths[rows], numbers))
        return np.minimum(1 + np.searchsorted(up_to, draw, "right"), words.longest[rows])

    # In each round, every row that has budget left tries to put one span in.
    rows, left = words.rows, _to_cover(words.sizes, words.edges, budgets, settings)
    drawn, wanted, tries = np.zeros(len(lengths), np.int64), wanted_by(rows, 0), np.arange(_TRIES)
    spans = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    while len(rows):
        # Several beginnings are drawn for it, of which the first free one is used.
        candidates = words.begins(rows, random.to_unit(random.bits(of_begins[rows][:, None], tries)))
        free = words.room[candidates] >= wanted[:, None]
        fits = free.any(axis=1)
        here = rows[fits]
        begins, tokens = words.occupy(here, candidates[fits, free[fits].argmax(axis=1)], wanted[fits])
        spans.append((begins, tokens))
        # Those rows draw the length of their next span, and the others shorten this one.
        left[here] -= tokens
        drawn[here] += 1
        wanted[fits] = wanted_by(here, drawn[here])
        wanted[~fits] -= 1
        goes_on = (left[rows] > 0) & (wanted > 0)
        rows, wanted, tries = rows[goes_on], wanted[goes_on], tries + _TRIES
    return np.concatenate([begins for begins, _ in spans]), np.concatenate([tokens for _, tokens in spans])


class _Words:
    """The words of a batch in slots, and the room for spans that each slot has.

    An empty slot precedes each text; `most` more precede the first text and follow the last.
    """

    def __init__(self, lengths: NDArray[Any], budgets: NDArray[Any], most: int) -> None:
        # The words, and the words of each row
        columns = lengths.shape[1]
        at = np.flatnonzero(lengths)
        row = at // columns
        self.sizes: NDArray[np.int64] = lengths.reshape(-1)[at].astype(np.int64)
        """The number of tokens of each word."""
        self.edges = _edges(row, len(lengths))
        """[B + 1]: number of words in the rows before."""
        self.rows: NDArray[np.int64] = np.flatnonzero(np.diff(self.edges))
        """Rows that have words."""
        self.longest = np.zeros(len(lengths), np.int64)
        """[B]: tokens in the longest span that a row may have."""
        if len(self.rows):
            shortest = np.minimum.reduceat(self.sizes, self.edges[self.rows])
            self.longest[self.rows] = np.maximum(budgets[self.rows], shortest)

        # Their slots: a word that does not follow another one begins a text
        stops = at + self.sizes
        begins_text = np.ones(len(at), bool)
        begins_text[1:] = (at[1:] != stops[:-1]) | (row[1:] != row[:-1])
        text = np.cumsum(begins_text)
        slots = np.arange(len(at)) + text + most
        self._first, self._last, self.room = np.zeros((3, len(at) + int(begins_text.sum()) + 2 * most + 1), np.int64)
        """By slot: the word's first token, the token after its last, and the number of words of the longest span that
        could begin there now."""
        self._first[slots], self._last[slots] = at, stops
        self.room[slots] = np.append(np.flatnonzero(begins_text)[1:], len(at))[text - 1] - np.arange(len(at))

        # The slots in which a span of a row may begin
        may_begin = self.sizes <= self.longest[row]
        self._slots, self._edges = slots[may_begin], _edges(row[may_begin], len(lengths))
        self._lowest = np.zeros(len(lengths), np.int64)
        self._lowest[self.rows] = slots[self.edges[self.rows]]
        self._reach, self._further = np.arange(-most - 1, most + 1), np.arange(1, most)

    def begins(self, rows: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Slots [n, m] of words of `rows` [n], by uniform draws [n, m]."""
        first, last = self._edges[rows][:, None], self._edges[rows + 1][:, None]
        return self._slots[first + (draws * (last - first)).astype(np.int64)]

    def occupy(
        self, rows: NDArray[np.int64], begins: NDArray[np.int64], wanted: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Occupy `wanted` words from slot `begins` on, or as many as `longest` allows, in each of `rows` [n]; returns
        the first token and the number of tokens of each span."""
        ends = self._last[begins[:, None] + self._further] - self._first[begins][:, None]
        within = (ends <= self.longest[rows][:, None]) & (self._further < wanted[:, None])
        words = 1 + within.sum(axis=1)
        # Later spans must end at least a word before this one or begin at least a word after it
        slots = begins[:, None] + self._reach
        slots[(slots < self._lowest[rows][:, None]) | (self._reach > words[:, None])] = 0  # no other row, no word
        self.room[slots] = np.minimum(self.room[slots], np.maximum(-1 - self._reach, 0))
        return self._first[begins], self._last[begins + words - 1] - self._first[begins]


def _edges(row: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """[rows + 1]: the number of values of the sorted `row` that are below 0, 1, ..., rows."""
    return np.searchsorted(row, np.arange(rows + 1))


def _to_cover(
    sizes: NDArray[np.int64], edges: NDArray[np.int64], budgets: NDArray[Any], settings: MaskingSettings
) -> NDArray[np.float64]:
    """The number of tokens [B] at which a row gets no more spans, so that its spans meet the budget on average.

    A span of t tokens that crosses a limit overshoots it by (E[t^2] / E[t] - 1) / 2 tokens on average. A span has l
    words of s tokens each, so E[t^2] / E[t] = E[s^2] / E[s] + E[s] (E[l^2] / E[l] - 1).
    """
    shares, words = length_shares(settings), np.arange(1, settings.span_maximum + 1)
    cut = np.minimum(words, words[:, None])  # lengths limited to the room in the budget
    ratio = (cut**2 @ shares) / (cut @ shares)
    counts = np.maximum(np.diff(edges), 1)
    sums = [np.diff(np.append(0, np.cumsum(values))[edges]) for values in (sizes, sizes**2)]
    tokens, squares = (np.maximum(values, 1) for values in sums)
    mean = tokens / counts
    room = np.clip(budgets / mean, 1, settings.span_maximum).astype(np.int64)
    past = (squares / tokens + mean * (ratio[room - 1] - 1) - 1) / 2
    return np.maximum(budgets - past, 1.0)
