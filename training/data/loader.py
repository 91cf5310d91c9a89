"""Batches for one rank, drawn ahead in a thread of their own."""

from __future__ import annotations

from queue import Empty, Queue
from threading import Event, Thread
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from preprocessing.errors import UserError

Rows = dict[str, NDArray[Any]]

ROWS_AT_ONCE = 1024
"""Fewer lanes have several steps drawn in one call: numpy's price for a call is then shared."""


class Source(Protocol):
    def rows(self, positions: NDArray[np.int64]) -> Rows: ...


class Loader:
    """Iterates (step, rows of this rank's lanes) from `start_step` on, without end.

    Row `lane` of step t is position t * global_batch + lane of the stream, so the step is all there is to save, and
    what a lane gets does not depend on who owns it. Close it, or use it in a `with` statement. Raises `UserError` if
    there are no lanes.
    """

    def __init__(
        self, samples: Source, global_batch: int, lanes: range, start_step: int = 0, *, ahead: int = 2
    ) -> None:
        if len(lanes) == 0:
            raise UserError(
                f"train.global_batch: {global_batch} rows are fewer than the data-parallel processes; raise it, or "
                "start fewer processes"
            )
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
        lanes = len(self._lanes)
        steps = np.arange(max(1, ROWS_AT_ONCE // lanes))[:, None]
        try:
            while not self._closed.is_set():
                positions = (step + steps) * self._global_batch + self._lanes
                rows = self._samples.rows(positions.ravel())
                for begin in range(0, positions.size, lanes):
                    if self._closed.is_set():
                        return
                    self._queue.put((step, {name: values[begin : begin + lanes] for name, values in rows.items()}))
                    step += 1
        except BaseException as error:
            self._queue.put(error)
