from hashlib import md5
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.training.data.batch import IGNORED
from reread.training.data.masking.masking import mask
from reread.training.data.order import random
from reread.training.data.order.random import Purpose
from reread.training.data.settings import MaskingSettings

UNKNOWN_ID, MASK_ID = 1, 4
VOCABULARY = 21128
REPLACEMENTS = np.arange(5, VOCABULARY)
STRATEGIES = get_args(MaskingSettings.model_fields["strategy"].annotation)


def make_rows(rows: int, columns: int, seed: int = 0, continuing: float = 0.4) -> dict[str, Any]:
    """Random pairs of random length; ids are 1000 and up, so none is special."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(5, columns + 1, rows)
    middle = generator.integers(2, lengths - 2)
    column = np.arange(columns)
    eligible = (column > 0) & (column < lengths[:, None] - 1) & (column != middle[:, None])
    return {
        "ids": np.where(eligible, generator.integers(1000, VOCABULARY, (rows, columns)), 3).astype(np.int32),
        "continues": eligible & (generator.random((rows, columns)) < continuing),
        "eligible": eligible,
        "lengths": lengths,
        "keys": random.key(seed, np.arange(rows)),
    }


def run(rows: dict[str, Any], strategy: Any, **settings: Any) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Input ids and which tokens are predicted; checks what always holds."""
    options = MaskingSettings(strategy=strategy, **settings)
    arguments = {
        **rows,
        "settings": options,
        "replacements": REPLACEMENTS,
        "mask_id": MASK_ID,
        "unknown_id": UNKNOWN_ID,
    }
    ids, continues, eligible = (arguments.pop(name) for name in ("ids", "continues", "eligible"))
    inputs = ids.copy()
    labels = mask(inputs, continues, eligible, **arguments)
    predicted = labels != IGNORED
    assert not (predicted & ~eligible).any()
    assert np.array_equal(labels[predicted], ids[predicted])
    assert np.array_equal(inputs[~predicted], ids[~predicted])
    return inputs, predicted


def words_of(rows: dict[str, Any], row: int) -> list[list[int]]:
    """The columns of each word, as BERT's loop collects them."""
    words: list[list[int]] = []
    for column in np.flatnonzero(rows["eligible"][row]).tolist():
        if words and rows["continues"][row, column] and words[-1][-1] == column - 1:
            words[-1].append(column)
        else:
            words.append([column])
    return words


@pytest.mark.parametrize("strategy", ["token", "whole-word"])
@pytest.mark.parametrize("columns", [8, 61, 128, 300])
@pytest.mark.parametrize("continuing", [0.1, 0.5, 0.85])
def test_the_choice_is_berts_greedy_one(strategy: str, columns: int, continuing: float) -> None:
    rows = make_rows(200, columns, seed=columns, continuing=continuing)
    _, predicted = run(rows, strategy)
    draw = random.words(rows["keys"], Purpose.UNIT_ORDER, columns)
    low = (1 << (columns - 1).bit_length()) - 1
    for row, length in enumerate(rows["lengths"].tolist()):
        units = words_of(rows, row)
        if strategy == "token":
            units = [[column] for unit in units for column in unit]
        units.sort(key=lambda unit: (int(draw[row, unit[0]]) & ~low, unit[0]))
        budget = max(1, round(0.15 * length))
        taken: list[int] = []
        for unit in units:
            if len(taken) >= budget:
                break
            if len(taken) + len(unit) > budget:
                continue
            taken += unit
        taken = taken or min(units, key=len)
        assert sorted(taken) == np.flatnonzero(predicted[row]).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_is_masked_the_same_in_any_batch(strategy: str) -> None:
    rows = make_rows(100, 64)
    whole, _ = run(rows, strategy)
    part, _ = run({name: values[37:41] for name, values in rows.items()}, strategy)
    assert np.array_equal(whole[37:41], part)


