"""Recipes that start from another's model, which is trained, exported and converted first."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.pipeline.recipe.check import check_train
from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.run_folder import train as train_module
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import open_task
from reread.training.data.tasks import examples
from reread.training.exchange import convert as conversion
from tests.conftest import longformer_values
from tests.tasks import task_values, write_lines, write_tokenizer


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was trained, exported and converted, instead of doing it."""
    calls: list[Any] = []

    def export(run: Path, output: Path | None) -> Path:
        calls.append(("export", run.name))
        return run / "export"

    def convert(source: Path, out: Path, model: str, **options: Any) -> None:
        calls.append((str(source), str(out), model, options))
        out.mkdir(parents=True)
        (out / "config.json").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_module, "train", lambda recipe, arguments: calls.append((recipe.name, *arguments)))
    monkeypatch.setattr(train_module, "export", export)
    monkeypatch.setattr(conversion, "convert", convert)
    return calls


def recipe_of(folder: Path, *overrides: str) -> Recipe:
    train = longformer_values(Path("corpora/x"))
    (folder / "small.yaml").write_text(yaml.safe_dump({"name": "small", "train": train}))
    start = {"recipe": "small.yaml", "overrides": ["steps=3"], "convert": {"length": 48, "window": 8}}
    values = {"name": "long", "start": start, "train": {**train, "init": "models/start"}}
    (folder / "long.yaml").write_text(yaml.safe_dump(values))
    return load_recipe(str(folder / "long.yaml"), list(overrides), "train")


def test_a_start_is_trained_exported_and_converted_once(done: list[Any], tmp_path: Path) -> None:
    """An export that lies there from before is not trusted: it may be of a step half-way."""
    (tmp_path / "runs" / "small" / "export").mkdir(parents=True)
    recipe = recipe_of(tmp_path)
    train_module.make_start(recipe)
    small = str(tmp_path / "small.yaml")
    assert done == [
        ("small", "train", small, "data.corpus=corpora/x", "steps=3"),
        ("export", "small"),
        ("runs/small/export", "models/start", "longformer", {"length": 48, "window": 8}),
    ]
    train_module.make_start(recipe)
    assert len(done) == 3


def test_a_start_may_be_released_weights(done: list[Any], tmp_path: Path) -> None:
    released = ["start.recipe=null", "start.weights=roberta-base"]
    with pytest.raises(
        UserError, match=r"roberta-base is not there; get it .*; a model of the Hub is given as OWNER/NAME"
    ):
        check_train(recipe_of(tmp_path, *released))
    with pytest.raises(UserError, match="give either recipe or weights"):
        recipe_of(tmp_path, "start.weights=roberta-base")
    (tmp_path / "roberta-base").mkdir()
    check_train(recipe_of(tmp_path, *released))
    train_module.make_start(recipe_of(tmp_path, *released))
    assert done == [("roberta-base", "models/start", "longformer", {"length": 48, "window": 8})]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init=null", r"`start` makes train\.init, which is null"),
        ("name=small", r"start\.recipe has this name, too"),
        ("start.convert.window=7", r"start\.convert\.window: input should be a multiple of 2"),
        ("model.type=nezha", r"--length: not for nezha; models that take it: longformer"),
        ("model={}", "model type `` is unknown"),
    ],
)
def test_a_start_that_cannot_be_made_is_refused_before_anything_is_trained(
    done: list[Any], tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train_module.make_start(recipe_of(tmp_path, override))
    assert done == []


def test_below_torchrun_a_missing_start_is_refused(done: list[Any], tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    with (
        pytest.raises(UserError, match=r"models/start: does not exist, and `start` cannot make it under torchrun"),
        train_module._prepared(recipe, tmp_path / "runs" / "long"),
    ):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_half_written_checkpoint_holds_no_weights_to_begin_with(done: list[Any], tmp_path: Path) -> None:
    """A run killed in its first save begins anew, so it needs its start."""
    (tmp_path / "runs" / "long" / "checkpoints" / "step-00000002.tmp").mkdir(parents=True)
    train_module.make_start(recipe_of(tmp_path))
    assert [call[0] for call in done] == ["small", "export", "runs/small/export"]


def test_a_run_that_has_begun_needs_its_start_no_more(done: list[Any], tmp_path: Path) -> None:
    """Its checkpoint holds every weight: nothing is trained again, by itself or below torchrun."""
    recipe = recipe_of(tmp_path)
    (tmp_path / "runs" / "long" / "checkpoints" / "step-00000002").mkdir(parents=True)
    train_module.make_start(recipe)
    with train_module._prepared(recipe, tmp_path / "runs" / "long"):
        pass
    assert done == []


@pytest.mark.parametrize(("step", "said"), [(None, True), ("1", False)])
def test_a_script_of_several_nodes_without_srun_is_told_that_it_uses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str | None, said: bool
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("here it ends")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_module, "check_same_run", refuse)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "10")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    if step:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", step)
    recipe = Recipe.parse({"name": "x", "train": longformer_values(Path("corpora/x"))}, "test")
    with pytest.raises(UserError, match="here it ends"):
        train_module.train(recipe, [])
    assert ("Slurm gave this job 10 nodes, and only this one is used" in caplog.text) is said


def test_the_launcher_holds_no_examples_while_its_processes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_lines(tmp_path / "train.jsonl", [{"text": "a b", "label": "u"}])
    values = task_values("nezha", "classify", write_tokenizer(tmp_path / "tokenizer"), labels=["u"], train=str(file))
    recipe = Recipe.parse({"name": "task", "train": {**values, "parallel": {"processes": 2}}}, "test")
    held: list[int] = []

    def launched(arguments: list[str], processes: int) -> int:
        held.append(examples._read.cache_info().currsize)
        return 0

    for name in ("check_same_run", "keep_records"):
        monkeypatch.setattr(train_module, name, lambda *_: None)
    monkeypatch.setattr(train_module, "launch", launched)
    monkeypatch.setattr(train_module, "check_train", lambda recipe: open_task(recipe.train.data, 0, "train"))
    train_module.train(recipe, [])
    assert held == [0]
