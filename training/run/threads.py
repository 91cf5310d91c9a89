"""`train.threads`: how many threads each process of a run computes with, chosen once and kept in RUN/fitted.json."""

import logging
import os
import socket
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from reread.preprocessing.machine import cores
from reread.training.config import MOST_THREADS, TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.auto import read_auto

log = logging.getLogger("reread")

VARIABLE = "OMP_NUM_THREADS"


class Cores(NamedTuple):
    """CPU cores per process, the smallest number on any machine."""

    total: int
    free: int
    """Cores that other programs do not use, at least 1."""


def use_threads(settings: TrainSettings, run: Path, begun: bool, mesh: Mesh) -> dict[str, int]:
    """Have this process compute with `settings.threads`; logs what is chosen for `auto`, and why (collective).

    A run that has `begun` goes on with its number while its processes have as many cores, since sums depend on it.
    Returns the entry `threads` of RUN/fitted.json.
    """
    cores = cores_of_process(mesh)
    chosen_for = {"cores": cores.total, "processes": mesh.world}
    if settings.threads != "auto":
        threads, reason = settings.threads, ""
    elif (kept := _kept(run, chosen_for)) and begun:
        threads, reason = kept, "as this run began with; another number would change its sums by rounding"
    elif (stated := os.environ.get(VARIABLE, "")).isdecimal() and 1 <= int(stated) <= MOST_THREADS:
        threads, reason = int(stated), f"by {VARIABLE}"
    else:
        threads = cores.free
        reason = f"as its machine has {cores.total} cores for each, less those that its load takes"
    if reason:
        log.info("train.threads: auto: %d for each process, %s", threads, reason)
    torch.set_num_threads(threads)
    return {"chosen": threads, **chosen_for}


def _kept(run: Path, chosen_for: dict[str, int]) -> int | None:
    """The number in RUN/fitted.json, if it was chosen for as many processes and cores."""
    found = read_auto(run).get("threads")
    threads = found.get("chosen") if isinstance(found, dict) else None
    if not isinstance(threads, int) or found != {"chosen": threads, **chosen_for}:
        return None
    return threads if 1 <= threads <= MOST_THREADS else None


def cores_of_process(mesh: Mesh) -> Cores:
    """The cores of each process (collective)."""
    machine = zlib.crc32(socket.gethostname().encode())
    machines = [one for (one,) in mesh.gather(machine)]
    processes = machines.count(machine)
    everyone = mesh.gather(cores() // processes, (cores() - round(_load(processes))) // processes)
    return Cores(*(max(1, min(numbers)) for numbers in zip(*everyone, strict=True)))


def _load(processes: int) -> float:
    """Cores that other programs use: the load average of the last minute, but at most the programs running now.

    The average still includes programs that ended a moment ago, such as the workers of preprocessing. The run's own
    `processes` on this machine do not count.
    """
    load = os.getloadavg()[0]
    with suppress(OSError):
        running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
        load = max(0.0, min(load, int(running) - processes))
    return load
