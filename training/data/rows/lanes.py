"""Lanes: rows of the global batch, each of which reads one document after another, segment by segment."""

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.loader import ROWS_AT_ONCE
from reread.training.data.rows.cut_documents import CutDocument, SegmentSettings

SKIM, LEARN = 0, 1


class Documents(Protocol):
    """The documents that lanes read (`reread.training.data.rows.segments.SegmentDataset`)."""

    settings: SegmentSettings

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

    def read(
        self, copies: NDArray[np.int64], documents: NDArray[np.int64], *, longest: int | None = None
    ) -> list[CutDocument]: ...

    def rows(self, documents: list[CutDocument], segments: list[int], learns: NDArray[np.bool_]) -> Rows: ...


class Lanes:
    """Endless iterator over (rows, cursors after these rows), with one row a lane in each step.

    Lane b of `total` reads the documents at positions b, b + total, b + 2 total, ... of the corpus' endless stream
    (`order.py`), so it does not depend on other lanes or on the rank that owns it. With retrospective feed
    each document is read twice: all its segments as a skim, then all of them as the reading that learns (section 3.2).

    If all lanes began with a skim, no row would learn in the first steps and nearly all in the next. Therefore odd
    lanes read their first document once, without a skim (`stagger`). Half of the rows learn in the first step, and in
    every step if documents are equally long. If they are not, somewhat fewer learn while lanes meet their first long
    documents, which begin with a skim; later about half do, as if each lane tossed a coin.

    Rows have the arrays of `Documents.rows` and

        begins         bool [n]: the lane's memory must be emptied before this row, the first of a document. The pass
                       that learns begins with the memory of the skim
        learns         bool [n]
        reorder_label  int32 [n]: the permutation at the last segment of a reading that learns, else -100

    Cursors int64 [n, 3] are (documents begun before the one being read, 0 in a skim and 1 in the reading that learns,
    next segment); lanes opened with them continue from there. `longest`: see `Segments.read`.
    """

    def __init__(
        self,
        documents: Documents,
        total: int,
        lanes: range,
        cursors: NDArray[np.int64] | None = None,
        *,
        stagger: bool = True,
        longest: int | None = None,
    ) -> None:
        self._documents, self._total, self._stagger, self._longest = documents, total, stagger, longest
        self._lanes = np.array(lanes, np.int64)
        n = len(self._lanes)
        self._document, self._phase, self._segment = np.zeros((3, n), np.int64)
        if cursors is None:
            self._phase = self._first_phase()
        else:
            self._document, self._phase, self._segment = np.array(cursors, np.int64).reshape(n, 3).T.copy()
        self._segments, self._label = np.zeros((2, n), np.int64)
        """Number of segments and reordering label of the document that each lane reads."""
        self._cut_documents = self._open(np.arange(n))
        self.cursors = self._cursors()
        """int64 [n, 3]: cursors after the rows returned last."""
        self._drawn: deque[tuple[Rows, NDArray[np.int64]]] = deque()
        self._steps = 1
        """Steps of the next draw: twice as many each time, so no more are drawn than twice what is read."""

    def __iter__(self) -> "Lanes":
        return self

    def __next__(self) -> tuple[Rows, NDArray[np.int64]]:
        """The next rows and cursors; raises `UserError` if a block was altered on disk."""
        if not self._drawn:
            self._draw(self._steps)
            self._steps = max(1, min(2 * self._steps, ROWS_AT_ONCE // len(self._lanes)))
        rows, self.cursors = self._drawn.popleft()
        return rows, self.cursors

    def _draw(self, steps: int) -> None:
        documents: list[CutDocument] = []
        segments: list[int] = []
        states, cursors = [], []
        for _ in range(steps):
            documents += self._cut_documents
            segments += self._segment.tolist()
            states.append(self._state())
            self._advance()
            cursors.append(self._cursors())
        begins, learns, labels = (np.concatenate(values) for values in zip(*states, strict=True))
        rows = self._documents.rows(documents, segments, learns)
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
        labelled = learns & (self._segment == self._segments - 1) & (self._documents.settings.reorder_chunks > 1)
        return begins, learns, np.where(labelled, self._label, IGNORED).astype(np.int32)

    def _advance(self) -> None:
        self._segment += 1
        read = self._segment == self._segments
        done = np.flatnonzero(read & (self._phase == LEARN))
        self._segment[read], self._phase[read] = 0, LEARN
        self._document[done] += 1
        self._phase[done] = self._first_phase()[done]
        if len(done):
            for lane, document in zip(done.tolist(), self._open(done), strict=True):
                self._cut_documents[lane] = document

    def _open(self, which: NDArray[np.int64]) -> list[CutDocument]:
        """The current documents of lanes `which`."""
        positions = self._lanes[which] + self._document[which] * self._total
        documents = self._documents.read(*self._documents.locate(positions), longest=self._longest)
        self._segments[which] = [document.segments for document in documents]
        self._label[which] = [document.label for document in documents]
        return documents

    def _first_phase(self) -> NDArray[np.int64]:
        """The phase in which each lane begins its current document."""
        return _first_phase(self._lanes, self._document, self._documents.settings.retrospective, self._stagger)


def first_cursors(settings: SegmentSettings, lanes: range) -> NDArray[np.int64]:
    """Cursors int64 [n, 3] of `lanes` at the beginning of a run (see `Lanes`)."""
    numbers = np.array(lanes, np.int64)
    cursors = np.zeros((len(numbers), 3), np.int64)
    cursors[:, 1] = _first_phase(numbers, cursors[:, 0], settings.retrospective, stagger=True)
    return cursors


def _first_phase(
    lanes: NDArray[np.int64], documents: NDArray[np.int64], retrospective: bool, stagger: bool
) -> NDArray[np.int64]:
    once = stagger & (lanes % 2 == 1) & (documents == 0)
    return np.where(once | (not retrospective), LEARN, SKIM)
