"""A console for text of unknown origin, whose control characters cannot reach the terminal."""

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from reread.preprocessing.errors import CONTROL, escaped


class Terminal(Console):
    """A console that shows control characters other than line ends as escape sequences, as in Python's repr."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else CONTROL.sub(_shown, text), style, control)


def print_wide(table: Table) -> None:
    """Print a table without breaking its cells; a terminal breaks longer lines."""
    unlimited = Console(width=10_000)
    needed = unlimited.measure(table).maximum
    Terminal(width=max(Console().width, needed)).print(table)


def _shown(found: re.Match[str]) -> str:
    return found[0] if found[0] == "\n" else escaped(found[0])
