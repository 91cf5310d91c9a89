"""Scores of `phrases`, in points, and TF-IDF, its baseline.

A phrase is its words in lower case; gold and prediction are sequences of phrases, a prediction the most probable first.
Phrases that stand twice count once. Precision at k is the share of right ones among k, also where fewer are predicted,
recall their share of the gold ones, and F1 is computed for each document and averaged (microsoft/OpenKP, evaluate.py).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from reread.training.scoring.gather import paired, points

DEPTHS = (1, 3, 5)
"""The numbers k of first phrases that are scored."""

Phrase = Sequence[str]


def f1_at(gold: Mapping[str, Sequence[Phrase]], predicted: Mapping[str, Sequence[Phrase]], depth: int) -> float:
    """F1 of the first `depth` phrases; a document without gold phrases, or without a prediction, scores 0."""
    found = []
    for phrases, guess in paired(gold, predicted):
        truth = set(map(tuple, phrases))
        right = len(truth.intersection(islice(dict.fromkeys(map(tuple, guess or ())), depth)))
        found.append(2 * right / (depth + len(truth)))
    return points(found)


class TfIdf:
    """Ranks the runs of words of a text by their number times the mean idf of their words, log(documents / documents
    with the word); a word that no document has is in one. Of equals the longer leads, and the one that begins first."""

    def __init__(self, texts: Iterable[Phrase], longest: int) -> None:
        """Words are counted in `texts`; runs have at most `longest` words."""
        self.longest, self.documents = longest, 0
        having = Counter[str]()
        for words in texts:
            self.documents += 1
            having.update(set(words))
        self.having = having

    def best(self, words: Phrase, count: int) -> list[tuple[int, int]]:
        """(first word, words) of the best runs of a text, each at its first occurrence."""
        idf = [math.log(max(1, self.documents) / max(1, self.having[word])) for word in words]
        times = Counter[tuple[str, ...]]()
        first: dict[tuple[str, ...], int] = {}
        for begin in range(len(words)):
            for end in range(begin + 1, min(begin + self.longest, len(words)) + 1):
                run = tuple(words[begin:end])
                times[run] += 1
                first.setdefault(run, begin)

        def rank(run: tuple[str, ...]) -> tuple[float, int, int]:
            begin, length = first[run], len(run)
            return -times[run] * math.fsum(idf[begin : begin + length]) / length, -length, begin

        return [(first[run], len(run)) for run in sorted(times, key=rank)[:count]]
