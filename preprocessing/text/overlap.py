"""Finds text of evaluation sets in other text: runs of words, or of units with Han or kana characters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.text.ngrams import Units, ngrams, pieces, units_of

RUN = np.dtype([("hash", "<u8"), ("file", "<u4")])
"""The hash of a run, and the number of the first file that has it."""

_EXCERPT = 80


class Match(NamedTuple):
    """A run of an evaluation set that was found in a text."""

    file: int
    """The number of the first evaluation file that has the run."""
    excerpt: str
    """The beginning of the run, as it stands in the text."""


class Lengths(NamedTuple):
    """The number of consecutive units that count as the same text."""

    words: int
    """For a run of words alone."""
    characters: int
    """For a run that has a Han or kana character."""


class RunFinder:
    """Finds the `runs` RUN [n], sorted by hash, in texts."""

    def __init__(self, runs: NDArray[Any], lengths: Lengths) -> None:
        self.hashes = np.ascontiguousarray(runs["hash"])
        self.files, self.lengths = runs["file"], lengths
        bits = max(16, (4 * len(runs)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._is_possible = np.zeros(1 << bits, bool)  # excludes nearly all other runs without a search
        self._is_possible[self.hashes >> self._shift] = True

    def find(self, texts: Sequence[str]) -> list[Match | None]:
        """[texts]: the first run of the evaluation sets in each text; None if there is none."""
        matches: list[Match | None] = [None] * len(texts)
        for numbers, batch in pieces(texts):
            units = units_of(batch)
            hashes, firsts = runs_of(units, self.lengths)
            possible = self._is_possible[hashes >> self._shift]
            hashes, firsts = hashes[possible], firsts[possible]
            position = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            found = np.flatnonzero(self.hashes[position] == hashes)
            joined = "\0".join(batch) if len(found) else ""
            for index in found[np.argsort(firsts[found])].tolist():
                unit = int(firsts[index])
                number = numbers[int(units.text[unit])]
                if matches[number] is None:
                    begin = int(units.begins[unit])
                    excerpt = joined[begin : begin + _EXCERPT].partition("\0")[0]
                    matches[number] = Match(int(self.files[position[index]]), excerpt)
        return matches


def runs_of(units: Units, lengths: Lengths) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash of each run of `units`, and the number of its first unit."""
    characters = np.concatenate(([0], np.cumsum(units.is_character)))
    found = []
    for length, has_characters in ((lengths.words, False), (lengths.characters, True)):
        hashes, firsts = ngrams(units, length)
        is_one = (characters[firsts + length] > characters[firsts]) == has_characters
        found.append((hashes[is_one], firsts[is_one]))
    (words, first_words), (others, first_others) = found
    return np.concatenate((words, others)), np.concatenate((first_words, first_others))


def collect(texts: Sequence[str], lengths: Lengths) -> tuple[NDArray[np.uint64], int]:
    """The hashes of all runs in `texts`, and the number of texts that are too short to have a run."""
    hashes, with_runs = [np.empty(0, np.uint64)], set[int]()
    for numbers, batch in pieces(texts):
        units = units_of(batch)
        found, firsts = runs_of(units, lengths)
        hashes.append(np.unique(found))
        with_runs.update(np.array(numbers)[units.text[firsts]].tolist())
    return np.unique(np.concatenate(hashes)), len(texts) - len(with_runs)
