"""Checks that the examples of every format have to pass."""

from collections.abc import Mapping
from itertools import chain

from reread.preprocessing.errors import CONTROL
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile

FEW = 0.01
"""The share of a data set that may be left out without the user's word (`task.wrong=skip`)."""
_SHOWN = 60
"""Characters of a wrong name that its line shows."""
_TOGETHER = 1 << 20
"""Characters that are encoded together, so that a long text is not copied whole."""


def sound(source: LabelledFile, example: Example) -> Example | None:
    """The example, with misplaced answers marked; None if it cannot be used. Mistakes are reported to `source`."""
    texts = example.texts
    for name, text in texts.items():
        if not text or text.isspace():
            source.mistake(example.location, f"{name} is empty; delete the example or fill it in")
            return None
    if reason := _broken_character(example, texts) or example.problem:
        source.mistake(example.location, reason)
        return None
    return example.checked(source)


def _broken_character(example: Example, texts: Mapping[str, str]) -> str | None:
    """The reason why a character of a text or a name would break files or pages that show it; None if none would."""
    for name, text in chain(texts.items(), example.others.items()):
        if "\0" in text:
            return f"{name} holds a NUL character; delete it"
        if not text.isascii() and _is_broken(text):
            return (
                f"{name} holds half of a surrogate pair (\\ud83d without its second half); write the character itself"
            )
    for name, text in example.names:
        if found := CONTROL.search(text):
            return f"{name} {text[:_SHOWN]!r} holds the control character {found[0]!r}; a name is one line without any"
        if not text.isascii() and _is_broken(text):
            return f"{name} {text[:_SHOWN]!r} holds half of a surrogate pair; write the character itself"
    return None


def _is_broken(text: str) -> bool:
    try:
        for begin in range(0, len(text), _TOGETHER):
            text[begin : begin + _TOGETHER].encode()
    except UnicodeEncodeError:
        return True
    return False
