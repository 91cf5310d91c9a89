"""The base class of all executors: which tasks of a stage are to be done, and the progress display."""

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.stages import Stage
from reread.preprocessing.execution.work import Work

log = logging.getLogger("reread")


class Share(NamedTuple):
    """The share of a stage's tasks that this process does: every `of`-th task, beginning with `number`."""

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
    """A context manager that does the tasks of a stage, at most `workers` at once."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @abstractmethod
    def __enter__(self) -> "Executor": ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Work, stage: Stage, share: Share = WHOLE) -> None:
        """Do the missing tasks of a share; raises the `UserError` of a task, or `UserError` if workers keep dying."""
        if stage.is_over(work):
            log.info("%s: all parts are done already", stage.title)
            return
        count = len(range(share.number, stage.task_count(work), share.of))
        missing = [number for number in stage.missing(work) if number % share.of == share.number]
        title = stage.title + (f", share {share.number}/{share.of}" if share.of > 1 else "")
        if count == 0:
            log.info("%s: this share has no parts", title)
        elif len(missing) < count:
            log.info("%s: %d of %d parts are done already", title, count - len(missing), count)
        if missing:
            size = stage.size(work) * len(missing) // stage.task_count(work)
            with _progress(title, len(missing), size) as show:
                self._do(work, stage, missing, show)

    @abstractmethod
    def _do(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        """Do the tasks `numbers`, calling `show` with the bytes done so far."""


@contextmanager
def _progress(title: str, tasks: int, size: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to be called with the bytes done so far.

    On a terminal it moves a progress bar; otherwise one line is logged at the end.
    """
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
