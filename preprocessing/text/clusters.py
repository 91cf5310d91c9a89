"""Clusters of near-duplicates, by union-find over the documents that have one; one document of each cluster stays."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.text.dedup import DUPLICATE, Load
from reread.preprocessing.text.minhash import part_and_index

_AT_ONCE = 1 << 20
_ENDS = ("first", "later")


class Clusters(NamedTuple):
    """The clusters of the documents [m] that have a near-duplicate; documents are numbered by `minhash.number_of`."""

    documents: NDArray[np.uint64]
    """[m]: in source order."""
    kept: NDArray[np.uint64]
    """[m]: the document that stays of the cluster of each document."""

    @property
    def dropped(self) -> NDArray[np.uint64]:
        return self.documents[self.documents != self.kept]

    def sizes(self) -> Counter[int]:
        """The number of clusters by their number of documents, which is rounded down to a power of two."""
        powers = np.frexp(np.unique(self.kept, return_counts=True)[1])[1] - 1
        return Counter(1 << power for power in powers.tolist())


def clusters_of(files: Sequence[Load]) -> Clusters:
    """The clusters of the EDGEs in `files`; the first document of each cluster stays.

    It takes about 100 bytes of memory for each document with a near-duplicate, and reads a million edges at a time.
    """
    documents = np.unique(np.concatenate([np.empty(0, np.uint64), *(_documents(load()) for load in files)]))
    parents = np.arange(len(documents))
    for load in files:
        edges = load()
        for begin in range(0, len(edges), _AT_ONCE):
            some = edges[begin : begin + _AT_ONCE]
            unite(parents, *(np.searchsorted(documents, some[end]) for end in _ENDS))
    return Clusters(documents, documents[root_of(parents, np.arange(len(parents)))])


def unite(parents: NDArray[np.int64], first: NDArray[np.int64], later: NDArray[np.int64]) -> None:
    """Unite the sets of first[i] and later[i]; the least member of a set is its root, whatever the order of pairs."""
    while len(first):
        first, later = root_of(parents, first), root_of(parents, later)
        apart = first != later
        first, later = first[apart], later[apart]
        np.minimum.at(parents, np.maximum(first, later), np.minimum(first, later))


def root_of(parents: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n]: the root of each of `nodes` [n]; paths to the root are shortened in `parents`."""
    while True:
        above = parents[nodes]
        top = parents[above]
        if np.array_equal(above, top):
            return above
        parents[nodes] = top


def duplicates_of(documents: NDArray[np.uint64]) -> NDArray[Any]:
    """Documents, numbered by `minhash.number_of`, as DUPLICATE [n]."""
    found = np.empty(len(documents), DUPLICATE)
    found["part"], found["index"] = part_and_index(documents)
    return found


def _documents(edges: NDArray[Any]) -> NDArray[np.uint64]:
    return np.unique(np.concatenate([edges[end] for end in _ENDS]))
