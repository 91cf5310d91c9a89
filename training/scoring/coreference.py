"""Scores of `coreference`, in points, and clusters by words alone, its baseline.

Gold and prediction of a document are clusters of mentions, compared by their spans. Recall and precision have one
numerator and one denominator for all documents, and a missing prediction has no clusters. Equal to the reference scorer
v8.01 (Pradhan et al. 2014), which counts clusters of one mention where they are given: `reread` gives it none.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reread.training.scoring.gather import paired, percent

Span = tuple[int, int]
Clusters = Sequence[Sequence[Span]]
Fraction = tuple[float, float]


def muc(gold: Mapping[str, Clusters], predicted: Mapping[str, Clusters]) -> float:
    """F1 of links (Vilain et al. 1995): a cluster needs one fewer than it has mentions, and lacks one for each further
    part that the other side divides it into, mentions that it does not have being parts of their own."""
    return _f1(gold, predicted, _links)


def b_cubed(gold: Mapping[str, Clusters], predicted: Mapping[str, Clusters]) -> float:
    """F1 of mentions, each right by the share of its cluster that its other cluster holds (Bagga and Baldwin 1998)."""
    return _f1(gold, predicted, _mentions)


def ceaf(gold: Mapping[str, Clusters], predicted: Mapping[str, Clusters]) -> float:
    """F1 of clusters, aligned one to one by phi4(K, R) = 2 |K and R| / (|K| + |R|) (Luo 2005)."""
    return _f1(gold, predicted, _entities)


def average(gold: Mapping[str, Clusters], predicted: Mapping[str, Clusters]) -> float:
    """The mean of the three F1 (CoNLL-2012)."""
    return math.fsum(score(gold, predicted) for score in (muc, b_cubed, ceaf)) / 3


def _f1(
    gold: Mapping[str, Clusters], predicted: Mapping[str, Clusters], recall: Callable[[Clusters, Clusters], Fraction]
) -> float:
    """F1 of `recall(truth, found)` over all documents and of precision, which is recall with the sides exchanged."""
    pairs = [(one, guess or ()) for one, guess in paired(gold, predicted)]
    right, known = _summed(recall(one, guess) for one, guess in pairs)
    correct, given = _summed(recall(guess, one) for one, guess in pairs)
    r, p = percent(right, known), percent(correct, given)
    return 2 * r * p / (r + p) if r + p else 0.0


def _summed(fractions: Iterable[Fraction]) -> Fraction:
    parts = list(fractions)
    return math.fsum(one for one, _ in parts), math.fsum(one for _, one in parts)


def _overlaps(truth: Clusters, found: Clusters) -> list[Counter[int]]:
    """For each cluster, how many of its mentions are in each cluster that was found."""
    where = {mention: number for number, cluster in enumerate(found) for mention in cluster}
    return [Counter(where[mention] for mention in cluster if mention in where) for cluster in truth]


def _links(truth: Clusters, found: Clusters) -> Fraction:
    parts = [len(one) + len(cluster) - one.total() for cluster, one in zip(truth, _overlaps(truth, found), strict=True)]
    return sum(map(len, truth)) - sum(parts), sum(len(cluster) - 1 for cluster in truth)


def _mentions(truth: Clusters, found: Clusters) -> Fraction:
    pairs = zip(truth, _overlaps(truth, found), strict=True)
    right = math.fsum(count**2 / len(cluster) for cluster, one in pairs for count in one.values())
    return right, sum(map(len, truth))


def _entities(truth: Clusters, found: Clusters) -> Fraction:
    similarity = np.zeros((len(truth), len(found)))
    for row, one in enumerate(_overlaps(truth, found)):
        for column, count in one.items():
            similarity[row, column] = 2 * count / (len(truth[row]) + len(found[column]))
    return best_alignment(similarity), len(truth)


def best_alignment(profits: NDArray[np.float64]) -> float:
    """The greatest sum of profits [n, m] of which no two are in a row or a column.

    Rows are assigned one after the other along the path that costs least, with potentials of rows and columns (Kuhn
    and Munkres; the form of Jonker and Volgenant 1987).
    """
    if not profits.size:
        return 0.0
    costs = -(profits if profits.shape[0] <= profits.shape[1] else profits.T)
    rows, columns = costs.shape
    of_row, of_column = np.zeros(rows), np.zeros(columns)
    row_of = np.full(columns, -1)
    for row in range(rows):
        least, before = np.full(columns, np.inf), np.full(columns, -1)
        is_reached = np.zeros(columns, bool)
        column, current, length = -1, row, 0.0
        while current >= 0:  # until a column is free
            further = length + costs[current] - of_row[current] - of_column
            shorter = ~is_reached & (further < least)
            least[shorter], before[shorter] = further[shorter], column
            column = int(np.where(is_reached, np.inf, least).argmin())
            length, current = float(least[column]), int(row_of[column])
            is_reached[column] = True
        # The potentials of what was reached, and the assignment along the path
        passed = np.flatnonzero(is_reached & (row_of >= 0))
        of_row[row] += length
        of_row[row_of[passed]] += length - least[passed]
        of_column[is_reached] += least[is_reached] - length
        while column >= 0:
            previous = int(before[column])
            row_of[column] = row_of[previous] if previous >= 0 else row
            column = previous
    assigned = np.flatnonzero(row_of >= 0)
    return -math.fsum(costs[row_of[assigned], assigned])


class SameWords:
    """Clusters mentions of the same words, in lower case. Mentions are those of the training data, the longest first,
    and runs of capitalised words that do not follow a mark that ends a sentence; they do not overlap."""

    def __init__(self, texts: Iterable[tuple[Sequence[str], Sequence[tuple[int, int]]]], longest: int) -> None:
        """texts: the words of each training text and [first, end) of its mentions; of those up to `longest` words the
        ones that are mentions at least half the times that they stand in the texts."""
        mentioned, stand = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        kept = [(tuple(map(str.lower, words)), spans) for words, spans in texts]
        for words, spans in kept:
            mentioned.update(words[first:end] for first, end in spans if end - first <= longest)
        self.lengths = sorted({len(one) for one in mentioned}, reverse=True)
        for words, _ in kept:
            for length in self.lengths:
                runs = (words[at : at + length] for at in range(len(words) - length + 1))
                stand.update(run for run in runs if run in mentioned)
        self.known = {one for one, count in mentioned.items() if 2 * count >= stand[one]}

    def clusters(self, words: Sequence[str]) -> list[list[tuple[int, int]]]:
        """[first, end) of the mentions in each cluster of two or more."""
        lower = tuple(map(str.lower, words))
        found: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        at = 0
        while at < len(words):
            end = max(self._known_end(lower, at), self._name_end(words, at))
            if end > at:
                found[lower[at:end]].append((at, end))
            at = max(end, at + 1)
        return [one for one in found.values() if len(one) > 1]

    def _known_end(self, lower: tuple[str, ...], at: int) -> int:
        lengths = (length for length in self.lengths if at + length <= len(lower))
        return next((at + length for length in lengths if lower[at : at + length] in self.known), at)

    @staticmethod
    def _name_end(words: Sequence[str], at: int) -> int:
        if at == 0 or words[at - 1][-1] in ".!?:;\"'“”‘’`":
            return at
        end = at
        while end < len(words) and words[end].istitle():
            end += 1
        return end
