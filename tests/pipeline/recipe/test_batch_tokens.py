"""`train.batch_tokens`, `train.tokens` and the schedule's: they become rows and steps when the recipe is read."""

import logging
import re
from pathlib import Path

import pytest

from reread.pipeline.recipe import phases
from reread.pipeline.recipe.check import check_same_run
from reread.pipeline.recipe.continuation import training_recipe
from reread.pipeline.recipe.layers import available_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_of, write_recipe
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError


def rows(name: str, *overrides: str) -> int:
    return train_section(load_recipe(name, list(overrides), "train")).global_batch


def test_tokens_become_whole_rows_of_every_pretraining_recipe() -> None:
    for name in available_recipes():
        if (recipe := load_recipe(name, [])).phases:
            continue  # they have batches of their own
        length = train_section(recipe).data.sequence_length
        train = train_section(load_recipe(name, ["batch_tokens=1000000"], "train"))
        assert (train.global_batch, train.batch_tokens) == (1_000_000 // length, None)


def test_the_later_of_rows_and_tokens_holds(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("base: nezha-base\nname: t\ntrain: {batch_tokens: 6400}\n")
    (tmp_path / "rows.yaml").write_text("base: tokens.yaml\ntrain: {global_batch: 7}\n")
    (tmp_path / "null.yaml").write_text("base: nezha-base\ntrain: {batch_tokens: null}\n")
    tokens = str(tmp_path / "tokens.yaml")
    assert rows(tokens) == 50
    assert rows(tokens, "data.sequence_length=64") == 100
    assert rows(tokens, "global_batch=3") == 3
    assert rows(str(tmp_path / "rows.yaml")) == 7
    assert rows(str(tmp_path / "rows.yaml"), "batch_tokens=1280") == 10
    assert rows(str(tmp_path / "null.yaml")) == 14400
    (tmp_path / "both.yaml").write_text("base: nezha-base\ntrain: {global_batch: 7, batch_tokens: 6400}\n")
    with pytest.raises(UserError, match=r"both\.yaml: train: global_batch and batch_tokens are both given; set one"):
        rows(str(tmp_path / "both.yaml"))


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        (
            "nezha-base",
            "batch_tokens=127",
            r"batch_tokens is 127, 0 whole rows of data\.sequence_length \(128 tokens\)",
        ),
        ("nezha-base", "batch_tokens=1M", r"train\.batch_tokens: input should be a valid integer"),
        ("nezha-base", "batch_tokens=0", r"train\.batch_tokens: input should be greater than or equal to 1"),
        ("nezha-base", "batch_tokens=17592186044416", "give from 128 to 2,147,483,648"),
    ],
)
def test_tokens_that_are_no_batch_are_one_line(name: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        rows(name, override)
    assert "\n" not in str(raised.value)


def test_a_step_of_fine_tuning_is_not_counted_in_tokens() -> None:
    values = {
        "model": {"type": "nezha"},
        "data": {"kind": "classify", "train": "a.tsv"},
        "steps": 1,
        "global_batch": 32,
        "batch_tokens": 4096,
        "optimizer": {"learning_rate": 1},
    }
    with pytest.raises(UserError, match=r"^r: train: batch_tokens is for pretraining; a step of fine-tuning has"):
        Recipe.parse({"name": "r", "train": values}, "r")


def test_the_rows_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    phases._say.cache_clear()
    with caplog.at_level(logging.INFO, logger="reread"):
        for _ in range(2):
            assert rows("nezha-base", "batch_tokens=1_000_000", "data.sequence_length=512") == 1953
    line = "train.global_batch: 1,953 rows of 512 tokens, as train.batch_tokens is 1,000,000"
    assert [record.getMessage() for record in caplog.records] == [line]


def test_a_run_keeps_rows_so_it_resumes_by_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/nezha-base")
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    write_recipe(load_recipe("nezha-base", ["batch_tokens=6400"], "train"), run / "recipe.yaml")
    assert train_section(recipe_of(run)).global_batch == 50
    for given in ("batch_tokens=6400", "batch_tokens=6401", "global_batch=50"):
        check_same_run(run, load_recipe("nezha-base", [given], "train"))
    with pytest.raises(UserError, match=r"train\.global_batch: 50 -> 51\);"):
        check_same_run(run, load_recipe("nezha-base", ["batch_tokens=6528"], "train"))
    again = training_recipe(f"from={run}", ["name=new", "batch_tokens=12800", "steps=9"])
    assert train_section(again).global_batch == 100


def counts(name: str, *overrides: str) -> tuple[int, int, int | None]:
    train = train_section(load_recipe(name, list(overrides), "train"))
    assert (train.tokens, train.schedule.warmup_tokens, train.schedule.decay_tokens) == (None, None, None)
    return train.steps, train.schedule.warmup_steps, train.schedule.decay_steps


def test_lengths_in_tokens_become_the_least_steps_that_hold_them(tmp_path: Path) -> None:
    a_step = ("batch_tokens=12900", "data.sequence_length=128")  # 100 rows: 12,800 tokens
    given = ("tokens=128000", "schedule.warmup_tokens=12801", "schedule.decay_tokens=3.84e4")
    assert counts("nezha-base", *a_step, *given) == (10, 2, 3)
    assert counts("nezha-base", "global_batch=50", *given) == (20, 3, 6)
    assert counts("nezha-base", *a_step, *given, "steps=9", "schedule.warmup_steps=4") == (9, 4, 3)  # the later holds
    (tmp_path / "tokens.yaml").write_text(
        "base: nezha-base\nname: t\ntrain: {global_batch: 1000, tokens: 1.28e7, schedule: {warmup_tokens: 1.28e6}}\n"
        "scales: {tiny: {train: {steps: 7, schedule: {warmup_steps: 0}}}}\n"
    )
    assert counts(str(tmp_path / "tokens.yaml")) == (100, 10, None)
    assert counts(str(tmp_path / "tokens.yaml"), "scale=tiny") == (7, 0, None)
    assert counts(str(tmp_path / "tokens.yaml"), "scale=tiny", "train.tokens=12800001") == (101, 0, None)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("tokens: 1e6, steps: 7", "train: steps and tokens are both given; set one of them to null"),
        (
            "steps: 99, schedule: {decay_steps: 1, decay_tokens: 1e6}",
            "train: schedule.decay_steps and schedule.decay_tokens are both given; set one",
        ),
        ("tokens: 12799", "tokens is 12,799, and a step has 12,800 tokens (100 rows of 128); give from that"),
        ("steps: 9, schedule: {warmup_tokens: 1}", "schedule.warmup_tokens is 1, and a step has 12,800 tokens"),
        (
            "tokens: 9e18",
            "9,000,000,000,000,000,000, and a step has 12,800 tokens (100 rows of 128); give from that to",
        ),
        ("tokens: 0", "train.tokens: input should be greater than or equal to 1"),
        ("tokens: 1M", "train.tokens: input should be a valid number"),
        ("tokens: 25600, schedule: {warmup_tokens: 25600, decay_tokens: 12800}", "than the schedule's 2 steps"),
    ],
)
def test_lengths_in_tokens_that_are_none_are_one_line(tmp_path: Path, given: str, line: str) -> None:
    (tmp_path / "wrong.yaml").write_text(f"base: nezha-base\nname: w\ntrain: {{global_batch: 100, {given}}}\n")
    with pytest.raises(UserError, match=re.escape(line)) as raised:
        counts(str(tmp_path / "wrong.yaml"))
    assert "\n" not in str(raised.value)


