"""Bounds the memory of parsed JSON, whose values may take far more than its text: `[{},{},` takes 30 times as much."""

import json
import re
from typing import Any

_COSTS = {"{": 192, "[": 64, ",": 88}
"""Bytes of memory per character outside of strings: an object, a list, and a further value, perhaps with a key."""
_MOST_A_CHARACTER = 32
"""An upper bound of the bytes of memory per character."""
_LEAST = 1 << 20
"""Bytes that are always permitted, however low the limit is."""
_TOKEN = re.compile(r'[{}\[\],"]')
_IN_STRING = re.compile(r'(?:[^"\\]*\\.){0,1000}[^"\\]*', re.DOTALL)  # bounded, since `re` remembers each repetition


class TooManyValuesError(ValueError):
    """The values of a JSON text would take more memory than is permitted."""


def loads(text: str, most: int) -> Any:
    """The value of a JSON text; raises the errors of `check_values`, before anything is parsed, and of `json.loads`."""
    if not is_cheap(text, most):
        check_values(text, 0, most)
    return json.loads(text)


def is_cheap(text: str, most: int) -> bool:
    """Whether a quick estimate shows that the values in `text`, besides strings, take at most `most` bytes."""
    most = max(most, _LEAST)
    return _MOST_A_CHARACTER * len(text) <= most or values_bytes(text) <= most


def values_bytes(text: str) -> int:
    """An upper bound of the bytes of memory that the values of a JSON text take, besides its strings."""
    return sum(cost * text.count(mark) for mark, cost in _COSTS.items())


def check_values(text: str, begin: int, most: int) -> None:
    """Raise `TooManyValuesError` if the value at `begin` takes more than `most` bytes besides its strings."""
    most = max(most, _LEAST)
    room, depth, at = most, 0, begin
    while found := _TOKEN.search(text, at):
        mark, at = found[0], found.end()
        if mark == '"':
            at = _end_of_string(text, at)
            continue
        room -= _COSTS.get(mark, 0)
        if room < 0:
            raise TooManyValuesError(f"more values than {most:,} bytes of memory can hold")
        depth += (mark in "{[") - (mark in "}]")
        if depth <= 0 and mark != ",":
            return


def _end_of_string(text: str, at: int) -> int:
    while at < len(text):
        at = _IN_STRING.match(text, at).end()  # type: ignore[union-attr] # it matches anywhere
        if text[at : at + 1] != "\\":
            return at + 1
        at += 2
    return at
