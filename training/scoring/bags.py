"""Baselines of retrieval and of likeness that count words: bag of words, and BM25.

Words are those of jieba where a text has ideographs, else runs of letters and digits, in lower case. They need
`pip install 'reread[baselines]'`.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.config import WordSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.text.words import WordSegmenter
from reread.training.scoring.retrieval import DEPTH, Searched, best

_HAN = re.compile(r"[\u3400-\u9fff]")
_WORD = re.compile(r"\w+")
_ROWS = 256
"""Queries that are scored together."""


@cache
def _segmenter() -> WordSegmenter:
    return WordSegmenter(WordSettings())


def words(text: str) -> list[str]:
    text = text.lower()
    if not _HAN.search(text):
        return _WORD.findall(text)
    begins = np.flatnonzero(_segmenter().starts(text)).tolist()
    found = (text[begin:end] for begin, end in pairwise([*begins, len(text)]))
    return [word for word in found if _WORD.fullmatch(word)]


class Bag:
    """tf-idf vectors of words, by scikit-learn, with the idf of `texts`. Raises `UserError` without the package."""

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError as error:
            raise _missing("bag of words", "scikit-learn", error) from None
        self._features = TfidfVectorizer(analyzer=words, sublinear_tf=True)
        self._texts = self._features.fit_transform(texts)

    def likeness(self, left: Sequence[str], right: Sequence[str]) -> NDArray[np.float64]:
        """The cosine of each pair [n]."""
        a, b = (self._features.transform(texts) for texts in (left, right))
        return np.asarray(a.multiply(b).sum(axis=1)).reshape(-1)

    def search(self, queries: Sequence[str]) -> Searched:
        """The texts with the greatest cosines."""
        asked = self._features.transform(queries)
        begins = range(0, len(queries), _ROWS)
        return _joined(_best_of((asked[begin : begin + _ROWS] @ self._texts.T).toarray()) for begin in begins)


def bm25(documents: Sequence[str], queries: Sequence[str]) -> Searched:
    """By bm25s, as Lucene computes it (k1 1.5, b 0.75). Raises `UserError` without the package."""
    try:
        import bm25s
    except ImportError as error:
        raise _missing("BM25", "bm25s", error) from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    index = bm25s.BM25(method="lucene")
    index.index([words(text) or [""] for text in documents], show_progress=False)
    asked = (index.get_scores(words(text) or [""]) for text in queries)
    return _joined(_best_of(scores[None]) for scores in asked)


def _best_of(scores: NDArray[Any]) -> Searched:
    numbers = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return best(numbers, scores.astype(np.float64), min(DEPTH, scores.shape[1]))


def _joined(parts: Iterable[Searched]) -> Searched:
    found, scores = zip(*parts, strict=True)
    return np.concatenate(found), np.concatenate(scores)


def _missing(what: str, package: str, error: ImportError) -> UserError:
    return UserError(f"the {what} baseline needs {package} ({error}); install it by `pip install 'reread[baselines]'`")
