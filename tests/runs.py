"""Runs of a tiny model by `reread train`: started as a user does, watched, killed and compared."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.conftest import ROOT, train_values
from training.checkpoint.store import CheckpointStore
from training.metrics import read_metrics
from training.parallel.mesh import Mesh

STEPS = 40


def write_recipe(folder: Path, corpus: Path, **changes: Any) -> None:
    """tiny.yaml in `folder`: 40 steps on two processes, a checkpoint every 5."""
    values = train_values(corpus, steps=STEPS, parallel={"processes": 2}, **changes)
    values["checkpoint"] = {"every_steps": 5, "keep": 2}
    values["validate_every"] = 20
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "train": values}))


def start(folder: Path, corpus: Path, *overrides: str, torchrun: bool = False, **changes: Any) -> subprocess.Popen[str]:
    """`reread train` of that recipe."""
    write_recipe(folder, corpus, **changes)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if torchrun else []
    command = [sys.executable, *launcher, "-m", "pipeline.cli", "train", "tiny.yaml", *overrides]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def at_step(folder: Path, step: int) -> bool:
    metrics = folder / "runs" / "tiny" / "metrics.jsonl"
    return metrics.exists() and f'"step": {step},' in metrics.read_text()


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if at_step(folder, step):
            return
        time.sleep(0.02)
    raise AssertionError(f"ended before step {step}: {process.communicate()[0]}")


def killed_twice(folder: Path, corpus: Path, **changes: Any) -> str:
    """Kill -9 of the whole job at a random step, twice; what the run says that then ends."""
    dice = random.Random(time.time_ns())
    for low, high in ((6, 18), (21, 36)):
        process = start(folder, corpus, **changes)
        wait_for_step(folder, dice.randint(low, high), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return finish(start(folder, corpus, **changes))


def figures(folder: Path) -> list[tuple[float, ...]]:
    """What each step computed; equal figures at every step mean equal samples and weights."""
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
