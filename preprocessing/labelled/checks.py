"""What is wrong with an example, whatever format it was read from."""

from reread.preprocessing.errors import CONTROL
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile

_SHOWN = 60
"""Characters of a wrong name that its line shows."""


def sound(source: LabelledFile, example: Example) -> Example | None:
    """The example, with misplaced answers marked, or None if it is of no use; `source` notes what is
    wrong."""
    for name, text in example.texts.items():
        if not text.strip():
            source.mistake(example.location, f"{name} is empty; delete the example or fill it in")
            return None
    if reason := _broken_character(example) or example.problem:
        source.mistake(example.location, reason)
        return None
    return example.checked(source)


def _broken_character(example: Example) -> str | None:
    """Why a character of a text or a name would break the files, tables and pages that it gets into."""
    for name, text in {**example.texts, **example.others}.items():
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
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
