"""`reread run` of a recipe with `then`: pretraining, fine-tuning and scores by one command."""

import json
import statistics
from pathlib import Path

import pytest
import torch
import yaml

from reread.pipeline.recipe.load import load_recipe
from reread.training.checkpoint.store import CheckpointStore
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import NezhaForPreTraining
from reread.training.parallel.mesh import Mesh
from tests.conftest import train_values
from tests.forks import Job
from tests.runs import finish


def reread(folder: Path, *arguments: str) -> str:
    return finish(Job(folder, *arguments, processes=1))


def line_of_gain(runs: Path) -> str:
    """The last line, from the scores that the runs keep; random weights are those of step 0 of the same run."""
    store = CheckpointStore(runs / "pre-random" / "checkpoints", 1, Mesh())
    trained = CheckpointStore(runs / "pre" / "checkpoints", 1, Mesh()).read_full(2, "model.")
    settings = load_recipe(str(runs / "pre" / "recipe.yaml"), []).train
    assert settings is not None and store.steps() == [0]
    torch.manual_seed(settings.seed)
    config = json.loads((runs / "pre" / "model" / "config.json").read_text())
    fresh = dict(NezhaForPreTraining(NezhaConfig(**config)).named_parameters())
    for name, tensor in store.read_full(0, "model.").items():
        assert torch.equal(tensor, fresh[name]), name
        assert name.endswith("bias") or not torch.equal(tensor, trained[name]), name
    found = {}
    for start in ("pre-tune-random", "pre-tune"):
        scores = [
            json.loads((runs / f"{start}-seed{seed}" / "scores.json").read_text())["dev"]["accuracy"] for seed in (0, 1)
        ]
        found[start] = f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}"
    return (
        f"what pretraining gains, accuracy (dev, 2 seeds): {found['pre-tune-random']} from random weights, "
        f"{found['pre-tune']} pretrained"
    )


@pytest.mark.long
def test_a_chain_fine_tunes_the_model_it_has_trained_and_does_nothing_twice(
    sample_corpus: Path, tmp_path: Path
) -> None:
    train = train_values(sample_corpus, steps=2, validate_every=100)
    lines = [{"id": str(n), "text": "我喜欢读书" * (1 + n), "label": "xy"[n % 2]} for n in range(8)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:3]))
    tune = {
        "name": "tune",
        "task": {"kind": "classify", "sequence_length": 24},
        "finetune": {"epochs": 1, "seeds": 2, "published": [{"model": "BERT", "scores": {"accuracy": 91}}]},
        "train": {"global_batch": 4, "optimizer": {"name": "adam", "learning_rate": 0.001}, "peak_tflops": 1.0},
    }
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(tune))
    given = ["task.train=texts.jsonl", "task.dev=texts.jsonl"]
    then = [{"recipe": "tune.yaml", "overrides": given, "random": True}]
    (tmp_path / "pre.yaml").write_text(yaml.safe_dump({"name": "pre", "train": train, "then": then}))
    output = reread(tmp_path, "run", "pre.yaml")
    assert output.count("done: 2 steps") == 5
    for line in ("ours, 2 seeds", "baseline: majority", "paper: BERT"):
        assert f"  {line}  " in output
    kept = [tmp_path / "runs" / f"pre-tune-seed{seed}" / "scores.json" for seed in (0, 1)]
    scores = [path.read_bytes() for path in kept]
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("checkpoints/**/*.safetensors")}
    again = reread(tmp_path, "run", "pre.yaml")
    assert "done: 2 steps" not in again and again.count("nothing to do: all 2 steps are done") == 5
    assert again.splitlines()[-1] == output.splitlines()[-1] == line_of_gain(tmp_path / "runs")
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert [path.read_bytes() for path in kept] == scores

    evaluated = reread(tmp_path, "evaluate", "runs/pre-tune-seed0", "task.dev=other.jsonl")
    assert "of runs/pre-tune-seed0 on other.jsonl" in evaluated
    assert "8 training examples, 3 examples of other.jsonl" in evaluated
    shown = reread(tmp_path, "inspect", "runs/pre-tune-seed1", "--samples", "1")
    assert "texts.jsonl:1, id 0, window 1 of 1: label x\n[CLS]" in shown
