"""Scores of `generate`, in points: ROUGE (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries") and equal
texts.

A text counts by its units in lower case: each Chinese character is one, and each other run of letters and digits; marks
and blanks are none. ROUGE is F1 with precision and recall of equal weight, for each text, averaged; -N is that of the
runs of N units, each counted as often as both texts have it (section 2), and -L that of the longest common subsequence
of the whole texts (section 3.1).
"""

import re
from collections import Counter
from collections.abc import Mapping

from reread.training.scoring.gather import paired, points

_CHINESE = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNIT = re.compile(rf"[{_CHINESE}]|[^\W_{_CHINESE}]+")


def units(text: str) -> list[str]:
    """What is counted of a text."""
    return _UNIT.findall(text.lower())


def rouge_n(gold: Mapping[str, str], predicted: Mapping[str, str], size: int) -> float:
    """ROUGE-N of runs of `size` units; a text without such a run, or without a prediction, scores 0."""
    return points(
        [_f1(*_common_runs(units(text), units(guess or ""), size)) for text, guess in paired(gold, predicted)]
    )


def rouge_l(gold: Mapping[str, str], predicted: Mapping[str, str]) -> float:
    """ROUGE-L; a text without a prediction scores 0."""
    return points([similarity(text, guess or "") for text, guess in paired(gold, predicted)])


def equal(gold: Mapping[str, str], predicted: Mapping[str, str]) -> float:
    """The share of texts whose units are all predicted, in their order."""
    return points([float(guess is not None and units(text) == units(guess)) for text, guess in paired(gold, predicted)])


def similarity(text: str, guess: str) -> float:
    """ROUGE-L of one text, from 0 to 1."""
    theirs, ours = units(text), units(guess)
    return _f1(_longest_common(theirs, ours), len(theirs), len(ours))


def _f1(common: int, theirs: int, ours: int) -> float:
    return 2 * common / (theirs + ours) if common else 0.0


def _common_runs(theirs: list[str], ours: list[str], size: int) -> tuple[int, int, int]:
    """The number of runs of `size` units that both have, that `theirs` has, and that `ours` has."""
    runs = [Counter(zip(*(one[begin:] for begin in range(size)), strict=False)) for one in (theirs, ours)]
    return (runs[0] & runs[1]).total(), runs[0].total(), runs[1].total()


def _longest_common(theirs: list[str], ours: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(ours) + 1)
    for unit in theirs:
        before = 0  # the value of the row above, one to the left
        for number, other in enumerate(ours, 1):
            before, row[number] = row[number], before + 1 if unit == other else max(row[number], row[number - 1])
    return row[-1]
