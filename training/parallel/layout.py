"""The bounds of one process' part in a whole tensor."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """The part of a logical (whole, unpadded) tensor that a process holds."""

    shape: tuple[int, ...]
    """Shape of the logical tensor."""
    dim: int | None = None
    """Dimension that is split; None for a tensor that each process holds whole."""
    cuts: tuple[int, ...] = ()
    """Bounds of the parts along `dim`. Rows past the logical end of the dimension are padding."""
    part: int = 0
    """Number of the part that this process holds."""
    over: Literal["tensor", "data"] = "tensor"
    """The ranks that the parts are spread over; the others hold copies."""
    rows: tuple[int, ...] = ()
    """Bounds by which the data-parallel ranks divide the first dimension of each part, those of the first rank come
    first among the parts; empty if they do not."""

    @property
    def parts(self) -> int:
        """Number of the parts along `dim`."""
        return max(len(self.cuts) - 1, 1)

    def region(self, part: int | None = None) -> tuple[slice, ...]:
        """The index of the logical tensor that gives a part without padding; by default this process' own."""
        whole = [slice(0, size) for size in self.shape]
        rank, number = divmod(self.part if part is None else part, self.parts)
        if self.dim is not None:
            size = self.shape[self.dim]
            whole[self.dim] = slice(min(self.cuts[number], size), min(self.cuts[number + 1], size))
        if self.rows:
            begin, end = whole[0].start, whole[0].stop
            whole[0] = slice(*(min(begin + row, end) for row in self.rows[rank : rank + 2]))
        return tuple(whole)

    def inside(self, tensor: Tensor) -> Tensor:
        """A view of this process' `tensor` without padding."""
        return tensor[tuple(slice(0, part.stop - part.start) for part in self.region())]
