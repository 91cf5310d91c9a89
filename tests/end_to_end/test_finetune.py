"""Fine-tuning as a user starts it: killed and resumed, stopped early, repeated with seeds, exported, predicted."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

from reread.pipeline.display.scores import read_baselines
from reread.training.checkpoint.store import CheckpointStore
from reread.training.models import model_spec
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics, read_mistakes
from tests.forks import Job
from tests.tasks import LETTERS, SIZES, SPECIAL, WORDS, write_lines, write_tokenizer

STEPS = 60
EVERY = 5
"""Steps from one evaluation to the next: 40 examples, 8 a step."""


def finetune(folder: Path, *overrides: str, before: Callable[[int], None] | None = None) -> Job:
    files = ("init=start", "task.train=train.jsonl", "task.dev=dev.jsonl")
    return Job(folder, "finetune", "tiny.yaml", *files, *overrides, processes=1, before=before)


def reread(folder: Path, *arguments: str, status: int = 0) -> str:
    with Job(folder, *arguments, processes=1) as job:
        assert job.statuses() == [status], job.output
        return job.output


def finish(job: Job, status: int = 0) -> str:
    with job:
        assert job.statuses() == [status], job.output
        return job.output


def prepare(folder: Path) -> Path:
    """A pretrained NEZHA with random weights, examples of texts with a word of their label, and a recipe."""
    folder.mkdir(exist_ok=True)
    spec, start = model_spec("nezha"), write_tokenizer(folder / "start")
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
        **SIZES["nezha"],
    }
    torch.manual_seed(0)
    spec.converted(spec.config(vocab_size=len(SPECIAL + WORDS), **sizes)).save_pretrained(start)
    generator = np.random.default_rng(0)
    for name, count in (("train", 40), ("dev", 17), ("new", 23)):
        lines = []
        for number in range(count):
            words, label = [str(one) for one in generator.choice(list(LETTERS[:20]), 1 + number)], "xyz"[number % 3]
            lines.append({"text": " ".join([*words, label]), **({} if name == "new" else {"label": label})})
        write_lines(folder / f"{name}.jsonl", lines)
    train = {
        "global_batch": 8,
        "optimizer": {"name": "adam", "learning_rate": 0.01, "layer_decay": 0.9},
        "log_every": 1,
        "peak_tflops": 1.0,
    }
    finetune = {
        "epochs": STEPS // EVERY,
        "published": [{"model": "Theirs", "scores": {"accuracy": 99.5}, "differs": "all"}],
    }
    task = {"kind": "classify", "sequence_length": 16, "pooling": "mean"}
    recipe = {"name": "tiny", "task": task, "train": train, "finetune": finetune}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def store(folder: Path, name: str = "tiny") -> CheckpointStore:
    return CheckpointStore(folder / "runs" / name / "checkpoints", 1, Mesh())


def files(folder: Path) -> dict[str, bytes]:
    """The files of all checkpoints."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("runs/tiny/checkpoints/*/*"))
    }


def scores(folder: Path, name: str = "tiny") -> dict[int, float]:
    """Accuracy by step."""
    lines = read_metrics(folder / "runs" / name)
    return {line["step"]: line["validation_accuracy"] for line in lines if "validation_accuracy" in line}


def kept_scores(folder: Path, name: str = "tiny") -> dict[str, float]:
    """Accuracy of the chosen checkpoint by split."""
    kept = json.loads((folder / "runs" / name / "scores.json").read_text())
    return {split: one["accuracy"] for split, one in kept.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that nothing happened to, and what it printed; leave the run as it is."""
    folder = prepare(tmp_path_factory.mktemp("finetune") / "whole")
    return folder, finish(finetune(folder))


def test_kill_9_twice_changes_nothing_and_the_best_is_remembered(whole: tuple[Path, str], tmp_path: Path) -> None:
    folder = prepare(tmp_path / "killed")
    for step in (12, 31):
        with finetune(folder) as job:
            job.wait(lambda: any(line["step"] >= step for line in metrics(folder)))  # noqa: B023
            job.kill_all()
    output = finish(finetune(folder))
    assert "continuing from the checkpoint of step" in output
    assert files(folder) == files(whole[0])
    assert scores(folder) == scores(whole[0])
    last = store(folder).latest()
    assert last == STEPS
    best = store(folder).state(last)["best"]
    measured = scores(folder)
    first_best = min(step for step, score in measured.items() if score == max(measured.values()))
    assert (best["step"], best["score"]) == (first_best, measured[first_best])
    assert best["since"] == sum(step > first_best for step in measured)
    assert store(folder).steps() == sorted({first_best, STEPS})  # keep is 1, and never deletes the best
    assert output.splitlines()[-8:] == whole[1].splitlines()[-8:]  # the table of scores
    for one in (folder, whole[0]):
        reread(one, "predict", "runs/tiny", "new.jsonl", "--out", str(tmp_path / f"{one.name}.jsonl"))
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def metrics(folder: Path, name: str = "tiny") -> list[dict[str, Any]]:
    return read_metrics(folder / "runs" / name) if (folder / "runs" / name).exists() else []


def test_the_log_names_what_is_random_and_what_is_not_used(whole: tuple[Path, str]) -> None:
    folder, output = whole
    with safe_open(folder / "start" / "model.safetensors", "pt") as file:
        given = set(file.keys())
    trained = store(folder).read_full(STEPS, "model.").keys()
    (line,) = (line for line in output.splitlines() if line.startswith("starting from the weights in start"))
    random, unused = (
        set(part.split(", ")) for part in re.fullmatch(r".*; random: (.*); not used: (.*)", line).groups()
    )  # type: ignore[union-attr]
    assert random == trained - given == {"classifier.weight", "classifier.bias"}
    assert unused == given - trained
    assert any(name.startswith("cls.") for name in unused)


def test_the_score_of_the_paper_and_the_share_read_are_printed(whole: tuple[Path, str]) -> None:
    output = whole[1]
    assert re.search(r"Theirs\W+99\.5", output)
    assert "tokens read 100.00 %" in output
    kept_log = (whole[0] / "runs" / "tiny" / "logs" / "rank-0.log").read_text(encoding="utf-8")
    assert kept_log.count("tokens read 100.00 %") == output.count("tokens read 100.00 %") > 0
    best = max(scores(whole[0]).values())
    assert re.search(rf"ours\W+{best:.2f}", output)
    assert kept_scores(whole[0]) == {"dev": best}
    kept = read_mistakes(whole[0] / "runs" / "tiny")["dev.jsonl"]
    assert (kept["examples"], kept["wrong"]) == (17, round(17 * (1 - best / 100))) and len(kept["worst"]) == kept[
        "wrong"
    ]
    assert [name for name, *_ in kept["classes"]] == ["x", "y", "z"]
    assert "majority" in read_baselines(whole[0] / "runs" / "tiny")["dev.jsonl"]


def test_a_run_its_export_and_two_processes_predict_the_same(whole: tuple[Path, str], tmp_path: Path) -> None:
    folder = whole[0]
    reread(folder, "export", "runs/tiny", str(tmp_path / "exported"))
    predicted = []
    for name, model, more in (
        ("run", "runs/tiny", ()),
        ("export", str(tmp_path / "exported"), ()),
        ("two", str(tmp_path / "exported"), ("parallel.processes=2",)),
    ):
        reread(folder, "predict", model, "new.jsonl", "micro_batch=4", *more, "--out", str(tmp_path / name))
        predicted.append([json.loads(line) for line in (tmp_path / name).read_text().splitlines()])
    assert predicted[0] == predicted[1] == predicted[2]
    assert [line["id"] for line in predicted[0]] == [str(number) for number in range(1, 24)]
    assert {line["label"] for line in predicted[0]} <= {"x", "y", "z"}
    assert reread(folder, "predict", "runs/tiny", "new.jsonl").count('"probabilities"') == 23


def test_evaluations_without_a_better_score_end_the_run(whole: tuple[Path, str], tmp_path: Path) -> None:
    """Nothing learns: the first evaluation stays the best, and two more end the run."""
    folder = prepare(tmp_path / "patient")
    output = finish(finetune(folder, "patience=2", "optimizer.learning_rate=1e-30", "task.learns=last"))
    assert "task.learns is last, but task.predict is mean" in output
    assert "stopped early: 2 evaluations in a row had no better accuracy than step 5" in output
    assert sorted(scores(folder)) == [5, 10, 15]
    assert store(folder).steps() == [5, 15]
    again = finish(finetune(folder, "patience=2", "optimizer.learning_rate=1e-30", "task.learns=last"))
    assert "nothing to do" in again


def test_seeds_give_mean_and_standard_deviation_on_dev_and_on_test(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "seeds")
    given = ("finetune.seeds=2", "finetune.epochs=2", "optimizer.learning_rate=0.01", "task.test=train.jsonl")
    output = finish(finetune(folder, *given))
    both = [max(scores(folder, f"tiny-seed{number}").values()) for number in range(2)]
    found = [kept_scores(folder, f"tiny-seed{number}") for number in range(2)]
    assert [one["dev"] for one in found] == both
    assert "task.test: 40 of 40 texts are in task.train, too" in output
    reread(folder, "predict", "runs/tiny-seed1", "train.jsonl", "--out", "predicted.jsonl")
    expected = [json.loads(line)["label"] for line in (folder / "train.jsonl").read_text().splitlines()]
    predicted = [json.loads(line)["label"] for line in (folder / "predicted.jsonl").read_text().splitlines()]
    right = sum(a == b for a, b in zip(predicted, expected, strict=True))
    assert found[1]["test"] == pytest.approx(100 * right / 40)
    assert re.search(rf"ours \(test\), 2 seeds\W+{np.mean([one['test'] for one in found]):.2f} ±", output)
    assert f"{np.mean(both):.2f} ± {np.std(both, ddof=1):.2f}" in output
    assert "ours, 2 seeds" in output


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "mistakes")
    write_lines(folder / "other.jsonl", [{"text": "a b", "label": "x"}, {"text": "a b c", "label": "w"}])
    for name, config in (("broken", "{"), ("foreign", '{"model_type": "gpt2"}'), ("bare", "[]")):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config)
    write_tokenizer(folder / "nothing")
    for override, expected in {
        "task.dev=other.jsonl": "reread: other.jsonl:2: label `w` is in no training example",
        "init=nowhere": "reread: init: nowhere holds no config.json",
        "init=nothing": "reread: init: nothing holds no config.json",
        "init=broken": "reread: init: broken/config.json: not the configuration of a model",
        "init=foreign": "reread: init: foreign holds a model of type gpt2",
        "init=bare": "reread: init: bare/config.json: not the configuration of a model",
        "task.sequence_lenght=12": "did you mean `train.data.sequence_length`?",
        "task.train=gone.jsonl": "reread: gone.jsonl: ",
        "task.kind=clasify": "classify",
        "task.retrospective=true": "reread: task.retrospective: true, but this model has no memory",
    }.items():
        output = finish(finetune(folder, override), 2)
        assert expected in output, (override, output)
        said = (": read as jsonl", ": has no `base`, so values that it does not set")
        lines = [line for line in output.splitlines() if not any(one in line for one in said)]
        assert len(lines) == 1, (override, output)
    assert not (folder / "runs").exists()


@pytest.mark.long
def test_thresholds_chosen_on_dev_are_those_of_predictions_evaluations_and_the_export(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "sets")
    for name in ("train", "dev"):
        lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        sets = [{**line, "label": [line["label"], *("w" * (len(line["text"]) % 3 == 0))]} for line in lines]
        write_lines(folder / f"{name}.jsonl", sets)
    given = ("task.answer=set", "task.threshold=each", "task.class_weights=balanced", "finetune.epochs=2")
    output = finish(finetune(folder, *given, "task.test=train.jsonl"))
    run, kept = folder / "runs" / "tiny", json.loads((folder / "runs" / "tiny" / "chosen.json").read_text())
    assert "chosen on dev.jsonl: thresholds" in output and "task.class_weights: w " in output
    reread(folder, "export", "runs/tiny", str(tmp_path / "exported"))
    both = []
    for number, model in enumerate(("runs/tiny", str(tmp_path / "exported"))):
        reread(folder, "predict", model, "dev.jsonl", "--out", f"{number}.jsonl")
        both.append([json.loads(line) for line in (folder / f"{number}.jsonl").read_text().splitlines()])
    assert both[0] == both[1]
    gold = [json.loads(line)["label"] for line in (folder / "dev.jsonl").read_text().splitlines()]
    for label, threshold in zip("wxyz", kept["thresholds"], strict=True):
        chances = np.array([one["probabilities"][label] for one in both[0]])
        made, there = chances > threshold, np.array([label in labels for labels in gold])
        assert [label in one["label"] for one in both[0]] == made.tolist()
        f1 = [2 * (there & (chances > one)).sum() / (there.sum() + (chances > one).sum()) for one in (*chances, 0.0)]
        assert 2 * (there & made).sum() / (there.sum() + made.sum()) >= max(f1)
    scored = json.loads((run / "scores.json").read_text())
    assert f"micro-f1                 {scored['test']['micro-f1']:.4f}" in reread(
        folder, "evaluate", "runs/tiny", "task.dev=train.jsonl"
    )
    (run / "chosen.json").unlink()
    refused = reread(folder, "predict", "runs/tiny", "dev.jsonl", status=2)
    assert "task.threshold: each, but none is chosen yet; `reread evaluate RUN`" in refused
    refused = reread(folder, "evaluate", "runs/tiny", "task.dev=train.jsonl", status=2)
    assert "its thresholds are not chosen yet" in refused
    reread(folder, "evaluate", "runs/tiny")
    assert json.loads((run / "chosen.json").read_text()) == kept


@pytest.mark.long
def test_a_grid_that_is_killed_goes_on_and_chooses_the_same(tmp_path: Path) -> None:
    whole, killed = prepare(tmp_path / "whole"), prepare(tmp_path / "killed")
    grid = ("finetune.grid.optimizer.learning_rate=[0.001, 0.01]", "finetune.epochs=3", "task.test=train.jsonl")
    finish(finetune(whole, *grid))
    with finetune(killed, *grid) as job:
        job.wait(lambda: any(line["step"] >= 6 for line in metrics(killed, "tiny-point2")))
        job.kill_all()
    finish(finetune(killed, *grid))
    for name in ("tiny-grid.json", "tiny-point1/scores.json", "tiny-point2/scores.json"):
        assert (killed / "runs" / name).read_text() == (whole / "runs" / name).read_text(), name
    chosen = json.loads((whole / "runs" / "tiny-grid.json").read_text())["chosen"]
    tested = [run.parent.name for run in whole.glob("runs/*/scores.json") if "test" in json.loads(run.read_text())]
    assert tested == [chosen]
