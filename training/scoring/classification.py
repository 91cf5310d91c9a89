"""Scores of `classify`. Those of labels are in points, those of numbers in the unit of the numbers or from -1 to 1.

The definitions are scikit-learn's (metrics module) except that macro-F1 takes a fixed set of labels: scikit-learn
averages over the labels that occur in gold or prediction, so its mean has another divisor for another model.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.training.scoring.gather import f1, known, paired, points


class UndefinedError(UserError):
    """The score is not defined for these texts."""


def accuracy(gold: Mapping[str, str | int], predicted: Mapping[str, str | int]) -> float:
    """The share of examples whose label is right; micro-F1 is the same number where each text has one label."""
    return points([label == guess for label, guess in paired(gold, predicted)])


def macro_f1(gold: Mapping[str, str], predicted: Mapping[str, str], labels: Sequence[str]) -> float:
    """The mean of the F1 of each of `labels`, 2 TP / (2 TP + FP + FN), where 0 / 0 is 0.

    A label that occurs in neither gold nor predictions therefore counts as 0. Raises `UserError` for a label of either
    that is not among `labels`.
    """
    pairs = paired(gold, predicted)
    known(gold.values(), labels)
    known(predicted.values(), labels)
    right = Counter(label for label, guess in pairs if label == guess)
    made, there = Counter(predicted.values()), Counter(gold.values())
    return math.fsum(f1(right[label], made[label], there[label]) for label in labels) / len(labels)


def positive_f1(gold: Mapping[str, str], predicted: Mapping[str, str], positive: str) -> float:
    """F1 of the label `positive` alone, the "F1" of most papers with two labels."""
    right = sum(label == guess == positive for label, guess in paired(gold, predicted))
    return f1(right, list(predicted.values()).count(positive), list(gold.values()).count(positive))


def matthews(gold: Mapping[str, str], predicted: Mapping[str, str]) -> float:
    """Matthews' correlation of gold and predicted labels, from -100 to 100, for any number of labels (Gorodkin 2004).

    0 if all gold labels, or all predicted ones, are the same.
    """
    pairs = paired(gold, predicted)
    right, there, made = sum(label == guess for label, guess in pairs), *map(Counter, zip(*pairs, strict=True))
    count = len(pairs)
    shared = math.fsum(made[label] * number for label, number in there.items())
    spread = [count**2 - math.fsum(number**2 for number in one.values()) for one in (there, made)]
    scale = math.sqrt(spread[0] * spread[1])
    return 100 * (right * count - shared) / scale if scale else 0.0


def micro_f1(gold: Mapping[str, Collection[str]], predicted: Mapping[str, Collection[str]]) -> float:
    """F1 over all decisions (text, label) of sets of labels: TP, FP and FN are summed over texts and labels."""
    pairs = [(set(labels), set(guesses or ())) for labels, guesses in paired(gold, predicted)]
    return f1(
        sum(len(labels & guesses) for labels, guesses in pairs),
        sum(len(guesses) for _, guesses in pairs),
        sum(len(labels) for labels, _ in pairs),
    )


def exact_sets(gold: Mapping[str, Collection[str]], predicted: Mapping[str, Collection[str]]) -> float:
    """The share of texts whose whole set of labels is right (scikit-learn's accuracy of label sets)."""
    pairs = paired(gold, predicted)
    return points([guesses is not None and set(labels) == set(guesses) for labels, guesses in pairs])


def auc(gold: Mapping[str, str], probabilities: Mapping[str, float], positive: str) -> float:
    """The area under the ROC curve: how often a positive text has the higher probability, ties counted as half.

    By ranks (Mann and Whitney 1947). `probabilities` are those of the label `positive`; any increasing function of
    them gives the same. Raises `UndefinedError` if all gold is positive or none is, and `UserError` for a missing
    probability.
    """
    labels, numbers = _complete(gold, probabilities)
    is_positive = np.array([label == positive for label in labels])
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        raise UndefinedError(
            f"AUC needs texts with and without the label `{positive}`; here are {positives}, {negatives}"
        )
    wins = _ranks(numbers)[is_positive].sum() - positives * (positives + 1) / 2
    return 100 * float(wins) / (positives * negatives)


def pearson(gold: Mapping[str, float], predicted: Mapping[str, float]) -> float:
    """Pearson's correlation of gold and prediction, from -1 to 1; 0 if either is the same for all texts.

    Raises `UserError` for a missing prediction, since no value would count as wrong.
    """
    labels, numbers = _complete(gold, predicted)
    return _correlation(np.array(labels, np.float64), numbers)


def spearman(gold: Mapping[str, float], predicted: Mapping[str, float]) -> float:
    """Spearman's correlation: Pearson's of the ranks, where equal numbers share the mean of their ranks."""
    labels, numbers = _complete(gold, predicted)
    return _correlation(_ranks(np.array(labels, np.float64)), _ranks(numbers))


def mean_absolute_error(gold: Mapping[str, float], predicted: Mapping[str, float]) -> float:
    """The mean distance of prediction and gold."""
    labels, numbers = _complete(gold, predicted)
    return math.fsum(abs(numbers - np.array(labels, np.float64))) / len(labels)


def root_mean_square_error(gold: Mapping[str, float], predicted: Mapping[str, float]) -> float:
    """The root of the mean square of the distance of prediction and gold."""
    labels, numbers = _complete(gold, predicted)
    return math.sqrt(math.fsum((numbers - np.array(labels, np.float64)) ** 2) / len(labels))


def _complete(gold: Mapping[str, str | float], predicted: Mapping[str, float]) -> tuple[list, NDArray[np.float64]]:
    """Gold values and predictions [N]; raises `UserError` if a prediction is missing or not finite."""
    labels, numbers = zip(*paired(gold, predicted), strict=True)
    found = np.array(numbers, np.float64)  # None becomes NaN
    if wrong := int((~np.isfinite(found)).sum()):
        raise UserError(f"{wrong:,} of {len(found):,} texts have no finite number predicted")
    return list(labels), found


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1 [N]; equal values share the mean of their ranks."""
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[groups]


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """In [-1, 1]; sums are exactly rounded, so neither order nor machine changes a bit."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    a, b = a - math.fsum(a) / len(a), b - math.fsum(b) / len(b)
    scale = math.sqrt(math.fsum(a * a) * math.fsum(b * b))
    return max(-1.0, min(1.0, math.fsum(a * b) / scale)) if scale else 0.0
