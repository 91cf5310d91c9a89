"""N-grams of text as 64-bit hashes, by which near-duplicates and text of evaluation sets are found.

A unit is a Han or kana character, or a word: a run of other letters, marks and digits, in lower case. All other
characters only separate units, so white space and punctuation make no difference, and one rule fits Chinese, English
and a mixture of both.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE, OVERLAP = 1 << 16, 1 << 10
"""The characters in one piece of a long text, and the characters that two successive pieces have in common."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_BASE = 0xD1342543DE82EF95
_INVERSE = pow(_BASE, -1, 1 << 64)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_KIND, _WORD, _CHARACTER = 24, 1, 2
_CHARACTERS = (
    (0x3007, 0x3007),
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_KATAKANA_SEPARATORS = 0x30A0, 0x30FB


class Units(NamedTuple):
    """The units [u] of some texts, one text after the other."""

    hashes: NDArray[np.uint64]
    text: NDArray[np.int64]
    """[u]: the number of the text that each unit belongs to, in increasing order."""
    is_character: NDArray[np.bool_]
    """[u]: whether the unit is a Han or kana character and not a word."""
    begins: NDArray[np.int64]
    """[u]: the character at which each unit begins, in the texts joined by one character."""


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection where each input bit flips half of all bits."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[1]
    return values ^ (values >> np.uint64(31))


def stream(count: int) -> NDArray[np.uint64]:
    """[count]: the first numbers of SplitMix64 with seed 0."""
    return mix(np.arange(1, count + 1, dtype=np.uint64) * _GAMMA)


def units_of(texts: Sequence[str]) -> Units:
    """The units of cleaned texts."""
    joined = "\0".join(texts)
    codes = _characters()[np.frombuffer(joined.encode("utf-32-le"), np.uint32)]
    kinds = codes >> _KIND
    is_word = kinds == _WORD
    begins_unit = kinds == _CHARACTER
    begins_unit[1:] |= is_word[1:] & ~is_word[:-1]
    begins_unit[:1] |= is_word[:1]
    begins = np.flatnonzero(begins_unit)
    ends = np.cumsum([len(text) + 1 for text in texts])
    text = np.repeat(np.arange(len(texts)), np.diff(np.searchsorted(begins, ends), prepend=0))
    if not len(begins):
        return Units(np.empty(0, np.uint64), text, np.empty(0, bool), begins)
    # The hash of a unit is a polynomial of its characters; separators are zeros.
    sums = np.add.reduceat(codes * _powers(_BASE, len(codes)), begins)
    return Units(mix(sums * _powers(_INVERSE, len(codes))[begins]), text, kinds[begins] == _CHARACTER, begins)


def ngrams(units: Units, length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash of each run of `length` units of one text, and the number of its first unit."""
    count = len(units.hashes)
    if count < length:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    powers, inverses = _powers(_BASE, count), _powers(_INVERSE, count)
    # The polynomial of a run is the difference of two sums, so the cost does not depend on `length`.
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(units.hashes * powers)))
    last = count - length + 1
    hashes = mix((sums[length:] - sums[:-length]) * inverses[:last])
    firsts = np.flatnonzero(units.text[:last] == units.text[length - 1 :])
    return hashes[firsts], firsts


def pieces(texts: Iterable[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Batches of texts or pieces of texts, with the number of the text that each is from, in increasing order.

    To bound memory, long texts are cut into pieces. The pieces overlap, so that an n-gram which one piece cuts off is
    whole in the next.
    """
    numbers, batch, characters = list[int](), list[str](), 0
    for number, text in enumerate(texts):
        for begin in range(0, max(1, len(text) - OVERLAP), PIECE - OVERLAP):
            piece = text[begin : begin + PIECE]
            numbers.append(number)
            batch.append(piece)
            characters += len(piece)
            if characters >= PIECE:
                yield numbers, batch
                numbers, batch, characters = [], [], 0
    if batch:
        yield numbers, batch


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """[count]: the powers of `base` modulo 2^64, beginning with 1."""
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


@cache
def _characters() -> NDArray[np.uint32]:
    """[code points]: each character in lower case, with its kind in the bits from `_KIND` on; separators are 0."""
    found = np.zeros(0x110000, np.uint32)
    for code in range(0x20000):
        character = chr(code)
        if character.isalnum() or unicodedata.category(character)[0] == "M":
            lower = character.lower()
            found[code] = ord(lower if len(lower) == 1 else character) | _WORD << _KIND
    for first, last in _CHARACTERS:
        found[first : last + 1] = np.arange(first, last + 1) | _CHARACTER << _KIND
    found[list(_KATAKANA_SEPARATORS)] = 0
    return found
