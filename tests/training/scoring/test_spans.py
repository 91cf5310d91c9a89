"""Decoding of start and end logits, against loops, and gold logits through any windows."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.training.scoring.spans import Window, decode, max_context


def windows_of(context: str, step: int, size: int, starts: np.ndarray, ends: np.ndarray) -> list[Window]:
    """One token a character, in windows [CLS] context [SEP] question [SEP] pad, from logits [C] of the context."""
    begins = [0]
    while begins[-1] + size < len(context):
        begins.append(begins[-1] + step)
    lengths = [min(size, len(context) - begin) for begin in begins]
    windows = []
    for begin, length in zip(begins, lengths, strict=True):
        outside = 4 + size - length
        place = np.arange(begin, begin + length)
        noise = np.full(outside, 50.0)  # question, pads and [SEP] are never an answer, whatever their logits
        windows.append(
            Window(
                np.concatenate([[60.0], starts[place], noise]),
                np.concatenate([[60.0], ends[place], noise]),
                np.concatenate([[[-1, -1]], np.stack([place, place + 1], 1), np.full((outside, 2), -1)]),
                begin,
            )
        )
    return windows


@given(st.data())
def test_a_planted_answer_is_found_through_any_windows(data) -> None:
    context = data.draw(st.text("甲乙丙丁戊己庚", min_size=1, max_size=60))
    size = data.draw(st.integers(1, 40))
    step = data.draw(st.integers(1, size))
    length = data.draw(st.integers(1, size - step + 1))  # the longest that some window holds wherever it stands
    start = data.draw(st.integers(0, max(0, len(context) - length)))
    end = min(start + length, len(context))
    seed = data.draw(st.integers(0, 9))
    starts, ends = np.random.default_rng(seed).normal(size=(2, len(context)))
    starts[start], ends[end - 1] = 30, 30
    best, listed = decode(windows_of(context, step, size, starts, ends), context)
    assert best is not None
    assert (best.start, best.end, best.score) == (start, end, 60)
    assert listed[0] == best


def owner(windows: list[Window], first: int, last: int) -> int:
    """The first window with the most context of the characters `first` to `last`, by BERT's formula for a token."""
    values = []
    for number, window in enumerate(windows):
        held = [begin for begin, _ in window.offsets if begin >= 0]
        if first in held and last in held:
            values.append((min(first - held[0], held[-1] - last) + Fraction(len(held), 100), -number))
    return -max(values)[1]


def by_loops(windows: list[Window], context: str, n_best: int, longest: int) -> list[tuple[str, float]]:
    """All pairs of the best starts and ends of each window, one by one."""
    found = []
    for number, window in enumerate(windows):
        inside = [place for place in range(len(window.start)) if window.offsets[place][0] >= 0]
        for first in sorted(inside, key=lambda place: float(window.start[place]), reverse=True)[:n_best]:
            for last in sorted(inside, key=lambda place: float(window.end[place]), reverse=True)[:n_best]:
                owned = first <= last and owner(windows, window.offsets[first][0], window.offsets[last][0]) == number
                if owned and last < first + longest:
                    text = context[window.offsets[first][0] : window.offsets[last][1]]
                    found.append((text, float(window.start[first]) + float(window.end[last])))
    listed: dict[str, float] = {}
    for text, score in sorted(found, key=lambda pair: pair[1], reverse=True):
        if text and text not in listed:
            listed[text] = score
    return list(listed.items())[:n_best]


@given(st.data())
def test_the_best_spans_are_those_of_loops_over_all_pairs(data) -> None:
    context = data.draw(st.text("甲乙丙", min_size=1, max_size=30))
    size = data.draw(st.integers(1, 20))
    step = data.draw(st.integers(1, size))
    n_best, longest = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    logits = st.lists(st.integers(-3, 3), min_size=len(context), max_size=len(context))  # many ties
    starts, ends = (np.array(data.draw(logits), np.float32) for _ in range(2))
    windows = windows_of(context, step, size, starts, ends)
    best, listed = decode(windows, context, n_best=n_best, longest=longest)
    expected = by_loops(windows, context, n_best, longest)
    assert [(context[span.start : span.end], span.score) for span in listed] == expected
    assert best == (listed[0] if listed else None)
    total = sum(math.exp(score) for _, score in expected)
    for span in listed:
        assert span.probability == pytest.approx(math.exp(span.score) / total, rel=1e-12)


def one_window(starts: list[float], ends: list[float], offsets: list[tuple[int, int]], **more) -> Window:
    return Window(np.array(starts), np.array(ends), np.array(offsets), **more)


