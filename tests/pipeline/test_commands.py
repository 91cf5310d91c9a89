"""A recipe that starts from another one's model: what is made, when, and which mistakes are told before."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import commands
from pipeline.recipe import Recipe, load_recipe
from preprocessing.errors import UserError
from tests.conftest import longformer_values
from training.exchange import convert as conversion


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
    monkeypatch.setattr(commands, "train_stage", lambda recipe, arguments: calls.append((recipe.name, *arguments)))
    monkeypatch.setattr(commands, "export_stage", export)
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
    commands.start_stage(recipe)
    small = str(tmp_path / "small.yaml")
    assert done == [
        ("small", "train", small, "data.corpus=corpora/x", "steps=3"),
        ("export", "small"),
        ("runs/small/export", "models/start", "longformer", {"length": 48, "window": 8}),
    ]
    commands.start_stage(recipe)
    assert len(done) == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init=null", r"`start` makes train\.init, which is null"),
        ("name=small", r"start\.recipe has this name, too"),
        ("start.convert.window=7", "--window: 7; give an even number"),
        ("model.type=nezha", r"--length: not for nezha; models that take it: longformer"),
        ("model={}", "model type `` is unknown"),
    ],
)
def test_a_start_that_cannot_be_made_is_refused_before_anything_is_trained(
    done: list[Any], tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        commands.start_stage(recipe_of(tmp_path, override))
    assert done == []


def test_below_torchrun_a_missing_start_is_told(done: list[Any], tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    with (
        pytest.raises(UserError, match=r"models/start: not there, and below torchrun"),
        commands._run_folder(recipe, tmp_path / "runs" / "long"),
    ):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_run_that_has_begun_needs_its_start_no_more(done: list[Any], tmp_path: Path) -> None:
    """Its checkpoint holds every weight: nothing is trained again, by itself or below torchrun."""
    recipe = recipe_of(tmp_path)
    (tmp_path / "runs" / "long" / "checkpoints" / "step-00000002").mkdir(parents=True)
    commands.start_stage(recipe)
    with commands._run_folder(recipe, tmp_path / "runs" / "long"):
        pass
    assert done == []
