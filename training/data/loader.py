"""Batches for one rank, drawn ahead in a separate thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from queue import Empty, Queue
from threading import Event, Thread
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reread.training.data.batch import Rows

Batch = TypeVar("Batch")

ROWS_AT_ONCE = 1024
"""Rows that are drawn in one call if their length is not known."""
_VALUES_AT_ONCE = 1 << 19
"""Values in the largest array of one call. Several steps are drawn in a call, to share numpy's cost per call."""


class RowsByPosition(Protocol):
    """A dataset that returns rows by their positions in an endless stream."""

    def rows(self, positions: NDArray[np.int64]) -> Rows: ...


def rows_by_step(
    samples: RowsByPosition, global_batch: int, lanes: range, step: int, first_position: int = 0
) -> Iterator[Rows]:
    """The rows of `lanes` from `step` on, without end.

    Row `lane` of step t is position first_position + t * global_batch + lane of the stream, so only the step must be
    saved, and the rows of a lane do not depend on the rank that owns it.
    """
    numbers = np.arange(lanes.start, lanes.stop, dtype=np.int64)
    return rows_at_steps(
        lambda positions, _: samples.rows(positions), lambda step: first_position + step * global_batch + numbers, step
    )


def rows_at_steps(
    draw: Callable[[NDArray[np.int64], NDArray[np.int64]], Rows],
    positions_of: Callable[[int], NDArray[np.int64]],
    step: int,
) -> Iterator[Rows]:
    """The rows at `positions_of` each step from `step` on, without end; `draw` gets positions [B] and their steps [B].

    Each draw has twice the steps of the one before, so that a short run does not draw many times what it reads.
    """
    count = 1
    while True:
        steps = np.arange(step, step + count)
        positions = [positions_of(one) for one in steps.tolist()]
        ends = list(accumulate(map(len, positions), initial=0))
        rows = draw(np.concatenate(positions), np.repeat(steps, np.diff(ends)))
        for begin, end in pairwise(ends):
            yield {name: values[begin:end] for name, values in rows.items()}
        step += count
        row = max(values[0].size for values in rows.values())
        count = max(1, min(2 * count, _VALUES_AT_ONCE // row // len(positions[-1])))


class Loader(Generic[Batch]):
    """Iterates over `batches`, drawn up to `ahead` in advance; close it, or use it in a `with` statement."""

    def __init__(self, batches: Iterator[Batch], *, ahead: int = 2) -> None:
        self._batches = batches
        self._queue: Queue[Batch | BaseException] = Queue(ahead)
        self._closed = Event()
        self._thread = Thread(target=self._draw, name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Loader[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch; raises any exception from drawing it."""
        if self._closed.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():
            try:  # make room for the thread if it waits on a full queue
                self._queue.get_nowait()
            except Empty:
                self._thread.join(0.01)

    def __enter__(self) -> Loader[Batch]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self) -> None:
        try:
            for batch in self._batches:
                if self._closed.is_set():
                    return
                self._queue.put(batch)
            self._queue.put(StopIteration())
        except BaseException as error:
            self._queue.put(error)
