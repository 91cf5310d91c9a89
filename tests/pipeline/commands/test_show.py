"""`reread show RECIPE --write FILE`: a recipe written out whole, which is the same recipe again."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reread.pipeline.cli import app
from reread.pipeline.commands.show import show, write
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes, scales_of
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.sections import all_sections
from reread.pipeline.recipe.task import FOLLOWS, finetune_recipe
from reread.preprocessing.errors import UserError
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from tests.conftest import ROOT
from tests.tasks import SIZES, write_lines, write_tokenizer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", available_recipes())
def test_a_written_recipe_that_pretrains_is_the_same_recipe(name: str) -> None:
    write(name, [], Path("my.yaml"))
    assert load_recipe("my.yaml", []) == load_recipe(name, [])
    for scale in scales_of(name):
        assert load_recipe("my.yaml", [f"scale={scale}"]) == load_recipe(name, [f"scale={scale}"])


@pytest.mark.parametrize("name", finetuning_recipes())
def test_a_written_recipe_that_fine_tunes_is_the_same_recipe(name: str) -> None:
    """Its values are, since the recipe itself follows from a model and examples, too."""
    write(name, [], Path("my.yaml"))
    assert recipe_values("my.yaml", []) == recipe_values(name, [])
    for scale in scales_of(name):
        assert recipe_values("my.yaml", [f"scale={scale}"]) == recipe_values(name, [f"scale={scale}"])


def test_every_field_stands_below_its_sentence() -> None:
    write("nezha-base", [], Path("my.yaml"))
    text = Path("my.yaml").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 120
    plain = " ".join(re.sub(r"^ *# ", "", text, flags=re.MULTILINE).split())
    sections = {section.path: section for section in all_sections() if section.kind in ("", "rows")}
    for path in ("", "preprocess.clean", "train", "train.data", "train.optimizer", "train.checkpoint"):
        for key in sections[path].keys:
            if key.name != "data":
                assert f"{key.sentence} {key.name}:" in plain, f"{path}.{key.name}"
    assert re.search(
        r"^    # .*Shaw.*\n(    # .*\n)*    #?max_relative_position: null$|max_relative_position", text, re.M
    )
    assert "    hidden_size: 768\n" in text and "    #position_type: " in text


def test_overrides_are_written_and_files_of_other_recipes_are_found_again(here: Path) -> None:
    (here / "own").mkdir()
    (here / "own" / "start.yaml").write_text("base: roberta-small\nname: start\n")
    (here / "own" / "long.yaml").write_text(
        "base: longformer-small\nname: long\nstart: {recipe: start.yaml}\nthen: [{recipe: task.yaml}]\n"
        "scales: {tiny: {train: {steps: 3}}}\n"
    )
    for written in ("my.yaml", "own/my.yaml"):
        write("own/long.yaml", ["steps=7", "batch_tokens=5120"], here / written)
        recipe = load_recipe(written, [])
        assert recipe == load_recipe("own/long.yaml", ["steps=7", "batch_tokens=5120"], "train")
        assert recipe.start and recipe.train and (recipe.train.steps, recipe.train.global_batch) == (7, 10)
        assert Path(str(recipe.start.recipe)).resolve() == here / "own" / "start.yaml"
        assert Path(recipe.then[0].recipe).resolve() == here / "own" / "task.yaml"
        assert load_recipe(written, ["scale=tiny"], "train").train.steps == 3  # type: ignore[union-attr]


def test_steps_of_tokens_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    show("nezha-base", ["batch_tokens=12800", "tokens=1e9", "schedule.warmup_tokens=1e6"])
    found = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {
        "steps: 78125 # of tokens=1e9",
        "global_batch: 100 # of batch_tokens=12800",
        "warmup_steps: 79 # of schedule.warmup_tokens=1e6",
    } <= found


def test_a_file_that_exists_is_not_overwritten(here: Path) -> None:
    (here / "mine.yaml").write_text("name: mine\n")
    for name, message in (
        ("mine.yaml", "mine.yaml: exists and is not overwritten; give another name, or remove it"),
        ("mine.txt", "mine.txt: the name of a recipe's file ends in .yaml"),
        ("nowhere/mine.yaml", "nowhere: is not there, so no file can be written in it; make it first"),
    ):
        result = CliRunner().invoke(app, ["show", "nezha-base", "--write", name])
        assert isinstance(result.exception, UserError) and str(result.exception) == message
    with pytest.raises(UserError, match=r"`train\.optimizer\.learning_rate` is what you mean"):
        write("nezha-base", ["lr=3"], Path("new.yaml"))
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]
    assert (here / "mine.yaml").read_text() == "name: mine\n"


def tiny_model(folder: Path) -> Path:
    """A tiny NEZHA with a tokenizer, as `init` takes it."""
    spec = model_spec("nezha")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, **SIZES["nezha"], "vocab_size": 32}
    model = build_model(spec.converted, model_config(spec, sizes, 32, None), None, 0)
    model.save_pretrained(folder)
    return write_tokenizer(folder)


def test_a_written_fine_tuning_trains_as_its_recipe_does_and_leaves_the_same_to_the_examples(here: Path) -> None:
    tiny_model(here / "model")
    write_lines(here / "train.jsonl", [{"text": "a b c", "label": label} for label in ("x", "y")])
    given = ["init=model", "task.train=train.jsonl", "task.dev=train.jsonl"]
    write("classify", [], Path("my.yaml"))
    recipe = finetune_recipe("classify", given)
    assert finetune_recipe("my.yaml", given) == recipe

    def leaves(values: dict[str, Any], path: str = "") -> set[str]:
        return {
            leaf
            for key, value in values.items()
            for leaf in (leaves(value, f"{path}{key}.") if isinstance(value, dict) and value else {f"{path}{key}"})
        }

    train = recipe.model_dump(exclude_unset=True, mode="json")["train"]
    computed = leaves(train) - leaves(recipe_values("classify", given, "train")["train"])
    unknown = {leaf for leaf in computed if not any(f"{leaf}.".startswith(f"{one}.") for one in FOLLOWS)}
    assert not unknown
    text = Path("my.yaml").read_text(encoding="utf-8")
    assert {"steps", "labels", "best_by", "warmup_steps"} <= set(
        re.findall(r"#(\w+): # follows from the model and the examples", text)
    )
    assert yaml.safe_load(text)["task"] == {"kind": "classify"}
    assert ROOT not in Path("my.yaml").resolve().parents