def test_fine_tuning_has_no_lengths_in_tokens() -> None:
    for given in ({"tokens": 1e6, "steps": 0}, {"steps": 1, "schedule": {"warmup_tokens": 1e6, "warmup_steps": 0}}):
        values = {
            "model": {"type": "nezha"},
            "data": {"kind": "classify", "train": "a.tsv"},
            "global_batch": 32,
            "optimizer": {"learning_rate": 1},
            **given,
        }
        with pytest.raises(UserError, match=r"^r: train: (tokens|schedule\.warmup_tokens) is for pretraining; a step"):
            Recipe.parse({"name": "r", "train": values}, "r")


def test_a_run_keeps_steps_so_it_resumes_by_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, a_step = Path("runs/nezha-base"), "batch_tokens=12800"
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    write_recipe(load_recipe("nezha-base", [a_step, "tokens=128000"], "train"), run / "recipe.yaml")
    for given in ("tokens=128000", "tokens=127999", "steps=10"):
        check_same_run(run, load_recipe("nezha-base", [a_step, given], "train"))
    assert train_section(training_recipe(f"from={run}", ["name=new", "tokens=256000"])).steps == 20


def test_tokens_are_counted_in_the_rows_of_a_batch_that_grows() -> None:
    """The least steps that hold them, by adding up the steps one by one."""
    given = ["global_batch=50", "batch_warmup={first: 7, tokens: 64001}", "tokens=2e5", "data.sequence_length=64"]
    train = train_section(load_recipe("nezha-base", [*given, "schedule.warmup_tokens=3e4"], "train"))
    sizes = [train.rows_at(step) for step in range(train.steps)]
    warmup = train.batch_warmup
    assert warmup and warmup.steps and sizes[0] == 7 and set(sizes[warmup.steps :]) == {50}
    assert all(abs(size - (7 + 43 * step / warmup.steps)) <= 1 for step, size in enumerate(sizes[: warmup.steps]))
    for steps, tokens in ((warmup.steps, 64001), (train.steps, 2e5), (train.schedule.warmup_steps, 3e4)):
        assert 64 * sum(sizes[:steps]) >= tokens
    assert 64 * sum(sizes[: train.steps - 1]) < 2e5 and 64 * sum(sizes[: train.schedule.warmup_steps - 1]) < 3e4
    one_less = warmup.model_copy(update={"steps": warmup.steps - 1})
    assert 64 * one_less.rows_before(warmup.steps - 1, 50) < 64001
    recipe = load_recipe("modernbert-base", [], "train")
    first, *later = phases.phases_of(recipe)
    assert first.batch_warmup and first.smallest_batch == 768 and [one.batch_warmup for one in later] == [None, None]


def test_a_later_phase_goes_on_with_the_whole_batch(tmp_path: Path) -> None:
    train = "{batch_warmup: {first: 7, steps: 9}, global_batch: 50, steps: null}"
    text = f"base: nezha-base\nname: t\ntrain: {train}\nphases:\n"
    path = tmp_path / "t.yaml"
    path.write_text(text + "- {steps: 9}\n- {steps: 5}\n- {steps: 20, schedule: {restart: true}}\n")
    found = phases.phases_of(load_recipe(str(path), [], "train"))
    assert [one.batch for one in found] == ["7 to 50", "50", "7 to 50"]
    path.write_text(text + "- {steps: 9}\n- {steps: 5, batch_warmup: {first: 3, steps: 2}}\n")
    with pytest.raises(UserError, match=r"phase 2: batch_warmup: a batch grows as a schedule begins; set schedule\.re"):
        load_recipe(str(path), [], "train")
    path.write_text(text + "- {steps: 9}\n- {steps: 5, schedule: {restart: true}}\n")
    with pytest.raises(UserError, match=r"phase 2: batch_warmup\.steps is 9, more than the schedule's 5 steps"):
        phases.phases_of(load_recipe(str(path), [], "train"))
