"""The one exception a user sees as a single line."""

import difflib
import re
from collections.abc import Collection

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that end a line or steer a terminal."""


class UserError(Exception):
    """A mistake the user can mend: the message names the file, the field and the way out.

    `reread` prints it without a traceback and exits with status 2. What it quotes is shown on one line.
    """

    def __str__(self) -> str:
        return CONTROL.sub(lambda found: repr(found[0])[1:-1], super().__str__())


class ToldElsewhereError(UserError):
    """The same end for a process whose neighbour prints the line."""


def nearest(name: str, known: Collection[str], label: str = "known", cutoff: float = 0.5) -> str:
    """The way out of a wrong name: the right one nearest to it, or all of `known` after `label`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean `{near[0]}`?" if near else f"{label}: {', '.join(known)}"
