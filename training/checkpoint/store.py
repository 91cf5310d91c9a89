"""Checkpoints (under construction)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Where a process' tensor lies in the logical (whole, unpadded) tensor of that name."""

    shape: tuple[int, ...]
    """Of the logical tensor."""
    dim: int | None
    """Dimension that is split over tensor ranks; None for a tensor that each holds whole."""
    start: int
    """Of this process' part along `dim`; rows past the logical end are padding."""
