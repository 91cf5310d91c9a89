"""What a recipe of a task takes from the model and the data at hand: the length of a window, whose scores are shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.pipeline.display.scores import published_for
from reread.pipeline.recipe.load import load_recipe, override_learned
from reread.pipeline.recipe.schema import Published, train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError
from tests.pipeline.commands import test_finetuning

folder = test_finetuning.folder  # a model and examples


@pytest.mark.parametrize(
    ("config", "stated", "length"),
    [
        ({"model_type": "nezha"}, [], 512),
        ({"model_type": "nezha", "position_type": "parametric_absolute", "max_position_embeddings": 64}, [], 64),
        ({"model_type": "longformer", "max_position_embeddings": 4098, "pad_token_id": 1}, [], 4096),
        ({"model_type": "longformer", "max_position_embeddings": 4098, "pad_token_id": 1}, [256], 256),
        ({"model_type": "ran"}, [], 512),
    ],
)
def test_a_recipe_of_four_lines_reads_what_the_model_can(
    config: dict[str, Any], stated: list[int], length: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "model" / "config.json").write_text(json.dumps(config))
    task = {"kind": "classify", "train": "train.jsonl", "dev": "dev.jsonl"}
    task |= {"sequence_length": stated[0]} if stated else {}
    (folder / "mine.yaml").write_text(
        yaml.safe_dump({"name": "mine", "task": task, "finetune": {"epochs": 5}, "train": {"init": "model"}})
    )
    with caplog.at_level("INFO", "reread"):
        train = train_section(finetune_recipe("mine.yaml", []))
    assert train.data.sequence_length == length  # type: ignore[attr-defined]
    assert (train.optimizer.name, train.optimizer.learning_rate, train.steps) == ("adam", 3e-5, 2)
    assert any(f"task.sequence_length: {length} tokens" in line for line in caplog.messages) == (not stated)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ({"dev": 1200}, True),
        ({"dev": 300, "test": 1200}, True),
        ({"dev": 1090}, True),  # wrong examples left out
        ({"dev": 1201}, False),
        ({"dev": 1000, "test": 1000}, False),
        ({}, False),
    ],
)
def test_the_papers_scores_are_shown_where_the_data_are_theirs(counts: dict[str, int], shown: bool) -> None:
    given = ["task.train=train.tsv", "task.tokenizer=model", "steps=1", "model.type=nezha"]
    recipe = load_recipe("nezha-chnsenticorp", given, "train")
    assert recipe.finetune is not None
    published, reason = published_for(recipe.finetune, counts)
    assert published == (recipe.finetune.published if shown else [])
    assert reason.startswith("the papers' scores are not shown: they are of held-out files of 1,200 exa") == (not shown)
    own = recipe.finetune.model_copy(update={"published_sizes": [], "published": [Published(model="A", scores={})]})
    assert published_for(own, counts) == (own.published, "")
    neutral = load_recipe("classify", given, "train")
    assert published_for(neutral.finetune, {"dev": 1200}) == ([], "")


@pytest.mark.parametrize(
    ("tags", "given", "found"),
    [
        (["B-x", "I-x", "O"], [], "BIO"),
        (["B-x", "M-x", "E-x", "S-y"], [], "BIOES"),
        (["B-x", "E-x"], ["task.scheme=BIO"], "train.jsonl:2: tag `E-x` is not of the scheme BIO; set task.scheme="),
        (["O", "b-x"], [], "train.jsonl:2: tag `b-x` is neither O nor a type after"),
        (["NN", "VB"], ["task.dev=null"], "BIO"),
    ],
)
def test_the_scheme_of_tags_is_found_before_anything_is_trained(
    tags: list[str], given: list[str], found: str, folder: Path
) -> None:
    lines = [json.dumps({"tokens": ["a"], "tags": [tag]}) for tag in tags]
    (folder / "train.jsonl").write_text("\n".join(lines))
    files = ["init=model", "task.train=train.jsonl", "task.dev=train.jsonl"]
    if ":" in found:
        with pytest.raises(UserError, match=re.escape(found)):
            finetune_recipe("tag", [*files, *given])
    else:
        assert train_section(finetune_recipe("tag", [*files, *given])).data.scheme == found  # type: ignore[attr-defined]


def test_a_name_that_a_run_of_another_model_has_is_refused_as_that(folder: Path) -> None:
    begun = folder / "runs" / "tune"
    (begun / "checkpoints" / "step-00000001").mkdir(parents=True)
    (begun / "model").mkdir()
    (begun / "model" / "config.json").write_text(json.dumps({"model_type": "reread_ernie_doc"}))
    line = "runs/tune: this run was begun with a model of type ernie_doc, and model is of type nezha; give the new run"
    with pytest.raises(UserError, match=line):
        finetune_recipe("tune.yaml", ["init=model"])


def test_home_is_expanded_before_folds_are_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    lines = [json.dumps({"text": str(number), "label": "xy"[number % 2]}) for number in range(8)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    given = ["init=~/model", "task.train=~/train.jsonl", "task.dev=~/dev.jsonl", "finetune.folds=2"]
    recipe = train_section(finetune_recipe("classify", given))
    assert (recipe.init, recipe.data.dev) == (folder / "model", folder / "dev.jsonl")  # type: ignore[attr-defined]


def test_another_threshold_takes_the_place_of_those_that_were_chosen() -> None:
    for overrides, left in (([], [0.5, 0.2]), (["task.threshold=0.1"], []), (["task.thresholds=[1,0]"], [1, 0])):
        task = {"kind": "classify", "threshold": "each", "thresholds": [0.5, 0.2]}
        values = {"train": {"data": task}}
        override_learned(values, overrides)
        assert task["thresholds"] == left
