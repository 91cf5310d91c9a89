"""The memory of a recurrent model for each lane."""

from typing import Protocol

import torch
from torch import Tensor

from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh


class RecurrentModel(Protocol):
    """A model that reads a text in segments."""

    mems_dim: int
    """The dimension of the rows in a tensor of memory."""

    def empty_mems(self, rows: int, *segments: int) -> tuple[Tensor, ...]:
        """Empty memory for `rows` rows, of texts of at most so many segments if the model asks for their number."""


class LaneMemory:
    """Memory that a model carries from one segment of a lane to the next; all zeros is an empty memory."""

    def __init__(self, model: RecurrentModel, lanes: int, *segments: int) -> None:
        self.dim: int = model.mems_dim
        self.mems: tuple[Tensor, ...] = model.empty_mems(lanes, *segments)

    def empty(self, lanes: Tensor) -> None:
        """Empty the memory of `lanes` [n], where a document begins."""
        for tensor in self.mems:
            tensor.index_fill_(self.dim, lanes, 0)

    def of(self, lanes: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.index_select(self.dim, lanes) for tensor in self.mems)

    @torch.no_grad()
    def keep(self, lanes: Tensor, mems: tuple[Tensor, ...]) -> None:
        """Store `mems` for `lanes` [n]. A lane with non-finite memory is emptied, since one overflow in float16 would
        spoil the lane until its document ends."""
        finite = [tensor.isfinite().movedim(self.dim, 0).flatten(1).all(1) for tensor in mems]
        for held, tensor in zip(self.mems, mems, strict=True):
            good = torch.stack(finite).all(0).view([-1 if dim == self.dim else 1 for dim in range(tensor.dim())])
            held.index_copy_(self.dim, lanes, torch.where(good, tensor, 0).to(held.dtype))

    def state(self, total: int, mesh: Mesh) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """`Objective.state` for `total` lanes over all data-parallel ranks."""
        tensors = {f"memory.{number:03d}": tensor for number, tensor in enumerate(self.mems)}
        return tensors, {name: lane_slice(tensor, self.dim, total, mesh) for name, tensor in tensors.items()}


def lane_slice(tensor: Tensor, dim: int, total: int, mesh: Mesh) -> Slice:
    """The part that this rank's lanes are of the tensor of all `total` lanes."""
    shape = list(tensor.shape)
    shape[dim] = total
    return Slice(tuple(shape), dim, mesh.cuts(total), mesh.data_rank, over="data")
