"""The rank of this process in its run, from its launcher's environment variables. Imports no torch."""

import os
from typing import Literal, NamedTuple

Launcher = Literal["torchrun", "horovodrun", "srun"]

_VARIABLES: dict[Launcher, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    # srun alone sets SLURM_STEP_NUM_TASKS; SLURM_NTASKS is set in a batch script, too.
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


class Process(NamedTuple):
    rank: int = 0
    world: int = 1
    """The number of processes of the run."""
    local_rank: int = 0
    """Rank among the processes on this machine."""
    launcher: Launcher | None = None
    """None for a single process, such as the only task of a Slurm step; it may start others."""


def this_process() -> Process:
    """Read torchrun's variables, else horovodrun's, else srun's; without any, the process is alone."""
    for launcher, (rank, world, local_rank) in _VARIABLES.items():
        if rank in os.environ and world in os.environ:
            if launcher == "srun" and os.environ[world] == "1":
                break
            local = int(os.environ.get(local_rank, "0"))
            return Process(int(os.environ[rank]), int(os.environ[world]), local, launcher)
    return Process()