@pytest.mark.parametrize("strategy", ["whole-word", "span"])
def test_words_are_masked_whole(strategy: str) -> None:
    rows = make_rows(500, 128)
    _, predicted = run(rows, strategy)
    for row in range(500):
        for word in words_of(rows, row):
            assert predicted[row, word].all() or not predicted[row, word].any()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shares_are_those_of_the_recipe(strategy: str) -> None:
    rows = make_rows(3000, 128)
    inputs, predicted = run(rows, strategy)
    share = predicted.sum() / rows["lengths"].sum()
    assert 0.14 < share < (0.155 if strategy == "span" else 0.152)
    chosen, original = inputs[predicted], rows["ids"][predicted]
    tolerance = 0.02 if strategy == "span" else 0.008
    assert abs((chosen == MASK_ID).mean() - 0.8) < tolerance
    assert abs((chosen == original).mean() - 0.1) < tolerance
    replaced = chosen[(chosen != MASK_ID) & (chosen != original)]
    assert replaced.min() >= 5 and abs(replaced.mean() / VOCABULARY - 0.5) < 0.02


def test_no_row_is_over_its_budget_unless_its_shortest_word_is() -> None:
    rows = make_rows(2000, 40, continuing=0.8)
    _, predicted = run(rows, "whole-word")
    budgets = np.maximum(1, np.rint(0.15 * rows["lengths"]))
    for row in np.flatnonzero(predicted.sum(axis=1) > budgets).tolist():
        assert predicted[row].sum() == min(map(len, words_of(rows, row)))
    assert predicted.any(axis=1).all()


def test_the_action_is_drawn_for_each_token_of_a_word() -> None:
    rows = make_rows(1000, 128, continuing=0.5)
    inputs, predicted = run(rows, "whole-word")
    mixed = touched = 0
    for row in range(1000):
        for word in words_of(rows, row):
            if len(word) == 2 and predicted[row, word[0]]:
                touched += 1
                mixed += len(set((inputs[row, word] == MASK_ID).tolist())) == 2
    assert abs(mixed / touched - 2 * 0.8 * 0.2) < 0.02


def test_masks_of_tokens_and_words_stay_as_they_were() -> None:
    """The masks equal those of earlier releases bit for bit, so that a run begun with them can resume."""
    for strategy, before in {
        "token": "7874382714c848ab780737f05d0c76c2",
        "whole-word": "8ebe3c1ebc7be41385d22c70c122b661",
    }.items():
        digest = md5()
        for columns, continuing in product((8, 61, 128, 300, 4096), (0.1, 0.5, 0.85)):
            rows = make_rows(200 if columns < 4096 else 20, columns, seed=columns, continuing=continuing)
            for values in run(rows, strategy):
                digest.update(values.tobytes())
        assert digest.hexdigest() == before


@pytest.mark.parametrize("strategy", ["whole-word", "span"])
def test_a_word_may_fill_its_row_to_the_end(strategy: str) -> None:
    rows = make_rows(3, 12)
    rows["eligible"][:] = True
    rows["continues"][:] = True  # even its first column: a word cut in two
    _, predicted = run(rows, strategy)
    assert predicted.all()


def test_rows_without_text_are_left_alone() -> None:
    rows = make_rows(4, 16)
    rows["eligible"][2] = False
    _, predicted = run(rows, "whole-word")
    assert predicted.any(axis=1).tolist() == [True, True, False, True]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_unknown_tokens_and_words_with_them_are_predicted_only_if_asked(strategy: str) -> None:
    """The others are predicted instead: as many of them as the budget asks for."""
    rows = make_rows(300, 128, seed=4)
    generator = np.random.default_rng(5)
    rows["ids"] = np.where(rows["eligible"] & (generator.random(rows["ids"].shape) < 0.2), UNKNOWN_ID, rows["ids"])
    rows["ids"][7][rows["eligible"][7]] = UNKNOWN_ID  # nothing in this row can be predicted
    _, asked = run(rows, strategy, predict_unknown=True)
    _, predicted = run(rows, strategy)
    unknown = rows["ids"] == UNKNOWN_ID
    assert (asked & unknown).any() and not (predicted & unknown).any()
    assert not predicted[7].any() and predicted[np.arange(300) != 7].any(axis=1).all()
    if strategy != "token":
        for row in range(300):
            for word in words_of(rows, row):
                assert len(set(predicted[row, word].tolist())) == 1
    assert predicted.sum() == pytest.approx(asked.sum(), rel=0.1)
