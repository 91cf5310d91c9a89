"""Processes forked from a server that has imported torch, transformers and what trains: each starts in 0.05 s of CPU
time, where importing all that takes ten seconds."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_PRELOAD = [
    "pytest",  # as are the modules of tests, whose functions run in these processes
    "hypothesis",
    "torch",
    "torch.distributed",
    "torch.utils.tensorboard",
    "megatron.core.tensor_parallel",
    "reread.pipeline.cli",
    "reread.pipeline.commands.run",
    "reread.training.trainer",
    "reread.training.models.nezha",
    "reread.training.models.ernie_doc",
    "reread.training.models.transformer_xl",
    "reread.training.models.ran",
    "reread.training.models.longformer",
]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS")


@cache
def context() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(_PRELOAD)
    return server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Job:
    """`reread ARGUMENTS` in `folder`, as a user starts it, or on several processes as srun starts them.

    A single process may start workers of its own (`launch`), which are forked, too. `before(rank)` is called
    in each process first: tests inject their faults there. What the processes print is `output`.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        processes: int = 2,
        started: int | None = None,
        before: Callable[[int], None] | None = None,
    ) -> None:
        self.port = free_port()
        self._log = folder / f"output-{self.port}.txt"
        self._processes = []
        for rank in range(processes if started is None else started):
            launched = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": rank} if processes > 1 else {}
            variables = {**launched, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port, "COLUMNS": 200}
            work = (rank, folder, arguments, {name: str(value) for name, value in variables.items()}, self._log, before)
            process = context().Process(target=_command, args=work, daemon=True)
            process.start()
            self._processes.append(process)

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def send(self, number: signal.Signals, *ranks: int) -> None:
        """A signal to some of the processes, by default to all."""
        for rank in ranks or range(len(self._processes)):
            os.kill(self.pids[rank], number)

    def statuses(self, *ranks: int, timeout: float = 300) -> list[int | None]:
        """How the processes ended (minus the signal that killed one), once all have; None for one that hangs."""
        chosen = [self._processes[rank] for rank in ranks] or self._processes
        for process in chosen:
            process.join(timeout)
        return [process.exitcode for process in chosen]

    def wait(self, condition: Callable[[], bool], timeout: float = 300) -> None:
        """Until `condition` holds; fails when a process ends before."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert all(process.is_alive() for process in self._processes), self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)

    def kill_all(self) -> None:
        """Kill -9 of the processes and of the workers that they started."""
        for process in self._processes:
            with suppress(ProcessLookupError):  # it has ended, or does not lead its group yet and has no workers
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()


def _command(
    rank: int,
    folder: Path,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    log: Path,
    before: Callable[[int], Any] | None,
) -> None:
    import torch

    from reread.pipeline.cli import main
    from reread.pipeline.run_folder import launch

    torch.set_num_threads(1)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    sys.argv = ["reread", *arguments]
    launch.subprocess = SimpleNamespace(Popen=_Worker)  # type: ignore[assignment]
    if before:
        before(rank)
    main()


class _Worker:
    """What `launch` needs of a `subprocess.Popen` of `python reread/__main__.py ARGUMENTS`, without its imports.

    As after an exec, handlers of signals are the default ones and blocked signals stay blocked.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        try:
            _run_worker(command, env)
        finally:
            os._exit(1)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self) -> int | None:
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_worker(command: Sequence[str], env: dict[str, str]) -> None:
    from reread.pipeline.cli import main

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().handlers.clear()
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["reread", *command[2:]]
    main()
