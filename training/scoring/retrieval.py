"""Search of a corpus by vectors: which documents are nearest to each query, and their grades."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPTH = 100
"""Documents that are found for each query; no score looks further."""
_AT_ONCE = 1 << 22
"""Cosines that are computed together."""

Searched = tuple[NDArray[np.int64], NDArray[np.float64]]
"""The documents found for each query, the nearest first, and their scores, [queries, depth] both."""


@dataclass
class Found:
    """What a model or a baseline says of held-out examples."""

    likeness: Mapping[int, float] = field(default_factory=dict)
    """Example -> how alike its two texts are."""
    searched: Searched = (np.empty((0, 0), np.int64), np.empty((0, 0)))


@dataclass
class Library:
    """Queries, and the documents that they search; each document once, whoever names it."""

    queries: list[Any] = field(default_factory=list)
    """Where the text of each query is."""
    documents: list[Any] = field(default_factory=list)
    """Where the text of each document is."""
    _names: dict[Hashable, int] = field(default_factory=dict)
    _asked: dict[Hashable, int] = field(default_factory=dict)
    _grades: list[dict[Hashable, float]] = field(default_factory=list)

    def add(self, name: Hashable, place: Any) -> None:
        """A document, unless one of that name is there."""
        if name not in self._names:
            self._names[name] = len(self.documents)
            self.documents.append(place)

    def ask(self, name: Hashable, place: Any, grades: Mapping[Any, float]) -> None:
        """A query with the grades of documents by their names; of the same query it is a further part."""
        if name not in self._asked:
            self._asked[name] = len(self.queries)
            self.queries.append(place)
            self._grades.append({})
        known = self._grades[self._asked[name]]
        known.update({document: max(grade, known.get(document, grade)) for document, grade in grades.items()})

    def ranked(self, searched: Searched) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Query -> the grades of the documents found and of those that should have been, and their scores, -inf where
        a document is not among those found."""
        gold, predicted = {}, {}
        for number, (grades, found, scores) in enumerate(zip(self._grades, *searched, strict=True)):
            by_document = {self._names[name]: grade for name, grade in grades.items()}
            there = dict(zip(found.tolist(), scores.tolist(), strict=True))
            both = {**there, **{one: there.get(one, -np.inf) for one in by_document}}
            gold[str(number)] = [by_document.get(one, 0.0) for one in both]
            predicted[str(number)] = [*both.values()]
        return gold, predicted


def nearest(queries: NDArray[Any], documents: NDArray[Any], depth: int = DEPTH) -> Searched:
    """The documents [n, D] with the greatest cosines to each of queries [q, D]; equal ones in order."""
    queries, documents = unit(queries), unit(documents)
    depth, part = min(depth, len(documents)), max(1, _AT_ONCE // max(1, len(queries)))
    found, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0))
    for begin in range(0, len(documents), part):
        near = (queries @ documents[begin : begin + part].T).astype(np.float64)
        numbers = np.broadcast_to(np.arange(begin, begin + near.shape[1]), near.shape)
        found, scores = best(np.concatenate([found, numbers], 1), np.concatenate([scores, near], 1), depth)
    return found, scores


def best(documents: NDArray[np.int64], scores: NDArray[np.float64], depth: int) -> Searched:
    """The `depth` documents of the greatest scores in each row, of equal ones the first."""
    order = np.lexsort((documents, -scores), axis=1)[:, :depth]
    return np.take_along_axis(documents, order, 1), np.take_along_axis(scores, order, 1)


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors [..., D] of length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)  # type: ignore[no-any-return]


def cosine(a: NDArray[Any], b: NDArray[Any]) -> Any:
    """Of vectors [..., D]."""
    return (unit(a) * unit(b)).sum(-1)
