"""Start one process a device on this machine, when neither torchrun nor srun has done so."""

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
    """Whether torchrun (RANK) or srun (SLURM_STEP_NUM_TASKS, which a bare batch script lacks) started this process."""
    return "RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


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
    """The status of the first process seen to fail, or 0; the others then get their grace to end by themselves."""
    deadline, failed = None, None
    while not (deadline and time.monotonic() > deadline):
        statuses = [worker.poll() for worker in workers]
        if failed is None and any(statuses):
            # name the cause, not what followed: a killed process or a refusal takes the others with it
            failed = min(
                ((r, s) for r, s in enumerate(statuses) if s), key=lambda one: (one[1] >= 0, one[1] == 1, one[0])
            )
            killed = failed[1] < 0  # the others wait for it in vain
            deadline = time.monotonic() + (0 if killed else GRACE_SECONDS.get(failed[1], DEFAULT_GRACE_SECONDS))
        if all(status is not None for status in statuses):
            break
        time.sleep(0.05)
    if failed is None:
        return 0
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
