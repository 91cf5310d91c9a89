"""Runs the tasks of a stage in a pool of processes, or in this process if there is a single worker."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.executors.base import Executor
from reread.preprocessing.execution.executors.semaphores import name_semaphores
from reread.preprocessing.execution.progress import report_progress_to
from reread.preprocessing.execution.stages import Stage
from reread.preprocessing.execution.tasks import run_task
from reread.preprocessing.execution.work import Work
from reread.preprocessing.machine import cores

log = logging.getLogger("reread")


class ProcessExecutor(Executor):
    """Does tasks in a pool of `workers` processes, 0 for one per CPU core; a single worker is this process itself."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers or cores())
        self._context = multiprocessing.get_context("spawn")
        self._bytes_done: Any = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "ProcessExecutor":
        self._excepthook = threading.excepthook
        threading.excepthook = self._on_thread_error
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        threading.excepthook = self._excepthook

    def _on_thread_error(self, error: threading.ExceptHookArgs) -> None:
        """Print no traceback of an error in the pool's own thread, unlike errors of other threads.

        Python 3.11's pool fails in its bookkeeping if a worker is killed while another one starts. By then it has
        marked the tasks as broken, which `run` reports.
        """
        if type(error.thread).__name__ != "_ExecutorManagerThread":
            self._excepthook(error)

    def _do(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        if min(self.workers, work.parts) == 1:
            self._run_here(work, stage, numbers, show)
            return
        try:
            self._run_in_pool(work, stage, numbers, show)
        except BrokenProcessPool:
            log.warning("a worker process was killed (by hand, or for lack of memory); its part is done again")
            self._close()
            try:
                numbers = [number for number in numbers if not stage.is_done(work, number)]
                self._run_in_pool(work, stage, numbers, show)
            except BrokenProcessPool:
                raise UserError(
                    f"{work.output}: worker processes are being killed while {stage.title}, most likely for lack of "
                    "memory; set fewer `workers` or smaller `part_bytes` and run the same command again"
                ) from None

    def _run_here(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            show(done)

        report_progress_to(advance)
        try:
            for number in numbers:
                run_task(work.folder, stage.name, number)
        finally:
            report_progress_to(lambda size: None)

    def _run_in_pool(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        if self._pool is None:
            name_semaphores()
            self._bytes_done = self._context.Value("q", 0)  # starts a process, which a single worker does not need
            self._pool = ProcessPoolExecutor(
                min(self.workers, work.parts), self._context, _start_worker, (self._bytes_done,)
            )
        self._bytes_done.value = 0
        try:
            pending: set[Future[None]] = {
                self._pool.submit(run_task, work.folder, stage.name, number) for number in numbers
            }
        except (OSError, ValueError):  # the pool broke while it was starting a worker
            raise BrokenProcessPool from None
        while pending:
            finished, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
            show(self._bytes_done.value)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _start_worker(bytes_done: Any) -> None:
    """Initialise a worker: it reports its progress, and ends at once on Ctrl-C and whenever its parent ends."""

    def advance(size: int) -> None:
        with bytes_done.get_lock():
            bytes_done.value += size

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    report_progress_to(advance)
    threading.Thread(target=end_with_parent, daemon=True).start()
