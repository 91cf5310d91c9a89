"""A recipe that is a paper, at the scale `tiny`: from text to the report by one command, killed on the way."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reread.pipeline.recipe.layers import SAMPLES
from reread.training.run.metrics import read_metrics
from tests.forks import Job
from tests.runs import finish


def paper(folder: Path) -> Job:
    overrides = ["scale=tiny", "tasks=tasks", "log_every=1", "checkpoint.every_steps=2"]
    return Job(folder, "run", "paper-nezha", *overrides, processes=1)


def reached(run: Path, step: int) -> Callable[[], bool]:
    return lambda: (run / "metrics.jsonl").exists() and any(line["step"] >= step for line in read_metrics(run))


@pytest.mark.slow
def test_a_paper_killed_in_pretraining_and_in_a_task_ends_with_its_report(tmp_path: Path) -> None:
    """Only ChnSentiCorp and CMRC2018 are there; what was done before a kill is not done again."""
    for task in ("chnsenticorp", "cmrc2018"):
        shutil.copytree(SAMPLES / "tasks" / task, tmp_path / "tasks" / task)
    shutil.copy(tmp_path / "tasks/chnsenticorp/dev.tsv", tmp_path / "tasks/chnsenticorp/test.tsv")
    pretraining = tmp_path / "runs" / "paper-nezha-tiny"
    with paper(tmp_path) as job:
        job.wait(reached(pretraining, 8))
        job.kill_all()
    with paper(tmp_path) as job:
        job.wait(reached(tmp_path / "runs" / "paper-nezha-tiny-nezha-chnsenticorp", 1))
        job.kill_all()
        assert "continuing from the checkpoint of step" in job.output
    pretrained = {path: path.stat().st_mtime_ns for path in pretraining.rglob("checkpoints/**/*.safetensors")}
    output = finish(paper(tmp_path))
    assert "nothing to do: all 20 steps are done" in output
    assert {path: path.stat().st_mtime_ns for path in pretrained} == pretrained
    left_out = [line.split()[1] for line in output.splitlines() if "is left out" in line]
    assert left_out == ["nezha-xnli", "nezha-lcqmc", "nezha-peopledaily"]

    f1 = json.loads((tmp_path / "runs" / "paper-nezha-tiny-nezha-cmrc2018" / "scores.json").read_text())["dev"]["f1"]
    table = output[output.index("paper-nezha-tiny | papers") :]
    ours = next(line for line in table.splitlines() if line.startswith("  ours (dev) "))
    on_test = next(line for line in table.splitlines() if line.startswith("  ours (test) "))
    assert on_test.split()[2:] == ["-", "-", ours.split()[4], "-", "-", "-"]
    theirs = next(line for line in table.splitlines() if line.startswith("  NEZHA-base (dev) "))
    assert ours.split()[2:4] == ["-", "-"] and ours.split()[-1] == f"{f1:.2f}"
    assert theirs.split()[2:5] == ["81.37", "89.98", "-"]  # the last one's data are there, and are others
    assert "nezha-chnsenticorp: the papers' scores are not shown: they are of held-out files of 1,200 examples" in table
    page = (pretraining / "report.html").read_text(encoding="utf-8")
    assert "the paper&#39;s table beside ours" in page or "the paper's table beside ours" in page
    assert "nezha-xnli: tasks/xnli/train.tsv and tasks/xnli/dev.tsv are not there." in page
