"""Thresholds of the probabilities of labels in sets, chosen on examples with labels."""

import numpy as np
from numpy.typing import NDArray

HALF = 0.5


def best_threshold(chances: NDArray[np.float64], is_gold: NDArray[np.bool_]) -> float:
    """The threshold of the decisions `chances > threshold` with the best F1; of equal ones the nearest to one half.

    It lies in the middle between two of the probabilities. `chances`, `is_gold`: [n]. One half if nothing is gold.
    """
    if not is_gold.any():
        return HALF
    order = np.argsort(-chances, kind="stable")
    above, right = chances[order], np.cumsum(is_gold[order])
    below = np.append(above[1:], 0.0)
    f1 = 2 * right / (np.arange(1, len(above) + 1) + is_gold.sum())
    f1[above == below] = -1  # equal probabilities are on one side
    equal = (above + below)[f1 >= f1.max()] / 2
    return float(equal[np.abs(equal - HALF).argmin()])


def shared_threshold(chances: NDArray[np.float64], is_gold: NDArray[np.bool_]) -> list[float]:
    """One threshold for all labels, that of the best micro-F1. `chances`, `is_gold`: [n, labels]."""
    return [best_threshold(chances.ravel(), is_gold.ravel())] * chances.shape[1]


def threshold_of_each(chances: NDArray[np.float64], is_gold: NDArray[np.bool_]) -> list[float]:
    """A threshold for each label, that of the label's best F1. `chances`, `is_gold`: [n, labels]."""
    return [best_threshold(*columns) for columns in zip(chances.T, is_gold.T, strict=True)]
