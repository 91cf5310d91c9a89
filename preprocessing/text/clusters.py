"""Clusters of near-duplicates: union-find over the documents that have one, and which of each cluster stays."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocessing.text.dedup import DUPLICATE
from preprocessing.text.minhash import place_of

_AT_ONCE = 1 << 20
_ENDS = ("first", "later")


class Clusters(NamedTuple):
    """Documents [m] are numbers of 64 bits, of part and place, that increase in source order."""

    documents: NDArray[np.uint64]
    kept: NDArray[np.uint64]
    """[m]: the document that stays of each one's cluster."""

    @property
    def dropped(self) -> NDArray[np.uint64]:
        return self.documents[self.documents != self.kept]

    def sizes(self) -> Counter[int]:
        """Clusters by their number of documents, rounded down to a power of two."""
        powers = np.frexp(np.unique(self.kept, return_counts=True)[1])[1] - 1
        return Counter(1 << power for power in powers.tolist())


def clusters_of(files: Sequence[Path]) -> Clusters:
    """The clusters that the EDGEs in `files` connect; the first document of each stays.

    Memory is about 100 bytes for each document that has a near-duplicate, and a million edges at a time.
    """
    documents = np.unique(np.concatenate([np.empty(0, np.uint64), *(_documents(file) for file in files)]))
    parents = np.arange(len(documents))
    for file in files:
        edges = np.load(file, mmap_mode="r")
        for begin in range(0, len(edges), _AT_ONCE):
            some = edges[begin : begin + _AT_ONCE]
            unite(parents, *(np.searchsorted(documents, some[end]) for end in _ENDS))
    return Clusters(documents, documents[root_of(parents, np.arange(len(parents)))])


def unite(parents: NDArray[np.int64], first: NDArray[np.int64], later: NDArray[np.int64]) -> None:
    """Unite the sets of first[i] and later[i]; the least member of a set is its root, in whatever order they come."""
    while len(first):
        first, later = root_of(parents, first), root_of(parents, later)
        apart = first != later
        first, later = first[apart], later[apart]
        np.minimum.at(parents, np.maximum(first, later), np.minimum(first, later))


def root_of(parents: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The root of each node; on the way, nodes are hung higher up."""
    while True:
        above = parents[nodes]
        top = parents[above]
        if np.array_equal(above, top):
            return above
        parents[nodes] = top


def duplicates_of(documents: NDArray[np.uint64]) -> NDArray[Any]:
    """Documents as DUPLICATE [n]."""
    found = np.empty(len(documents), DUPLICATE)
    found["part"], found["place"] = place_of(documents)
    return found


def _documents(file: Path) -> NDArray[np.uint64]:
    edges = np.load(file, mmap_mode="r")
    return np.unique(np.concatenate([edges[end] for end in _ENDS]))
