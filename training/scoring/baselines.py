"""Baselines without a neural network, whose scores `reread evaluate` prints beside a model's.

Each is a few lines on plain values; only `BagOfGrams` needs scikit-learn (`pip install 'reread[baselines]'`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from reread.preprocessing.errors import UserError, first_line
from reread.training.scoring.entities import Scheme, Tags, entities

Label = TypeVar("Label", str, int)

_CLAUSE = re.compile(r"[^，。！？；：、,.!?;:\n]+")


def majority(labels: Iterable[Label]) -> Label:
    """The most frequent label of the training data, or the best fixed index of the right option.

    Of equally frequent labels the first in sorted order. Raises `UserError` if there is no label.
    """
    counts = Counter(labels)
    if not counts:
        raise UserError("there are no labels, so there is no most frequent one")
    return min(counts, key=lambda label: (-counts[label], label))


def longest_option(options: Sequence[str]) -> int:
    """The index of the option with the most characters; the first of equals."""
    return _first_best([len(option) for option in options])


def most_shared_option(text: str, options: Sequence[str]) -> int:
    """The index of the option with the most characters that stand in the text; the first of equals."""
    there = set(text)
    return _first_best([sum(character in there for character in option) for option in options])


def likeliest_clause(context: str, question: str) -> tuple[int, int]:
    """The characters [start, end) of the clause with the most different pairs of characters of the question.

    Clauses lie between marks of punctuation; the first of equals counts. (0, 0) if the context holds no clause.
    """
    wanted = _pairs(question)
    clauses = list(_CLAUSE.finditer(context))
    if not clauses:
        return 0, 0
    found = clauses[_first_best([len(wanted & _pairs(clause[0])) for clause in clauses])]
    return found.start(), found.end()


class KnownEntities:
    """Tags text by the entities of the training data: from the left, the longest one that matches.

    An entity that has several types gets the most frequent, and names of fewer than `shortest` tokens are left out,
    since a single character mostly stands for something else.
    """

    def __init__(
        self,
        texts: Iterable[tuple[Sequence[str], Tags]],
        scheme: Scheme = "BIO",
        shortest: int = 2,
    ) -> None:
        types: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        self._inside = "I"
        for tokens, tags in texts:
            if any(tag is not None and tag.startswith("M-") for tag in tags):
                self._inside = "M"
            for type_, start, end in entities(tags, scheme):
                if end - start >= shortest:
                    types[tuple(tokens[start:end])][type_] += 1
        self.scheme = scheme
        self.types = {name: majority(counts.elements()) for name, counts in types.items()}
        lengths: dict[str, set[int]] = defaultdict(set)
        for name in self.types:
            lengths[name[0]].add(len(name))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}

    def tags(self, tokens: Sequence[str]) -> list[str]:
        """A tag for each token of a text."""
        found = ["O"] * len(tokens)
        position = 0
        while position < len(tokens):
            for length in self._lengths.get(tokens[position], ()):
                name = tuple(tokens[position : position + length])  # shorter at the end of the text
                if type_ := self.types.get(name):
                    found[position : position + len(name)] = self._entity(type_, len(name))
                    position += len(name)
                    break
            else:
                position += 1
        return found

    def _entity(self, type_: str, length: int) -> list[str]:
        if self.scheme == "BIO":
            letters = "B" + "I" * (length - 1)
        else:
            letters = "S" if length == 1 else "B" + self._inside * (length - 2) + "E"
        return [f"{letter}-{type_}" for letter in letters]


class BagOfGrams:
    """A linear classifier on the tf-idf of characters (Chinese) or words and of pairs of neighbours, by scikit-learn.
    Texts are read once, one after another.

    Raises `UserError` if scikit-learn is not installed, if the texts have fewer than two labels, or no word at all.
    """

    def __init__(
        self,
        texts: Iterable[str],
        labels: Sequence[str],
        *,
        unit: Literal["char", "word"],
        model: Literal["logistic", "svm"] = "logistic",
    ) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
            from sklearn.svm import LinearSVC
        except ImportError as error:
            raise UserError(
                f"the bag-of-{unit}s baseline needs scikit-learn ({error}); install it by "
                "`pip install 'reread[baselines]'`"
            ) from None
        if len(set(labels)) < 2:
            raise UserError(f"the bag-of-{unit}s baseline needs texts with two labels or more")
        # The model, and the features of texts that it sees
        kinds: dict[str, Any] = {
            "logistic": lambda: LogisticRegression(C=10, max_iter=1000),
            "svm": lambda: LinearSVC(random_state=0),
        }
        self._features = TfidfVectorizer(
            analyzer=unit,
            token_pattern=r"\w+" if unit == "word" else None,  # its own leaves out words of one character
            ngram_range=(1, 2),
            sublinear_tf=True,
        )
        # Fit it to the training texts
        try:
            self._model = kinds[model]().fit(self._features.fit_transform(texts), list(labels))
        except ValueError as error:
            raise UserError(f"the bag-of-{unit}s baseline cannot be made ({first_line(error)})") from None

    def predict(self, texts: Iterable[str]) -> list[str]:
        """The label of each text."""
        return [str(label) for label in self._model.predict(self._features.transform(texts))]


def _pairs(text: str) -> set[str]:
    return {text[position : position + 2] for position in range(len(text) - 1)}


def _first_best(values: Sequence[int]) -> int:
    return max(range(len(values)), key=values.__getitem__)
