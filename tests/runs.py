"""Runs of a tiny model by `reread train`: started, watched, killed and compared."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from tests.conftest import ROOT, train_values
from tests.forks import Job

STEPS = 40


def write_recipe(folder: Path, corpus: Path, **changes: Any) -> None:
    """tiny.yaml in `folder`: 40 steps on two processes with a micro-batch a step each, a checkpoint every 5."""
    values = train_values(corpus, steps=STEPS, parallel={"processes": 2}, micro_batch=4, **changes)
    values["checkpoint"] = {"every_steps": 5, "keep": 2}
    values["validate_every"] = 20
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "train": values}))


def start(folder: Path, corpus: Path, *overrides: str, **changes: Any) -> Job:
    """`reread train` of that recipe, which starts its two processes."""
    write_recipe(folder, corpus, **changes)
    return Job(folder, "train", "tiny.yaml", *overrides, processes=1)


def finish(job: Job) -> str:
    """The output of a job that ends without a fault."""
    with job:
        assert job.statuses() == [0], job.output
        return job.output


def start_new_interpreters(
    folder: Path, corpus: Path, *overrides: str, torchrun: bool = False
) -> subprocess.Popen[str]:
    """The same with nothing forked: all that a user's command imports and starts."""
    write_recipe(folder, corpus)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if torchrun else []
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "reread", "train", "tiny.yaml", *overrides],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def at_step(folder: Path, step: int) -> bool:
    metrics = folder / "runs" / "tiny" / "metrics.jsonl"
    return metrics.exists() and f'"step": {step},' in metrics.read_text()


def wait_for_step(folder: Path, step: int, job: Job) -> None:
    job.wait(lambda: at_step(folder, step))


def killed_twice(folder: Path, corpus: Path, **changes: Any) -> str:
    """Kill -9 of the whole job at a random step, twice; the output of the run that then ends."""
    for low, high in ((6, 18), (21, 36)):
        with start(folder, corpus, **changes) as job:
            wait_for_step(folder, random.SystemRandom().randint(low, high), job)
            job.kill_all()
    return finish(start(folder, corpus, **changes))


def figures(folder: Path) -> list[tuple[float, ...]]:
    """The figures of each step; equal ones at every step mean equal samples and weights."""
    names = ("step", "loss", "masked_lm_accuracy", "gradient_norm", "tokens")
    return [tuple(line[name] for name in names) for line in read_metrics(folder / "runs" / "tiny") if "loss" in line]


def last_checkpoint(folder: Path) -> int | None:
    return CheckpointStore(folder / "runs" / "tiny" / "checkpoints", 2, Mesh()).latest()


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    assert last_checkpoint(folder) == STEPS
    return CheckpointStore(folder / "runs" / "tiny" / "checkpoints", 2, Mesh()).read_full(STEPS, "")


def assert_same_end(folder: Path, expected: Path) -> None:
    """Weights, optimiser state and memories are equal bit for bit."""
    found, tensors = final_tensors(folder), final_tensors(expected)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, found[name]), name
