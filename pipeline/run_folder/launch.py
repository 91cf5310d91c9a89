"""Starting and stopping the processes of a run.

Without torchrun, srun or horovodrun, `launch` starts one process for each device of this machine. `stop_at_once`
handles SIGTERM and Ctrl-C before training, when there is nothing to save yet.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import reread
from reread.training.config import STOPPED
from reread.training.parallel.process import this_process

GRACE_SECONDS = {STOPPED: 120.0}
"""Exit status of a process -> seconds in which the others may end by themselves; after that they are killed."""
DEFAULT_GRACE_SECONDS = 10.0
_ending = threading.Lock()
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_LAUNCHER = "REREAD_LAUNCHER"
"""Environment variable of a worker: the id of the process that started it. The worker ends when that process ends."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def stop_at_once() -> None:
    """Until training sets handlers of its own, SIGTERM and Ctrl-C end this process with `STOPPED`.

    While the process waits in torch's rendezvous, no Python signal handler runs. Therefore a thread ends the process;
    it waits on the file descriptor to which the interpreter writes the numbers of signals.
    """
    if signal.getsignal(signal.SIGTERM) == _stop:
        return
    for number in _STOPPING:
        signal.signal(number, _stop)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    threading.Thread(target=_stop_when_woken, args=[read], name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)  # `launch` held them back until now
    if _LAUNCHER in os.environ:
        _follow(int(os.environ[_LAUNCHER]))
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        _follow(os.getppid())


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process; both the signal handler and the thread call this, and only the first call has an effect."""
    if not _ending.acquire(blocking=False):
        return
    launcher = os.environ.get(_LAUNCHER)
    # A launcher that has ended printed the line, or cannot.
    if this_process().rank == 0 and launcher in (None, str(os.getppid())):
        os.write(2, b"reread: stopped outside of the training steps; the same command continues\n")
    os._exit(STOPPED)


def _stop_when_woken(read: int) -> None:
    while woken := os.read(read, 1):
        if signal.getsignal(woken[0]) == _stop:
            _stop(woken[0], None)


def _follow(parent: int) -> None:
    """Make the kernel send SIGTERM to this process when `parent` ends, even by kill -9 (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended before that
            os.kill(os.getpid(), signal.SIGTERM)


def launch(arguments: list[str], processes: int) -> int:
    """Run `reread ARGUMENTS` in `processes` processes of one distributed run and return the exit status.

    SIGTERM and SIGINT are passed on, so that every process saves a checkpoint and ends. The processes also do so if
    this one is killed. If one of them fails, the others are stopped and its status is returned.
    """
    shared = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        _LAUNCHER: str(os.getpid()),
    }
    # By its file: with -m a folder `reread` beside the working folder's files, such as a clone, would be taken for it.
    command = [sys.executable, str(Path(reread.__file__).with_name("__main__.py")), *arguments]
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # passed down to the workers
    workers = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    handlers = {number: signal.signal(number, pass_on) for number in _STOPPING}
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    try:
        return _wait(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """0, or the status of the process that failed. After a failure the others have some seconds to end by
    themselves."""
    deadline = None
    while True:
        statuses = [worker.poll() for worker in workers]
        failures = [status for status in statuses if status]
        if failures and deadline is None:
            killed = min(failures) < 0  # the others would wait for it forever
            deadline = time.monotonic() + (0 if killed else GRACE_SECONDS.get(failures[0], DEFAULT_GRACE_SECONDS))
        if None not in statuses or (deadline and time.monotonic() > deadline):
            break
        time.sleep(0.05)
    if not failures:
        return 0
    # Name the cause, not its consequences: after a killed process or a refusal the others end with 1
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
