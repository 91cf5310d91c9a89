"""RAN and Longformer from the command line: killed and resumed, inspected, exported; a start made by another recipe."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from reread.training.config import TrainSettings
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from tests.conftest import longformer_values, ran_stream_values, ran_values, rarer
from tests.elsewhere import run_elsewhere
from tests.end_to_end.test_lanes import figures, reread
from tests.runs import STEPS, assert_same_end, final_tensors, finish, killed_twice, start

KINDS = {"ran": ran_values, "longformer": longformer_values}


def values_of(kind: str, corpus: Path) -> dict[str, Any]:
    """Settings of model, data and optimizer for `start`, with dropout."""
    values = KINDS[kind](corpus)
    return {name: values[name] for name in ("model", "data", "optimizer")}


@pytest.fixture(scope="module", params=["ran", rarer("longformer")])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def uninterrupted(kind: str, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(kind) / "run"
    finish(start(folder, sample_corpus, **values_of(kind, sample_corpus)))
    return folder


def test_resume_is_exact_twice(kind: str, sample_corpus: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Kill -9 of the whole job at a random step, twice: figures are equal, and weights bit for bit."""
    folder = tmp_path / "killed"
    output = killed_twice(folder, sample_corpus, **values_of(kind, sample_corpus))
    assert "continuing from the checkpoint of step" in output
    assert len([line for line in figures(folder) if "loss" in line]) == STEPS
    assert figures(folder) == figures(uninterrupted)
    assert_same_end(folder, uninterrupted)


@pytest.mark.long
def test_a_language_models_cells_are_there_after_kill_9_twice(sample_corpus: Path, tmp_path: Path) -> None:
    values = ran_stream_values(sample_corpus)
    values = {name: values[name] for name in ("model", "data", "optimizer")}
    finish(start(tmp_path / "whole", sample_corpus, **values))
    killed_twice(tmp_path / "killed", sample_corpus, **values)
    assert figures(tmp_path / "killed") == figures(tmp_path / "whole")
    assert final_tensors(tmp_path / "whole")["memory.000"].any()
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_inspect_shows_the_rows_of_a_recipe(kind: str, sample_corpus: Path, uninterrupted: Path) -> None:
    output = reread(uninterrupted, "inspect", str(sample_corpus), "--recipe", "tiny.yaml", "--samples", "2")
    assert "‹" in output
    assert ("[CLS]" in output) == (kind == "longformer")
    assert ("documents a row" in output) == (kind == "longformer")


def test_export_matches_training(kind: str, uninterrupted: Path, tmp_path: Path) -> None:
    """A fresh process loads RAN by the code beside its weights, Longformer by transformers' own class."""
    reread(uninterrupted, "export", "runs/tiny", str(tmp_path / "exported"))
    run = uninterrupted / "runs" / "tiny"
    settings = TrainSettings.parse(yaml.safe_load((run / "recipe.yaml").read_text())["train"], "test")
    kept = read_run_model(run, settings)
    trained: Any = restore_model(run, kept)[0].eval()
    ids = 5 + torch.arange(2 * 40).reshape(2, 40) * 7 % (kept.config.vocab_size - 5)
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0
    with torch.no_grad():
        expected = trained(input_ids=ids.masked_fill(mask == 0, 0), attention_mask=mask).logits
    torch.save((ids.masked_fill(mask == 0, 0), mask, expected), tmp_path / "expected.pt")
    own = kind == "longformer"
    assert bool(list((tmp_path / "exported").glob("*.py"))) != own
    script = (
        "import sys, torch\n"
        "from transformers import AutoModelForMaskedLM, AutoTokenizer\n"
        "ids, mask, expected = torch.load(sys.argv[2])\n"
        f"model, found = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code={not own}, "
        "output_loading_info=True)\n"
        "assert 'reread' not in sys.modules\n"
        f"assert type(model).__module__.startswith('transformers.models.longformer') == {own}\n"
        "assert not any(found[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), found\n"
        "with torch.no_grad():\n"
        "    logits = model.eval()(input_ids=ids, attention_mask=mask).logits\n"
        "assert torch.allclose(logits[mask > 0], expected[mask > 0], atol=1e-4)\n"
        "tokens = AutoTokenizer.from_pretrained(sys.argv[1])('a [MASK] b')['input_ids']\n"
        "assert len(tokens) == (5 if sys.argv[3] == 'longformer' else 3), tokens\n"
    )
    run_elsewhere(tmp_path, script, tmp_path / "exported", tmp_path / "expected.pt", kind)


@pytest.mark.long
def test_table_1_is_one_command(sample_corpus: Path, tmp_path: Path) -> None:
    """A start is trained, exported and lengthened in two ways; some rows train no steps, one only positions."""
    small = longformer_values(sample_corpus, steps=20, validate_every=20)
    small["data"]["sequence_length"] = 16
    small["model"] |= {"max_position_embeddings": 17, "attention_window": 32}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"name": "small", "train": small}))
    train = longformer_values(sample_corpus, steps=4, init="models/copied", model={"type": "longformer"})
    rows = [
        {"name": "short", "overrides": ["start=null", "init=runs/small/export", "data.sequence_length=16", "steps=0"]},
        {"name": "random", "overrides": ["init=models/random", "start.convert.positions=random", "steps=0"]},
        {"name": "copied", "overrides": ["steps=0"], "published": {"BPC": 1.957}},
        {"name": "all", "overrides": []},
        {"name": "positions", "overrides": ['trainable=["*.position_embeddings.weight[17:]"]']},
    ]
    start = {"recipe": "small.yaml", "convert": {"length": 48, "window": 8}}
    recipe = {"name": "long", "start": start, "train": train, "ablations": rows}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(recipe))
    output = reread(tmp_path, "ablate", "long.yaml")
    assert "bits per token" in output and "1.957" in output
    kept = json.loads((tmp_path / "runs" / "long-ablation.json").read_text())
    bits = {row["name"]: kept[row["name"]]["bits_per_token"] for row in rows}
    assert bits["random"] > bits["copied"] > bits["all"]
    assert bits["copied"] > bits["positions"]
    assert output.count("recipe small is trained and converted") == 2  # once for each way, trained once
    assert output.count("step 20/20 100%") == 1
    for folder in ("models", "runs/small"):
        shutil.rmtree(tmp_path / folder)  # rows that are trained no longer need their start
    assert reread(tmp_path, "ablate", "long.yaml").count("is trained and converted") == 0
