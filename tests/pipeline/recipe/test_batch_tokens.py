"""`train.batch_tokens`: a batch in tokens becomes rows when the recipe is read."""

import logging
from pathlib import Path

import pytest

from reread.pipeline.recipe import load
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
        length = train_section(load_recipe(name, [])).data.sequence_length
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
    load._say_rows.cache_clear()
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
