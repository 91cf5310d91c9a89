"""The memory of a recurrent model for each lane."""

from itertools import groupby, islice
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
        self.stacks: list[Tensor] = []
        """All layers' tensors of one shape as one, with a dimension before theirs: a launch for all of them."""
        for _, layers in groupby(model.empty_mems(1, *segments), key=lambda tensor: (tensor.shape, tensor.dtype)):
            alike = list(layers)
            shape = list(alike[0].shape)
            shape[self.dim] = lanes
            self.stacks.append(alike[0].new_zeros(len(alike), *shape))

    @property
    def mems(self) -> tuple[Tensor, ...]:
        """The tensors as the model has them, which are parts of the stacks."""
        return tuple(tensor for stack in self.stacks for tensor in stack)

    def empty(self, lanes: Tensor) -> None:
        """Empty the memory of `lanes` [n], where a document begins."""
        for stack in self.stacks:
            stack.index_fill_(self.dim + 1, lanes, 0)

    def of(self, lanes: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor for stack in self.stacks for tensor in stack.index_select(self.dim + 1, lanes))

    @torch.no_grad()
    def keep(self, lanes: Tensor, mems: tuple[Tensor, ...]) -> None:
        """Store `mems` for `lanes` [n]. A lane whose memory has no finite sum is emptied, since one overflow in float16
        would spoil the lane until its document ends."""
        layers = iter(mems)
        new = [torch.stack([*islice(layers, len(stack))]) for stack in self.stacks]
        bad = torch.zeros_like(lanes, dtype=torch.bool)
        for stack in new:
            others = [dim for dim in range(stack.dim()) if dim != self.dim + 1]
            bad |= ~stack.sum(others, dtype=torch.promote_types(stack.dtype, torch.float32)).isfinite()
        for held, stack in zip(self.stacks, new, strict=True):
            shape = [-1 if dim == self.dim + 1 else 1 for dim in range(stack.dim())]
            held.index_copy_(self.dim + 1, lanes, stack.masked_fill_(bad.view(shape), 0).to(held.dtype))

    def state(self, total: int, mesh: Mesh) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """`Objective.state` for `total` lanes over all data-parallel ranks."""
        tensors = {f"memory.{number:03d}": tensor for number, tensor in enumerate(self.mems)}
        return tensors, {name: lane_slice(tensor, self.dim, total, mesh) for name, tensor in tensors.items()}


def lane_slice(tensor: Tensor, dim: int, total: int, mesh: Mesh) -> Slice:
    """The part that this rank's lanes are of the tensor of all `total` lanes."""
    shape = list(tensor.shape)
    shape[dim] = total
    return Slice(tuple(shape), dim, mesh.cuts(total), mesh.data_rank, over="data")