def test_a_span_counts_in_the_window_where_it_has_most_context() -> None:
    """Of 11 tokens the first window has 0 to 9 and the second 4 to 10. Token 6 has its most context in the first, which
    does not hold an answer from 6 to 10, and tokens 6 to 9 have more of it in the second."""
    context = "abcdefghijk"
    offsets = [(place, place + 1) for place in range(11)]

    def found(start: int, end: int, first: float, second: float) -> float:
        logits = [np.zeros((2, 10)), np.zeros((2, 7))]
        for one, begin, value in ((logits[0], 0, first), (logits[1], 4, second)):
            for row, place in enumerate((start, end)):
                if place - begin < one.shape[1]:
                    one[row, place - begin] = value
        windows = [
            Window(logits[0][0], logits[0][1], np.array(offsets[:10]), 0),
            Window(logits[1][0], logits[1][1], np.array(offsets[4:]), 4),
        ]
        best = decode(windows, context).best
        assert best is not None and (best.start, best.end) == (start, end + 1)
        return best.score

    assert found(6, 10, 9, 9) == 18
    assert found(6, 9, 9, 7) == 14  # 1 token behind it, against 0 in the first
    assert found(6, 6, 9, 7) == 18  # 3 in the first, which is longer, against 2


def test_an_answer_that_stands_twice_is_listed_once_at_its_best_place() -> None:
    offsets = [(place, place + 1) for place in range(4)]
    best, listed = decode([one_window([1, 0, 2, 0], [0, 1, 0, 2], offsets)], "abab", longest=2)
    assert (best.start, best.end) == (2, 4)
    assert [(span.start, span.end) for span in listed].count((0, 2)) == 0
    best, _ = decode([one_window([1, 0, 1, 0], [0, 1, 0, 1], offsets)], "abab", longest=2)
    assert (best.start, best.end) == (0, 2)  # the first of equals


def test_an_answer_is_at_most_so_many_tokens_long() -> None:
    offsets = [(2 * place, 2 * place + 2) for place in range(6)]
    window = one_window([9, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 9], offsets)
    assert decode([window], "aabbccddeeff", longest=6).best[:3] == (0, 12, 18)
    assert decode([window], "aabbccddeeff", longest=5).best[:3] == (0, 6, 10)


def test_an_answer_never_ends_before_it_starts_where_tokens_share_a_character() -> None:
    window = one_window([0, 5, 0], [5, 0, 1], [(0, 1), (0, 1), (1, 2)])  # two tokens of bytes make the first character
    assert decode([window], "甲乙").best[:3] == (0, 2, 6)


def test_no_answer_wins_only_by_more_than_the_threshold() -> None:
    offsets = [(-1, -1), (0, 1), (1, 2)]
    sure = one_window([9, 3, 0], [9, 0, 3], offsets, null=18.0)
    unsure = one_window([2, 1, 0], [3, 0, 1], offsets, null=7.0)
    best, listed = decode([sure, unsure], "xy")
    assert best[:3] == (0, 0, 7)  # the lowest of the windows, against 6
    assert [span.score for span in listed][:2] == [7, 6]
    assert sum(span.probability for span in listed) == pytest.approx(1)
    best, listed = decode([sure, unsure], "xy", null_threshold=1.0)
    assert best[:3] == (0, 2, 6)
    assert best in listed
    best, listed = decode([unsure._replace(null=-1.0)], "xy")
    assert best[:3] == (0, 2, 2)
    assert [span.score for span in listed][-1] == -1
    assert decode([one_window([9], [9], [(-1, -1)], null=18.0)], "").best[:3] == (0, 0, 18)


def test_where_nothing_may_be_an_answer_there_is_none() -> None:
    assert decode([], "text") == (None, ())
    assert decode([one_window([9.0], [9.0], [(-1, -1)])], "text") == (None, ())
    empty_token, not_finite = [(1, 1), (1, 2)], [math.nan, -math.inf]
    assert decode([one_window([1.0, 0.0], [1.0, -math.inf], empty_token)], "ab").best is None
    assert decode([one_window(not_finite, not_finite, [(0, 1), (1, 2)])], "ab").best is None


def test_logits_in_half_precision_are_added_without_rounding() -> None:
    offsets = [(0, 1), (1, 2)]
    start, end = np.array([2048, 0], np.float16), np.array([1, 2], np.float16)
    window = Window(start, end, np.array(offsets))
    assert decode([window], "ab").best.score == 2050
    assert [span.score for span in decode([window], "ab").n_best] == [2050, 2049, 2]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=6))
def test_max_context_is_the_first_best_window_by_the_formula(spans) -> None:
    begins, lengths = [begin for begin, _ in spans], [length for _, length in spans]
    index = max_context(begins, lengths)
    assert len(index) == max((begin + length for begin, length in spans), default=0)
    for token in range(len(index)):
        values = [
            (min(token - begin, begin + length - 1 - token) + Fraction(length, 100), -window)
            for window, (begin, length) in enumerate(spans)
            if begin <= token < begin + length
        ]
        assert index[token] == (-max(values)[1] if values else -1)


def test_each_token_of_a_document_is_scored_in_one_window() -> None:
    index = max_context([0, 4, 8], [10, 10, 10])
    assert index.tolist() == [0] * 7 + [1] * 4 + [2] * 7
