"""How tasks report their progress to whichever executor runs them in this process."""

from collections.abc import Callable

_advance: Callable[[int], None] = lambda size: None  # noqa: E731


def advance(size: int) -> None:
    """Report that `size` more bytes of text were processed; tasks call it."""
    _advance(size)


def report_progress_to(function: Callable[[int], None]) -> None:
    """Have `advance` call `function`; an executor sets it."""
    global _advance  # noqa: PLW0603
    _advance = function
