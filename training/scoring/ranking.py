"""Scores of `rank`, in points, and BM25, its baseline.

The gold of a query is the grades of its passages, a prediction their scores in the same order. Of passages with equal
scores, those with the lower grade count as ranked first, so that the order in the file, where relevant passages often
come first, improves no score. A query without a passage above grade 0 scores 0, as in trec_eval, and so does a query
without a prediction.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from reread.training.scoring.gather import paired, points

DEPTH = 10
"""The number of first passages that a score considers."""

Grades = Sequence[float]
_TERM = re.compile(r"[\u3400-\u9fff]+|[^\W\u3400-\u9fff]+")


def mrr(gold: Mapping[str, Grades], predicted: Mapping[str, Sequence[float]]) -> float:
    """MRR@10: the mean of 1 / rank of the first relevant passage, 0 past the tenth (MS MARCO's script)."""
    return _mean(gold, predicted, lambda grades: next((1 / rank for rank, one in enumerate(grades, 1) if one), 0))


def recall(gold: Mapping[str, Grades], predicted: Mapping[str, Sequence[float]], depth: int = DEPTH) -> float:
    """The share of a query's relevant passages that are among the first ten, or `depth`."""
    return _mean(gold, predicted, lambda grades: sum(map(bool, grades)), relative=True, whole=True, depth=depth)


def ndcg(gold: Mapping[str, Grades], predicted: Mapping[str, Sequence[float]]) -> float:
    """nDCG@10 with the grade itself as gain: sum of grade / log2(1 + rank), divided by that of the best order
    (Järvelin and Kekäläinen 2002; trec_eval's ndcg_cut and scikit-learn's ndcg_score)."""
    return _mean(
        gold,
        predicted,
        lambda grades: math.fsum(one / math.log2(1 + rank) for rank, one in enumerate(grades, 1)),
        relative=True,
    )


def _mean(
    gold: Mapping[str, Grades],
    predicted: Mapping[str, Sequence[float]],
    value: Callable[[Grades], float],
    relative: bool = False,
    whole: bool = False,
    depth: int = DEPTH,
) -> float:
    """The mean over queries of the `value` of the first `depth` grades in predicted order.

    `relative` divides it by that of the best order, of which `whole` counts all passages.
    """
    found = []
    for grades, guess in paired(gold, predicted):
        order = [] if guess is None else sorted(range(len(grades)), key=lambda one: (-guess[one], grades[one]))
        best = value(sorted(grades, reverse=True)[: None if whole else depth]) if relative else 1.0
        found.append(value([grades[one] for one in order[:depth]]) / best if best else 0.0)
    return points(found)


class Bm25:
    """BM25 (Robertson and Zaragoza 2009, section 3.4, with Lucene's idf, which is never below 0; k1 1.2, b 0.75).

    Terms are words in lower case and pairs of neighbouring ideographs.
    """

    def __init__(self, passages: Iterable[str]) -> None:
        """Terms are counted in `passages`."""
        counted = [_terms(passage) for passage in dict.fromkeys(passages)]
        self.count = len(counted)
        self.having = Counter(term for terms in counted for term in terms)
        self.mean_length = sum(terms.total() for terms in counted) / max(1, self.count)

    def score(self, query: str, passage: str) -> float:
        terms = _terms(passage)
        norm = 1.2 * (0.25 + 0.75 * terms.total() / (self.mean_length or 1))
        return math.fsum(
            math.log(1 + (self.count - self.having[term] + 0.5) / (self.having[term] + 0.5))
            * terms[term]
            * 2.2
            / (terms[term] + norm)
            for term in _terms(query)
            if terms[term]
        )


def _terms(text: str) -> Counter[str]:
    found = Counter[str]()
    for run in _TERM.findall(text.lower()):
        is_chinese = "\u3400" <= run[0] <= "\u9fff"
        pairs = [run[begin : begin + 2] for begin in range(len(run) - 1)] if is_chinese else []
        found.update(pairs or [run])
    return found
