"""This process' place in its run, from its launcher's environment variables. Imports no torch."""

import os
from typing import Literal, NamedTuple

Launcher = Literal["torchrun", "horovodrun", "srun"]

_VARIABLES: dict[Launcher, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    # SLURM_STEP_NUM_TASKS is set by srun alone; SLURM_NTASKS is there in a batch script too
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


class Place(NamedTuple):
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """Rank among the processes on this machine."""
    launcher: Launcher | None = None
    """None for a single process, such as the only task of a Slurm step, which may start others."""


def place() -> Place:
    """Read torchrun's variables, else horovodrun's, else srun's; without any, the process is alone."""
    for launcher, (rank, world, local_rank) in _VARIABLES.items():
        if rank in os.environ and world in os.environ:
            if launcher == "srun" and os.environ[world] == "1":
                break
            local = int(os.environ.get(local_rank, "0"))
            return Place(int(os.environ[rank]), int(os.environ[world]), local, launcher)
    return Place()
