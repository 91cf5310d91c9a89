"""The division of the optimiser's state over data-parallel processes: ZeRO's stage 1 (Rajbhandari et al. 2020,
arXiv:1910.02054). Each updates its share of the weights, and all receive the others'."""

import logging
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor, nn

from reread.preprocessing.errors import UserError
from reread.training.parallel.gradients import BLOCK, flat_offsets
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")


class Shares:
    """Ranges of the flat buffer in which the parameters that learn lie, one for each data-parallel process.

    A share begins at a block, as kernels need, and at a row of a parameter's first dimension, so that what a process
    holds of a tensor is a slice of it, as checkpoints need. Shares differ by less than a block of whole rows: the
    least common multiple of both, 3,072 elements for rows of 768; where tensors are not cut, by less than the largest.
    """

    def __init__(
        self,
        offsets: Mapping[nn.Parameter, int],
        size: int,
        ranks: int,
        mesh: Mesh,
        whole: AbstractSet[nn.Parameter] = frozenset(),
    ) -> None:
        """`offsets`: the first element of each parameter in the buffer of `size` elements, in its order; `whole`:
        parameters that are not cut.

        Raises `UserError` if there are too few weights for so many processes, or one that cannot be divided.
        """
        if not all(parameter.dim() for parameter in offsets):
            raise UserError(
                "train.parallel.shard_state: a parameter of this model has no dimension to be divided by; set it to "
                "false, or give the parameter the shape [1]"
            )
        self.offsets, self.mesh = offsets, mesh
        self.cuts = [_nearest(offsets, size, size * rank // ranks, whole) for rank in range(ranks)] + [size]
        """Bounds of the shares, in elements."""
        if any(begin == end for begin, end in pairwise(self.cuts)):
            raise UserError(
                f"train.parallel.shard_state: {len(offsets)} tensors that learn are too small to divide over {ranks} "
                "data-parallel processes; set it to false"
            )

    @property
    def here(self) -> slice:
        """The range of this process."""
        return slice(*self.cuts[self.mesh.data_rank : self.mesh.data_rank + 2])

    def rows(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """Bounds of the processes' rows of a parameter."""
        offset, row = self.offsets[parameter], _row(parameter)
        return tuple(min(max(cut - offset, 0) // row, len(parameter)) for cut in self.cuts)

    def rows_here(self, parameter: nn.Parameter) -> slice:
        return slice(*self.rows(parameter)[self.mesh.data_rank : self.mesh.data_rank + 2])

    def slice_of(self, parameter: nn.Parameter, part: Slice, first_row: int = 0) -> Slice:
        """The part that this process holds of a tensor whose tensor-parallel part is `part`, without the rows of the
        parameter before `first_row`."""
        rows = tuple(max(row - first_row, 0) for row in self.rows(parameter))
        number = self.mesh.data_rank * part.parts + (0 if part.dim is None else part.part)
        return replace(part, rows=rows, part=number)

    def gather(self, flat: Tensor) -> None:
        """Give all processes each other's share of `flat` (collective)."""
        group = self.mesh.data_group
        if group is None:
            return
        sources = range(self.mesh.tensor_rank, self.mesh.world, self.mesh.tensor_size)
        works = [
            dist.broadcast(flat[begin:end], source, group=group, async_op=True)
            for source, (begin, end) in zip(sources, pairwise(self.cuts), strict=True)
        ]
        for work in works:
            work.wait()


def shares_of(
    parameters: Iterable[nn.Parameter], mesh: Mesh, ranks: int, whole: AbstractSet[nn.Parameter] = frozenset()
) -> Shares | None:
    """The shares of `ranks` data-parallel processes, or None if there is only one; logs which. Raises as `Shares`."""
    if ranks == 1:
        log.info("optimizer state: nothing to divide with one data-parallel process")
        return None
    offsets, size = flat_offsets(parameters)
    shares = Shares(offsets, size, ranks, mesh, whole)
    log.info(
        "optimizer state: divided over %d data-parallel processes, %s of %s elements each; torch.distributed gathers "
        "the weights after each step",
        *(ranks, f"{-(-size // ranks):,}", f"{size:,}"),
    )
    return shares


def _row(parameter: nn.Parameter) -> int:
    """Elements of a row of the first dimension."""
    return math.prod(parameter.shape[1:])


def _nearest(offsets: Mapping[nn.Parameter, int], size: int, element: int, whole: AbstractSet[nn.Parameter]) -> int:
    """The place nearest to `element` where a share may begin."""
    begins = [*offsets.values(), size]
    number = bisect_right(begins, element) - 1
    begin, end = begins[number : number + 2]
    parameter = list(offsets)[number]
    step = end - begin if parameter in whole else math.lcm(BLOCK, _row(parameter))
    return min(begin + round((element - begin) / step) * step, end)
