"""Lanes: rows of the global batch that each read document after document, segment by segment."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from training.config import SegmentSettings
from training.data.loader import ROWS_AT_ONCE
from training.data.masking import IGNORED
from training.data.order import locate
from training.data.samples import Rows
from training.data.segments import Reading, Segments

SKIM, LEARN = 0, 1


def lanes_for(settings: SegmentSettings, global_batch: int) -> int:
    """How many lanes give about `global_batch` rows a step that learn: with retrospective feed half of them skim."""
    return 2 * global_batch if settings.retrospective else global_batch


def first_cursors(settings: SegmentSettings, lanes: range, stagger: bool = True) -> NDArray[np.int64]:
    """Cursors int64 [n, 3] of `Lanes` that have read nothing yet."""
    cursors = np.zeros((len(lanes), 3), np.int64)
    cursors[:, 1] = _first_phase(settings, np.array(lanes, np.int64), cursors[:, 0], stagger)
    return cursors


class Lanes:
    """Iterates (rows, cursors after these rows), one row a lane and step, without end.

    Lane b of `total` reads the documents at positions b, b + total, b + 2 total, ... of the corpus' endless stream
    (`training.data.order`), so what it reads depends on no other lane, nor on who owns it. With retrospective feed each
    document is read twice: all its segments as a skim, then all of them as the pass that learns (section 3.2).

    Were all lanes to begin with a skim, no row would learn in the first steps and nearly all in the next: therefore
    odd lanes read their first document once, without a skim (`stagger`). Half of the rows learn in the first step, as
    in every step if documents are equally long. If they are not, somewhat fewer do while lanes meet their first long
    documents, which begin with a skim; later about half, as if each lane tossed a coin.

    Rows are those of `Segments.rows` and

        begins         bool [n]: the lane's memory must be emptied before this row, the first of a document. The pass
                       that learns begins with the memory of the skim.
        learns         bool [n]
        reorder_label  int32 [n]: the permutation at the last segment of a pass that learns, else -100

    Cursors int64 [n, 3] are (documents begun before the one being read, 0 in a skim and 1 in the pass that learns,
    next segment); lanes opened with them go on where these stopped. `longest`: see `Segments.read`.
    """

    def __init__(
        self,
        source: Segments,
        total: int,
        lanes: range,
        cursors: NDArray[np.int64] | None = None,
        *,
        stagger: bool = True,
        longest: int | None = None,
    ) -> None:
        self._source, self._total, self._stagger, self._longest = source, total, stagger, longest
        self._lanes = np.array(lanes, np.int64)
        n = len(self._lanes)
        if cursors is None:
            cursors = first_cursors(source.settings, lanes, stagger)
        self._document, self._phase, self._segment = np.array(cursors, np.int64).reshape(n, 3).T.copy()
        self._segments, self._label = np.zeros((2, n), np.int64)
        """Of the document each lane reads."""
        self._readings = self._open(np.arange(n))
        self.cursors = self._cursors()
        """int64 [n, 3]: after the rows handed out last."""
        self._drawn: deque[tuple[Rows, NDArray[np.int64]]] = deque()

    def __iter__(self) -> "Lanes":
        return self

    def __next__(self) -> tuple[Rows, NDArray[np.int64]]:
        """Raises `UserError` where a block was altered on disk."""
        if not self._drawn:
            self._draw(max(1, ROWS_AT_ONCE // len(self._lanes)))
        rows, self.cursors = self._drawn.popleft()
        return rows, self.cursors

    def _draw(self, steps: int) -> None:
        readings: list[Reading] = []
        segments: list[int] = []
        states, cursors = [], []
        for _ in range(steps):
            readings += self._readings
            segments += self._segment.tolist()
            states.append(self._state())
            self._advance()
            cursors.append(self._cursors())
        begins, learns, labels = (np.concatenate(values) for values in zip(*states, strict=True))
        rows = self._source.rows(readings, segments, learns)
        del rows["continues_word"]
        rows |= {"begins": begins, "learns": learns, "reorder_label": labels}
        n = len(self._lanes)
        for step, cursor in enumerate(cursors):
            self._drawn.append(({name: values[step * n : (step + 1) * n] for name, values in rows.items()}, cursor))

    def _cursors(self) -> NDArray[np.int64]:
        return np.stack([self._document, self._phase, self._segment], axis=1)

    def _state(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int32]]:
        """begins, learns and reorder_label of the next rows."""
        learns = self._phase == LEARN
        begins = (self._segment == 0) & (self._phase == self._first_phase())
        tells = learns & (self._segment == self._segments - 1) & (self._source.settings.reorder_chunks > 1)
        return begins, learns, np.where(tells, self._label, IGNORED).astype(np.int32)

    def _advance(self) -> None:
        self._segment += 1
        read = self._segment == self._segments
        done = np.flatnonzero(read & (self._phase == LEARN))
        self._segment[read], self._phase[read] = 0, LEARN
        self._document[done] += 1
        self._phase[done] = self._first_phase()[done]
        if len(done):
            for lane, reading in zip(done.tolist(), self._open(done), strict=True):
                self._readings[lane] = reading

    def _open(self, which: NDArray[np.int64]) -> list[Reading]:
        """The documents that these lanes are at."""
        positions = self._lanes[which] + self._document[which] * self._total
        passes, documents = locate(positions, len(self._source), self._source.seed)
        readings = self._source.read(passes % self._source.settings.copies, documents, longest=self._longest)
        self._segments[which] = [reading.segments for reading in readings]
        self._label[which] = [reading.label for reading in readings]
        return readings

    def _first_phase(self) -> NDArray[np.int64]:
        """In which phase each lane begins the document it is at."""
        return _first_phase(self._source.settings, self._lanes, self._document, self._stagger)


def _first_phase(
    settings: SegmentSettings, lanes: NDArray[np.int64], documents: NDArray[np.int64], stagger: bool
) -> NDArray[np.int64]:
    """In which phase each lane begins the document that it reads after so many `documents`."""
    once = stagger & (lanes % 2 == 1) & (documents == 0)
    return np.where(once | (not settings.retrospective), LEARN, SKIM)
