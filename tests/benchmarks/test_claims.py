"""The claims of the papers: the table is what the results give, and the sharpest are decided again in seconds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.claims import run, table
from benchmarks.claims.experiment import Condition, signs
from benchmarks.claims.probe import accuracy
from benchmarks.claims.questions import ANSWERS, ASKED, CHANCE, FREE, GROUPS, QUESTIONS, question, register, shown
from benchmarks.claims.recurrence import SKIM, write_skim
from benchmarks.claims.review import REVIEW, ran
from benchmarks.claims.review import write as write_review
from benchmarks.harness import add_result, between, read_results
from reread.training.models import model_spec
from reread.training.objectives import OBJECTIVES

RESULTS = read_results(table.RESULTS)


@pytest.fixture
def objectives() -> Iterator[None]:
    """The objectives of the claims, in the trainer's tables for one test."""
    tables: list[Any] = [OBJECTIVES, *(model_spec(name).heads for name in ("transformer_xl", "ernie_doc", "ran"))]
    before = [dict(one) for one in tables]
    register()
    yield
    for one, names in zip(tables, before, strict=True):
        one.clear()
        one.update(names)


def test_the_page_of_claims_is_what_the_results_give() -> None:
    assert between(table.PAGE.read_text(encoding="utf-8"), table.BEGIN, table.END) == table.page(RESULTS)


def test_the_results_are_of_the_settings_that_the_experiments_have() -> None:
    keys = {
        (one.name, side): one.key(side, "") for one in table.EXPERIMENTS if not one.reads_text for side in one.sides
    }
    of_made_text = [one for one in RESULTS if one["text"] is None]
    assert of_made_text
    assert all(keys[one["experiment"], one["side"]] == one["key"] for one in of_made_text)


def test_no_answer_is_shown_to_the_model() -> None:
    ids = question(np.arange(ANSWERS)[:, None], np.arange(GROUPS))
    assert len(np.unique(ids)) == ids.size and ids.min() == QUESTIONS and ids.max() == FREE - 1
    assert (shown(ids) == ASKED).all()
    others = np.array([*range(QUESTIONS), FREE, FREE + 1])
    assert (shown(others) == others).all()


def test_a_probe_is_tested_on_what_it_was_not_fitted_on() -> None:
    words = np.arange(32).repeat(20)
    classes, folds = words % 8, words // 8
    assert accuracy(np.eye(8)[classes], classes, folds) == 1.0
    assert accuracy(np.eye(32)[words], classes, folds) < 0.5
    assert accuracy(np.eye(32)[words], classes, np.arange(len(words)) % 2) == 1.0


def test_a_claim_is_decided_by_eight_seeds_that_agree() -> None:
    """A sign test needs all of eight seeds, eight of nine, nine of ten; a margin of 0 counts for neither side."""
    assert signs([0.1] * 8) == 1 and signs([-0.1] * 8) == -1
    assert signs([0.1] * 7) == 0, "fewer seeds decide nothing"
    assert signs([0.1] * 7 + [-0.1]) == 0 and signs([0.1] * 7 + [0.0]) == 1
    assert signs([0.1] * 8 + [-0.1]) == 1 and signs([0.1] * 8 + [-0.1] * 2) == 0
    assert signs([0.0] * 8) == signs([]) == 0
    for count in range(8, 15):  # beside the exact chance, by counting all outcomes of so many fair coins
        outcomes = np.array([bin(outcome).count("1") for outcome in range(1 << count)])
        for above in range(count + 1):
            as_far = np.abs(outcomes - count / 2) >= abs(above - count / 2)
            assert abs(signs([1.0] * above + [-1.0] * (count - above))) == (as_far.mean() <= 0.05)


