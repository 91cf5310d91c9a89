"""The progress of the tasks in this process."""

from collections.abc import Callable

_advance: Callable[[int], None] = lambda size: None  # noqa: E731


def advance(size: int) -> None:
    """To be called with the bytes of text that were processed."""
    _advance(size)


def report_progress_to(function: Callable[[int], None]) -> None:
    """Let `advance` call `function`."""
    global _advance  # noqa: PLW0603
    _advance = function
