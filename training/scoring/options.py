"""Scores of `choose`, in points; accuracy is `classification.accuracy` over the indices of the options."""

from collections import defaultdict
from collections.abc import Hashable, Mapping

from reread.training.scoring.classification import accuracy
from reread.training.scoring.gather import paired, points


def qac(gold: Mapping[str, int], predicted: Mapping[str, int]) -> float:
    """CMRC2019's question-level accuracy: the share of blanks that are filled correctly; an empty blank is wrong.

    The official script (cmrc2019_evaluate.py) does not count blanks without a prediction.
    """
    return accuracy(gold, predicted)


def pac(gold: Mapping[str, int], predicted: Mapping[str, int], groups: Mapping[str, Hashable]) -> float:
    """CMRC2019's passage-level accuracy: the share of passages, `groups[id]`, whose blanks are all right."""
    right: dict[Hashable, bool] = defaultdict(lambda: True)
    for name, (label, guess) in zip(gold, paired(gold, predicted), strict=True):
        right[groups[name]] &= label == guess
    return points(list(right.values()))