def test_a_claim_does_not_hold_where_one_condition_is_contradicted() -> None:
    sides: dict[str, Any] = {"a": {}, "b": {}}
    claim = replace(
        SKIM.claims[0], conditions=(Condition("a", "x", 0.9), Condition("a", "x", 0.5, above=False, less=("b", "x")))
    )
    experiment = replace(SKIM, sides=sides, claims=(claim,))

    def verdict(*pairs: tuple[float, float]) -> str:
        results = [
            {"experiment": "skim", "side": side, "seed": seed, "figures": {"x": value}}
            for seed, values in enumerate(pairs)
            for side, value in zip("ab", values, strict=True)
        ]
        return table.verdict(claim, table.by_seed(experiment, results))

    holding, first_fails, second_fails = (0.95, 0.5), (0.85, 0.5), (0.95, 0.1)
    assert verdict() == "undecided"
    assert verdict(*[holding] * 7) == "undecided"
    assert verdict(*[holding] * 8) == "holds"
    assert verdict(*[holding] * 6, first_fails, second_fails) == "undecided"
    assert verdict(*[second_fails] * 8) == "does not hold"
    assert verdict(*[first_fails] * 4, *[(0.85, 0.1)] * 4) == "does not hold"


def test_a_killed_run_goes_on_after_its_last_whole_result(tmp_path: Path) -> None:
    path, text = tmp_path / "results.jsonl", ""
    wanted = run.missing([SKIM], (0, 1), text, [])
    assert [(one["seed"], one["side"]) for one in wanted] == [(seed, side) for seed in (0, 1) for side in SKIM.sides]
    add_result(path, wanted[0])
    with path.open("a") as file:
        file.write(json.dumps(wanted[1])[:40])
    assert run.missing([SKIM], (0, 1), text, read_results(path)) == wanted[1:]
    add_result(path, wanted[1])
    assert run.missing([SKIM], (0, 1), text, read_results(path)) == wanted[2:]
    changed = replace(SKIM, sides={name: {**side, "steps": 7} for name, side in SKIM.sides.items()})
    assert len(run.missing([changed], (0, 1), text, read_results(path))) == len(wanted)


def skimmed(tmp_path: Path, side: str, steps: int) -> dict[str, float]:
    """Accuracy by segment of one side of `SKIM` with one layer, on 3 segments that ask four times each."""
    values = SKIM.sides[side]
    changes = {"steps": steps, "schedule": {"warmup_steps": 20}, "optimizer": {"learning_rate": 0.005}}
    sides = {side: {**values, **changes, "model": {**values["model"], "num_hidden_layers": 1}}}
    experiment = replace(SKIM, sides=sides, write=lambda folder, seed, text: write_skim(folder, seed, text, 3, 4))
    return experiment.run(side, 0, tmp_path)


@pytest.mark.long
def test_reading_twice_reaches_all_segments_with_enhanced_recurrence_and_one_a_layer_with_shifted(
    objectives: None, tmp_path: Path
) -> None:
    """The answer stands in the last segment. One layer with shifted memory reaches one segment: the first one after
    the skim knows, the second does not; read once, only the last one knows."""
    enhanced = skimmed(tmp_path, "enhanced, read twice", 120)
    assert min(enhanced.values()) > 0.9
    shifted = skimmed(tmp_path, "shifted, read twice", 80)
    assert shifted["1"] > 0.9 and shifted["3"] > 0.9
    assert shifted["2"] < 2 * CHANCE
    once = skimmed(tmp_path, "enhanced, read once", 80)
    assert once["3"] > 0.9
    assert max(once["1"], once["2"]) < 2 * CHANCE


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("review", [True, False])
def test_tokens_find_what_any_window_holds_with_memory_review_alone(
    objectives: None, tmp_path: Path, review: bool
) -> None:
    """4 windows hold a name and its value, two more ask for the values."""
    side = {**ran(70, names=4, memory_review=review), "optimizer": {"learning_rate": 0.004}}
    experiment = replace(
        REVIEW, sides={"": side}, write=lambda folder, seed, text: write_review(folder, seed, text, 4, 2600)
    )
    found = experiment.run("", 0, tmp_path)["accuracy"]
    assert found > 0.9 if review else found < 0.6
