"""Batches for one rank, drawn ahead in a thread of their own."""

from __future__ import annotations

from queue import Empty, Queue
from threading import Event, Thread
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = dict[str, NDArray[np.int32]]


class Source(Protocol):
    def rows(self, positions: NDArray[np.int64]) -> Rows: ...


class Loader:
    """Iterates (step, rows of this rank's lanes) from `start_step` on, without end.

    Row `lane` of step t is position t * global_batch + lane of the stream, so the step is all there is to save, and
    what a lane gets does not depend on who owns it. Close it, or use it in a `with` statement.
    """

    def __init__(
        self, samples: Source, global_batch: int, lanes: range, start_step: int = 0, *, ahead: int = 2
    ) -> None:
        self._samples, self._global_batch = samples, global_batch
        self._lanes = np.arange(lanes.start, lanes.stop, dtype=np.int64)
        self._queue: Queue[tuple[int, Rows] | BaseException] = Queue(ahead)
        self._closed = Event()
        self._thread = Thread(target=self._draw, args=(start_step,), name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> tuple[int, Rows]:
        """Raises what drawing raised."""
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
            try:  # make room for a thread that waits to hand over
                self._queue.get_nowait()
            except Empty:
                self._thread.join(0.01)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                self._queue.put((step, self._samples.rows(step * self._global_batch + self._lanes)))
                step += 1
        except BaseException as error:
            self._queue.put(error)
