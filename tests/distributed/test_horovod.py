"""Gradients over Horovod give the same weights as torch's all-reduce, with any launcher."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from tests.conftest import ROOT, not_here, train_values
from tests.distributed.test_gradients import check_fp16_sums, sums_and_parts
from tests.forks import Job
from tests.runs import at_step, write_recipe

STEPS = 6
SPLITS = [(1, 2), (2, 2)]
"""Tensor x data."""


@pytest.fixture(scope="module", autouse=True)
def horovod_is_here() -> None:
    if importlib.util.find_spec("horovod") is None:
        not_here("horovod", "is not installed (make horovod)")


def recipe(corpus: Path, tensor: int, gradients: str, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny run with many buckets."""
    parallel = {"tensor": tensor, "gradients": gradients, "bucket_megabytes": 0.05}
    return train_values(corpus, steps=STEPS, parallel=parallel, **changes)


def train_in_process(values: dict[str, Any], run: Path) -> None:
    from reread.training.trainer import train

    train(TrainSettings.parse(values, "test"), run)


def weights(run: Path) -> dict[str, Tensor]:
    return CheckpointStore(run / "checkpoints", 2, Mesh()).read_full(STEPS, "")


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.fixture(scope="module")
def over_torch(ranks, sample_corpus, tmp_path_factory) -> dict[int, dict[str, Tensor]]:
    """Final weights with torch's all-reduce, by tensor-parallel size."""
    ended = {}
    for tensor, data in SPLITS:
        run = tmp_path_factory.mktemp(f"torch-{tensor}x{data}")
        ranks(tensor * data, train_in_process, recipe(sample_corpus, tensor, "torch"), run)
        ended[tensor] = weights(run)
    return ended


@pytest.mark.parametrize(("tensor", "data"), SPLITS)
def test_the_same_weights_as_over_torch(ranks, sample_corpus, over_torch, tmp_path, tensor, data) -> None:
    """Weights are equal bit for bit, since the sum of two numbers does not depend on their order."""
    ranks(tensor * data, train_in_process, recipe(sample_corpus, tensor, "horovod"), tmp_path)
    assert_equal(weights(tmp_path), over_torch[tensor])


@pytest.mark.parametrize(("tensor", "data"), SPLITS)
def test_divided_state_beside_horovod(ranks, sample_corpus, tmp_path, tensor, data) -> None:
    ended = []
    for gradients in ("torch", "horovod"):
        values = recipe(sample_corpus, tensor, gradients)
        values["parallel"]["shard_state"] = True
        (tmp_path / gradients).mkdir()
        ranks(tensor * data, train_in_process, values, tmp_path / gradients)
        ended.append(weights(tmp_path / gradients))
    assert_equal(*ended)


@pytest.mark.parametrize(("n", "tensor"), [(3, 1), (4, 2)])
def test_fp16_on_the_wire_stays_within_its_rounding(ranks, n, tensor) -> None:
    check_fp16_sums(ranks(n, sums_and_parts, tensor, "horovod", 1024.0))


def test_what_overflows_on_the_wire_is_seen_by_all(ranks) -> None:
    norms = [norm for *_, norm in ranks(4, sums_and_parts, 2, "horovod", 2.0**40)]
    assert norms == [torch.inf] * 4


# Started by a user's command


HOROVODRUN = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2", sys.executable]


def test_started_by_horovodrun(sample_corpus, over_torch, tmp_path) -> None:
    """tests/slurm start it by srun, and every launcher that sets torch's variables is as good."""
    values = recipe(sample_corpus, 1, "horovod")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "train": values}))
    command = [*HOROVODRUN, "-m", "reread", "train", "tiny.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    output = subprocess.check_output(
        command, cwd=tmp_path, env=environment, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    assert output.count("gradients: Horovod over gloo's ring, 2 data-parallel ranks") == 1, output
    assert output.count(f"done: {STEPS} steps") == 1
    assert_equal(weights(tmp_path / "runs" / "tiny"), over_torch[1])


@pytest.mark.parametrize(("tensor", "processes"), [(1, 2), (2, 4)])
def test_kill_9_of_one_process_ends_the_others(sample_corpus, tmp_path, tensor, processes) -> None:
    """No process hangs or shows a traceback; without process sets the line is that of torch's backend."""
    write_recipe(tmp_path, sample_corpus)
    overrides = ("parallel.gradients=horovod", f"parallel.tensor={tensor}", "steps=100000", "watchdog_minutes=0.2")
    with Job(tmp_path, "train", "tiny.yaml", *overrides, processes=processes) as job:
        job.wait(lambda: at_step(tmp_path, 7))
        job.send(signal.SIGKILL, 1)
        statuses = job.statuses()
    assert statuses.pop(1) == -signal.SIGKILL
    assert "Traceback" not in job.output and "terminate called" not in job.output
    if tensor == 1:
        assert statuses == [1]
        assert f"process 1 of {processes} (host " in job.output.splitlines()[-1]
        assert "has given no sign of life since step" in job.output.splitlines()[-1]
    else:  # Horovod's thread ends the process when its sets break, and has logged why
        assert set(statuses) <= {1, 6}, job.output
        assert "Horovod background loop uncaught exception" in job.output


def test_a_hung_process_is_named_beside_process_sets(sample_corpus, tmp_path) -> None:
    """Horovod's thread waits for it, and must not keep the other threads of its process from reporting it."""
    write_recipe(tmp_path, sample_corpus)
    overrides = ("parallel.gradients=horovod", "parallel.tensor=2", "steps=100000", "watchdog_minutes=0.1")
    with Job(tmp_path, "train", "tiny.yaml", *overrides, processes=4) as job:
        job.wait(lambda: at_step(tmp_path, 7))
        job.send(signal.SIGSTOP, 1)
        assert set(job.statuses(0, 2, 3)) <= {1, 6}, job.output  # 6: the reporting process ended first
    assert "\nprocess 1 of 4 (host " in job.output
