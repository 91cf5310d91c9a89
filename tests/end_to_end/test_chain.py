"""`reread run` of a recipe with `then`: pretraining, fine-tuning and scores by one command."""

import json
from pathlib import Path

import yaml

from tests.conftest import train_values
from tests.forks import Job
from tests.runs import finish


def reread(folder: Path, *arguments: str) -> str:
    return finish(Job(folder, *arguments, processes=1))


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
    then = [{"recipe": "tune.yaml", "overrides": ["task.train=texts.jsonl", "task.dev=texts.jsonl"]}]
    (tmp_path / "pre.yaml").write_text(yaml.safe_dump({"name": "pre", "train": train, "then": then}))
    output = reread(tmp_path, "run", "pre.yaml")
    assert output.count("done: 2 steps") == 3
    for line in ("ours, 2 seeds", "baseline: majority", "paper: BERT"):
        assert f"  {line}  " in output
    kept = [tmp_path / "runs" / f"pre-tune-seed{seed}" / "scores.json" for seed in (0, 1)]
    scores = [path.read_bytes() for path in kept]
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("checkpoints/**/*.safetensors")}
    again = reread(tmp_path, "run", "pre.yaml")
    assert "done: 2 steps" not in again and again.count("nothing to do: all 2 steps are done") == 3
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert [path.read_bytes() for path in kept] == scores

    evaluated = reread(tmp_path, "evaluate", "runs/pre-tune-seed0", "task.dev=other.jsonl")
    assert "of runs/pre-tune-seed0 on other.jsonl" in evaluated
    assert "8 training examples, 3 examples of other.jsonl" in evaluated
    shown = reread(tmp_path, "inspect", "runs/pre-tune-seed1", "--samples", "1")
    assert "texts.jsonl:1, id 0, window 1 of 1: label x\n[CLS]" in shown
