"""Text of evaluation sets in other text: runs of so many words, or of so many units with Han or kana characters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocessing.text.ngrams import Units, ngrams, pieces, units_of

RUN = np.dtype([("hash", "<u8"), ("file", "<u4")])
"""The hash of a run, and the number of the first file that has it."""

_EXCERPT = 80


class Match(NamedTuple):
    file: int
    excerpt: str
    """The text from the run on."""


class Lengths(NamedTuple):
    """How many units in a row count as the same text."""

    words: int
    characters: int
    """For a run that has a Han or kana character."""


class RunFinder:
    """Finds the runs RUN [n], sorted, in texts."""

    def __init__(self, runs: NDArray[Any], lengths: Lengths) -> None:
        self.hashes = np.ascontiguousarray(runs["hash"])
        self.files, self.lengths = runs["file"], lengths
        bits = max(16, (4 * len(runs)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._is_possible = np.zeros(1 << bits, bool)  # spares nearly all runs of other text the search
        self._is_possible[self.hashes >> self._shift] = True

    def find(self, texts: Sequence[str]) -> list[Match | None]:
        """The first run that is in each text."""
        matches: list[Match | None] = [None] * len(texts)
        for numbers, batch in pieces(texts):
            units = units_of(batch)
            hashes, firsts = runs_of(units, self.lengths)
            possible = self._is_possible[hashes >> self._shift]
            hashes, firsts = hashes[possible], firsts[possible]
            place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            found = np.flatnonzero(self.hashes[place] == hashes)
            joined = "\0".join(batch) if len(found) else ""
            for index in found[np.argsort(firsts[found])].tolist():
                unit = int(firsts[index])
                number = numbers[int(units.text[unit])]
                if matches[number] is None:
                    begin = int(units.begins[unit])
                    excerpt = joined[begin : begin + _EXCERPT].partition("\0")[0]
                    matches[number] = Match(int(self.files[place[index]]), excerpt)
        return matches


def runs_of(units: Units, lengths: Lengths) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash of each run, and the number of its first unit."""
    characters = np.concatenate(([0], np.cumsum(units.is_character)))
    found = []
    for length, has_characters in ((lengths.words, False), (lengths.characters, True)):
        hashes, firsts = ngrams(units, length)
        is_one = (characters[firsts + length] > characters[firsts]) == has_characters
        found.append((hashes[is_one], firsts[is_one]))
    (words, first_words), (others, first_others) = found
    return np.concatenate((words, others)), np.concatenate((first_words, first_others))


def collect(texts: Sequence[str], lengths: Lengths) -> tuple[NDArray[np.uint64], int]:
    """The hashes of the runs in `texts`, and how many of the texts are too short to have one."""
    hashes, with_runs = [np.empty(0, np.uint64)], set[int]()
    for numbers, batch in pieces(texts):
        units = units_of(batch)
        found, firsts = runs_of(units, lengths)
        hashes.append(np.unique(found))
        with_runs.update(np.array(numbers)[units.text[firsts]].tolist())
    return np.unique(np.concatenate(hashes)), len(texts) - len(with_runs)
