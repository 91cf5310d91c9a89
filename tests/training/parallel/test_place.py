"""A process reads its place in the run from its launcher's variables."""

import pytest

from training.parallel.place import Place, place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
HOROVODRUN = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "2"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place()),
        (TORCHRUN, Place(3, 8, 1, "torchrun")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Place(0, 1, 0, "torchrun")),
        (HOROVODRUN, Place(2, 4, 0, "horovodrun")),
        (SRUN, Place(5, 6, 2, "srun")),
        (BATCH_SCRIPT, Place()),
        ({**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Place()),
        (HOROVODRUN | SRUN, Place(2, 4, 0, "horovodrun")),
        (TORCHRUN | HOROVODRUN | SRUN, Place(3, 8, 1, "torchrun")),
    ],
)
def test_a_process_knows_its_place_and_who_started_it(monkeypatch, environment, expected) -> None:
    for name in (*TORCHRUN, *HOROVODRUN, *SRUN, *BATCH_SCRIPT):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place() == expected
