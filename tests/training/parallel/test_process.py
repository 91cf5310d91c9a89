"""A process reads its place in the run from its launcher's variables."""

import pytest

from reread.training.parallel.process import Process, this_process

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
HOROVODRUN = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "2"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Process()),
        (TORCHRUN, Process(3, 8, 1, "torchrun")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Process(0, 1, 0, "torchrun")),
        (HOROVODRUN, Process(2, 4, 0, "horovodrun")),
        (SRUN, Process(5, 6, 2, "srun")),
        (BATCH_SCRIPT, Process()),
        ({**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Process()),
        (HOROVODRUN | SRUN, Process(2, 4, 0, "horovodrun")),
        (TORCHRUN | HOROVODRUN | SRUN, Process(3, 8, 1, "torchrun")),
    ],
)
def test_a_process_knows_its_place_and_who_started_it(monkeypatch, environment, expected) -> None:
    for name in (*TORCHRUN, *HOROVODRUN, *SRUN, *BATCH_SCRIPT):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert this_process() == expected
