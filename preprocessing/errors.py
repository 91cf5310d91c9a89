"""The one exception a user sees as a single line."""

import difflib
from collections.abc import Collection


class UserError(Exception):
    """A mistake the user can mend: the message names the file, the field and the way out.

    `reread` prints it without a traceback and exits with status 2.
    """


class ToldElsewhereError(UserError):
    """The same end for a process whose neighbour prints the line."""


def printable(text: str) -> str:
    """For a message: names from elsewhere may hold line ends and bytes that are no text."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def nearest(name: str, known: Collection[str], label: str = "known", cutoff: float = 0.5) -> str:
    """The way out of a wrong name: the right one nearest to it, or all of `known` after `label`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean `{near[0]}`?" if near else f"{label}: {', '.join(known)}"
