"""Micro-batches of rows of similar length, and what is left of their padding."""

from functools import cache
from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reread.training.data.batch import IGNORED
from reread.training.data.rows.trimming import MULTIPLE, PASS_SHARE, micro_batches, trimmed

COLUMNS = 50


def cost(longest: list[int], size: int) -> float:
    """Computed tokens, and what passes cost beside them, of micro-batches given by the lengths of their rows."""
    width = min(COLUMNS, next(MULTIPLE * n for n in count() if MULTIPLE * n >= longest[-1]))
    return len(longest) * width + PASS_SHARE * size * COLUMNS


@given(st.lists(st.integers(1, COLUMNS), max_size=14), st.integers(1, 6))
def test_no_other_cut_computes_less(lengths: list[int], size: int) -> None:
    """Each row is in one micro-batch of at most `size`, the longest in the last; all other cuts of the sorted rows were
    tried."""
    ordered = sorted(lengths)

    @cache
    def least(end: int) -> float:
        starts = range(max(0, end - size), end)
        return min((least(start) + cost(ordered[start:end], size) for start in starts), default=0.0)

    rows, length = 100 + np.arange(len(lengths)), np.array(lengths, np.int64)
    found = micro_batches(rows, length, COLUMNS, size)
    assert sorted(np.concatenate([rows[:0], *found]).tolist()) == rows.tolist()
    assert all(1 <= len(one) <= size for one in found)
    by_pass = [[lengths[row - 100] for row in one] for one in found]
    assert [one for part in by_pass for one in part] == ordered
    assert abs(sum(cost(part, size) for part in by_pass) - least(len(lengths))) < 1e-6 or len(set(ordered)) == 1


def test_rows_of_one_length_stay_in_order_and_in_equal_pieces() -> None:
    found = micro_batches(np.arange(10), np.full(10, COLUMNS), COLUMNS, 4)
    assert [one.tolist() for one in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def rows_of(lengths: list[int], *, ends_in_last_column: bool) -> dict[str, np.ndarray]:
    tokens = np.arange(COLUMNS) < np.array(lengths)[:, None] - ends_in_last_column
    tokens[:, -1] |= ends_in_last_column
    ids = np.where(tokens, 1 + np.arange(tokens.size).reshape(tokens.shape), 0)
    labels = np.where(tokens & (ids % 3 == 0), ids, IGNORED)
    return {
        "input_ids": ids,
        "attention_mask": tokens.astype(np.int32),
        "labels": labels,
        "token_type_ids": ids % 2,
        "next_sentence_label": np.arange(len(lengths)),
        "cursors": np.arange(3 * len(lengths)).reshape(-1, 3),
    }


def test_trimmed_rows_keep_every_token_and_nothing_but_padding_goes() -> None:
    for ends_in_last_column in (False, True):
        for lengths, width in (([5, 2, 17], 24), ([3, 8], 8), ([49, 3], 50), ([50], 50)):
            rows = rows_of(lengths, ends_in_last_column=ends_in_last_column)
            found = trimmed(rows, keeps_last=ends_in_last_column)
            real, kept = rows["attention_mask"] == 1, found["attention_mask"] == 1
            assert kept.shape == (len(lengths), width)
            for name in ("input_ids", "labels", "token_type_ids"):
                assert found[name].shape == kept.shape
                assert found[name][kept].tolist() == rows[name][real].tolist()
            assert (found["labels"][~kept] == IGNORED).all() and kept.sum(axis=1).tolist() == lengths
            if ends_in_last_column:
                assert kept[:, -1].all()
            for name in ("next_sentence_label", "cursors"):
                assert np.array_equal(found[name], rows[name])
