"""Start one process a device on this machine, when none of torchrun, srun and horovodrun has done so."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from training.config import STOPPED

GRACE_SECONDS = {STOPPED: 120.0}
"""How long the other processes may take to end once one has ended with a status; then they are killed."""
DEFAULT_GRACE_SECONDS = 10.0


def inside_distributed_run() -> bool:
    """Whether torchrun (RANK), horovodrun or srun (SLURM_STEP_NUM_TASKS, which batch scripts lack) started us."""
    started = "RANK" in os.environ or "HOROVOD_RANK" in os.environ
    return started or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def own_rank() -> str:
    """The number of this process in its run, "0" where it is alone."""
    return next((os.environ[name] for name in ("RANK", "HOROVOD_RANK", "SLURM_PROCID") if name in os.environ), "0")


def launch(arguments: list[str], processes: int) -> int:
    """Run `reread ARGUMENTS` in `processes` processes of one distributed run and return the exit status.

    SIGTERM and SIGINT are passed on, so that every process checkpoints and ends. When one process dies, the others
    are stopped and its status is returned.
    """
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    shared = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": threads,
    }
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    workers = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _wait(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """0, or the status of the process that failed; once one has, the others get their grace to end by themselves."""
    deadline = None
    while True:
        statuses = [worker.poll() for worker in workers]
        failures = [status for status in statuses if status]
        if failures and deadline is None:
            killed = min(failures) < 0  # the others wait for it in vain
            deadline = time.monotonic() + (0 if killed else GRACE_SECONDS.get(failures[0], DEFAULT_GRACE_SECONDS))
        if None not in statuses or (deadline and time.monotonic() > deadline):
            break
        time.sleep(0.05)
    if not failures:
        return 0
    # Name the cause, not what followed: a killed process or a refusal takes the others with it, and they end with 1
    failed = min(((r, s) for r, s in enumerate(statuses) if s), key=lambda one: (one[1] >= 0, one[1] == 1, one[0]))
    rank, status = failed
    if status < 0:
        name = signal.Signals(-status).name
        print(f"reread: process {rank} of {len(workers)} was killed by {name}; the run stops", file=sys.stderr)
        return 128 - status
    return status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
