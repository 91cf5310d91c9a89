"""The recipe of `reread train from=RUN`."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.recipe.continuation import training_recipe
from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.pipeline.recipe.schema import train_section
from reread.preprocessing.errors import UserError


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    write_recipe(
        load_recipe("nezha-small", ["name=first", "steps=100", "init=somewhere"], "train"), run / "recipe.yaml"
    )
    return "runs/first"


def test_it_is_that_of_the_run_with_overrides_and_the_changes_are_logged(begun: str, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "reread"):
        recipe = training_recipe(f"from={begun}@50", ["name=more", "steps=200", "optimizer.learning_rate=0.5"])
    train = train_section(recipe)
    assert (recipe.name, train.steps, train.from_run, train.init) == ("more", 200, f"{begun}@50", None)
    assert train.model == train_section(load_recipe("nezha-small", [], "train")).model
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("unlike runs/first: ")
    changes = line.removeprefix("unlike runs/first: ").split("; ")
    assert len(changes) == 2 and "steps: 100 -> 200" in changes
    assert changes[0].startswith("optimizer.learning_rate: ") and changes[0].endswith(" -> 0.5")


def test_another_recipe_may_be_given(begun: str) -> None:
    recipe = training_recipe("nezha-small", [f"from={begun}", "name=other", "seed=3"])
    assert (train_section(recipe).seed, train_section(recipe).from_run) == (3, begun)


@pytest.mark.parametrize("recipe", [[], ["nezha-small"]])
def test_a_run_that_has_begun_goes_on_without_the_one_it_began_from(begun: str, recipe: list[str], caplog: Any) -> None:
    command = [*recipe, f"from={begun}", "name=more", "steps=200"]
    first = training_recipe(command[0], command[1:])
    (Path("runs/more") / "checkpoints" / "step-00000150").mkdir(parents=True)
    write_recipe(first, Path("runs/more/recipe.yaml"))
    shutil.rmtree(begun)
    with caplog.at_level(logging.INFO, "reread"):
        assert training_recipe(command[0], command[1:]) == first
    assert caplog.messages == ["from: runs/first is not there; runs/more goes on with its own recipe"]


def test_mistakes_are_one_line(begun: str) -> None:
    with pytest.raises(UserError, match="give the new run a name of its own with name="):
        training_recipe(f"from={begun}", ["steps=200"])
    with pytest.raises(UserError, match=r"runs/none/recipe\.yaml: not there; is it a run of `reread train`"):
        training_recipe("from=runs/none", ["name=more"])
    with pytest.raises(UserError, match="from_run is for pretraining"):
        task = ["task.train=a.tsv", "task.tokenizer=b", "micro_batch=1", "train.model={type: nezha}", "steps=1"]
        training_recipe("nezha-chnsenticorp", [f"from={begun}", "name=more", *task, "global_batch=1"])
