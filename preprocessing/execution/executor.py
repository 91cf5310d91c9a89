"""Runs the tasks of a stage, in this process or in a pool of processes, and shows progress."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple

from preprocessing.errors import UserError
from preprocessing.execution.progress import report_progress_to
from preprocessing.execution.stages import Stage
from preprocessing.execution.tasks import run_task
from preprocessing.execution.work import Work

log = logging.getLogger("reread")


class Share(NamedTuple):
    """The tasks of a stage that are for this process: every `of`-th, from `number` on."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """`2/8` is the third of eight shares; raises `UserError` unless the text has this form."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
            raise UserError(f"--share: `{text}` is not a share; write I/N with I from 0 to N - 1, for example 0/8")
        return cls(int(number), int(of))


WHOLE = Share(0, 1)


class Executor(ABC):
    """A context manager that does tasks of a stage, at most `workers` at once."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @abstractmethod
    def __enter__(self) -> "Executor": ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Work, stage: Stage, share: Share = WHOLE) -> None:
        """Do the tasks of a share that are not done; raises the `UserError` of a task, or one if workers died."""
        count = len(range(share.number, stage.task_count(work), share.of))
        missing = [number for number in stage.missing(work) if number % share.of == share.number]
        title = stage.title + (f", share {share.number}/{share.of}" if share.of > 1 else "")
        if count == 0:
            log.info("%s: no parts for this share", title)
        elif len(missing) < count:
            log.info("%s: %d of %d parts are done already", title, count - len(missing), count)
        if missing:
            size = stage.size(work) * len(missing) // stage.task_count(work)
            with _progress(title, len(missing), size) as show:
                self._do(work, stage, missing, show)

    @abstractmethod
    def _do(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        """Do these tasks, calling `show` with the bytes done so far."""


class ProcessExecutor(Executor):
    """Does tasks in a pool of processes, `workers` = 0 for one a CPU core; a single worker is this process itself."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers or len(os.sched_getaffinity(0)))
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
        """Silence an error of Python 3.11's pool in its own bookkeeping when a worker is killed while another starts.

        By then it has marked the tasks as broken, which `run` reports; the traceback would add nothing.
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
            log.warning("a worker process was killed (by hand, or out of memory); its part is done again")
            self._close()
            try:
                numbers = [number for number in numbers if not work.is_done(stage.name, number)]
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
    """Let the worker end when its parent ends, in whatever way, and at once on Ctrl-C."""

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


@contextmanager
def _progress(title: str, tasks: int, size: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the bytes done: it moves a bar on a terminal; elsewhere the end logs one line."""
    if not sys.stderr.isatty():
        begin = time.perf_counter()
        yield lambda done: None
        seconds = time.perf_counter() - begin
        speed = size / 1e6 / seconds
        log.info("%s: %d parts, %.1f MB in %.1f s, %.1f MB/s", title, tasks, size / 1e6, seconds, speed)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(title, total=size)
        yield lambda done: bars.update(bar, completed=done)
        bars.update(bar, completed=size)
