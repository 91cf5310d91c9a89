"""A run in phases is the run that is continued by hand, whenever it is killed."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from reread.pipeline.report.runs import read_run
from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from tests.conftest import train_values
from tests.distributed.test_training import no_dropout
from tests.forks import Job


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    return CheckpointStore(run / "checkpoints", 9, Mesh()).read_full(step)


def _kill_at(step: int, after: bool, rank: int) -> None:
    """Kill this process by SIGKILL before, or after, the checkpoint of `step` is in place."""
    commit = CheckpointStore._commit

    def killed(self: CheckpointStore, at: int, index: dict[str, Any]) -> None:
        if after or at != step:
            commit(self, at, index)
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    CheckpointStore._commit = killed  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def values(sample_corpus: Path) -> dict[str, Any]:
    values = train_values(sample_corpus, micro_batch=4, checkpoint={"every_steps": 1, "keep": 9}, writers=[])
    del values["steps"]
    values["model"] |= {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32}
    return values


PHASES: list[dict[str, Any]] = [
    {"steps": 3, "data": {"sequence_length": 24}},
    {"steps": 4, "global_batch": 4, "schedule": {"restart": True, "decay": "sqrt"}},
]


def train(folder: Path, *arguments: str, recipe: dict[str, Any], processes: int = 1) -> str:
    """The output of `reread train NAME.yaml ARGUMENTS`, which ends without a fault."""
    (folder / f"{recipe['name']}.yaml").write_text(yaml.safe_dump(recipe))
    with Job(folder, "train", f"{recipe['name']}.yaml", *arguments, processes=processes) as job:
        assert job.statuses() == [0] * processes, job.output
    return job.output


def test_killed_in_each_phase_and_between_them_it_is_the_run_continued_by_hand(
    values: dict[str, Any], tmp_path: Path
) -> None:
    two, run = {"name": "two", "train": values, "phases": PHASES}, tmp_path / "runs" / "two"
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
    for step, after, left in ((3, True, 3), (5, False, 4)):
        with Job(tmp_path, "train", "two.yaml", processes=1, before=partial(_kill_at, step, after)) as job:
            assert job.statuses() == [-signal.SIGKILL], job.output
        assert CheckpointStore(run / "checkpoints", 9, Mesh()).steps()[-1] == left
    output = train(tmp_path, recipe=two)
    assert "phase 2 of 2: steps 4 to 7" in output and "phase 1" not in output
    # By hand: two runs, each with its settings written out
    short = {**values, "steps": 3, "data": {**values["data"], "sequence_length": 24}, "schedule": {"warmup_steps": 2}}
    train(tmp_path, recipe={"name": "one", "train": short})
    schedule = {"warmup_steps": 2, "restart": True, "decay": "sqrt"}
    more = {**values, "steps": 7, "global_batch": 4, "schedule": schedule}
    train(tmp_path, "from=runs/one", recipe={"name": "other", "train": more})
    one, other = tmp_path / "runs" / "one", tmp_path / "runs" / "other"
    expected, found = tensors(other, 7), tensors(run, 7)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    lines = [line for folder in (one, other) for line in read_metrics(folder)]
    losses, own = ([line["loss"] for line in given if "loss" in line] for given in (lines, read_metrics(run)))
    assert own == losses and len(own) == 7
    assert (read_run(run, 0).borders, read_run(run, 0).steps) == ((3,), 7)
    # Where no checkpoint from the border on can be read, the first phase ends again.
    for step in range(3, 8):
        part = next((run / "checkpoints" / f"step-{step:08d}").glob("*.safetensors"))
        part.write_bytes(part.read_bytes()[:-1])
    output = train(tmp_path, recipe=two)
    assert "phase 1 of 2" in output and "continuing from the checkpoint of step 2" in output
    assert all(torch.equal(tensor, found[name]) for name, tensor in tensors(run, 7).items())


def test_phases_on_two_processes_end_as_on_one(values: dict[str, Any], tmp_path: Path) -> None:
    """In float32, whose gradients are added up in another order."""
    ends, without = [], no_dropout({**values, "model": dict(values["model"])})
    for processes in (1, 2):
        name = f"on-{processes}"
        train(tmp_path, recipe={"name": name, "train": without, "phases": PHASES}, processes=processes)
        ends.append(tensors(tmp_path / "runs" / name, 7))
    for name, tensor in ends[0].items():
        if name.startswith("model."):
            torch.testing.assert_close(ends[1][name], tensor, rtol=1e-3, atol=1e-4)
