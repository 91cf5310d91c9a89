"""Tells texts whose lines are paragraphs from texts whose paragraphs were cut into lines of even length."""

from collections.abc import Iterable
from itertools import pairwise

_SENTENCE_ENDS = tuple('.!?:;\u2026\u3002\uff01\uff1f\uff1a\uff1b"\u201d\u2019\u300d\u300f)\uff09')
_FEWEST_LINES = 20
_SHORTEST = 20
"""The least width in characters of wrapped lines; verse is shorter."""
_EVEN = 0.75
"""The share of the usual width that a line reaches if the next word did not fit into it."""


def is_wrapped(texts: Iterable[str]) -> bool:
    """Whether the lines of `texts` are wrapped: of even length, and mostly ending within a sentence.

    Only lines that are directly followed by another line count; others end a paragraph.
    """
    inner = [
        line
        for text in texts
        for line, following in pairwise(line.strip() for line in text.splitlines())
        if line and following
    ]
    if len(inner) < _FEWEST_LINES:
        return False
    width = sorted(map(len, inner))[len(inner) * 9 // 10]
    even = sum(_EVEN * width <= len(line) <= width / _EVEN for line in inner)
    ends = sum(line.endswith(_SENTENCE_ENDS) for line in inner)
    return width >= _SHORTEST and even >= 0.8 * len(inner) and ends <= 0.5 * len(inner)
