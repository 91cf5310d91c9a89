"""The grid of processes: tensor x data parallel, over torch.distributed and megatron-core's groups."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from reread.preprocessing.errors import ReportedElsewhereError, UserError


@dataclass(frozen=True)
class Mesh:
    """This process' position in the grid: rank = data_rank * tensor_size + tensor_rank, so that the ranks of a tensor
    group are neighbours.

    A group of one process is None: nothing is communicated, and 1 x 1 needs no torch.distributed at all. Groups are
    looked up, not stored: a stored group outlives `close_mesh`, and a thread of gloo that frees a tensor while Python
    exits aborts the process.
    """

    rank: int = 0
    world: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    data_rank: int = 0
    data_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        if self.tensor_size == 1:
            return None
        return megatron_groups().get_tensor_model_parallel_group()

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        if self.data_size == 1:
            return None
        return dist.group.WORLD if self.tensor_size == 1 else megatron_groups().get_data_parallel_group()

    def cuts(self, rows: int) -> tuple[int, ...]:
        """Bounds of the data-parallel ranks' shares of `rows` rows; sizes differ by one at most."""
        return tuple(rows * rank // self.data_size for rank in range(self.data_size + 1))

    def share(self, rows: int) -> range:
        """The rows that this data-parallel rank owns."""
        cuts = self.cuts(rows)
        return range(cuts[self.data_rank], cuts[self.data_rank + 1])

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host on the device; the host does not wait for it."""
        if self.device.type == "cuda":  # a copy from pageable memory would wait for all pending work of the device
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def gather(self, *values: int) -> list[tuple[int, ...]]:
        """The `values` of every process, at least one, in rank order; collective, so it is a barrier too."""
        if self.world == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        return [tuple(row) for row in torch.stack(everyone).tolist()]

    def send(self, tensor: torch.Tensor, ranks: range, source: int) -> None:
        """Overwrite `tensor` on `ranks`, each of which calls this, by that of `source`, bit for bit.

        `ranks` are all, the tensor group or the data group of this process, or this process alone.
        """
        if len(ranks) == 1 or not tensor.numel():
            return
        if len(ranks) == self.world:
            group = dist.group.WORLD
        else:
            group = self.tensor_group if ranks.step == 1 else self.data_group
        sent = tensor.to(self.device).contiguous()
        dist.broadcast(sent.view(-1).view(torch.uint8), source, group)
        if sent.data_ptr() != tensor.data_ptr():
            tensor.copy_(sent)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise `UserError` on all processes when the body, which must not communicate, raises it on one.

        Thus no process waits for one that has left, and one line is printed: that of the first process that failed.
        """
        error: UserError | None = None
        try:
            yield
        except UserError as raised:
            error = raised
        statuses = self.gather(error.status if error else 0)
        failed = [(rank, status) for rank, (status,) in enumerate(statuses) if status]
        if failed:
            first, status = failed[0]
            raise error if error and self.rank == first else ReportedElsewhereError(f"process {first} failed", status)

    def reported_once(self, error: UserError) -> UserError:
        """`error`, which every process raises: the first one prints it."""
        return error if self.rank == 0 else ReportedElsewhereError(str(error), error.status)


@cache
def megatron_groups() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it lacks TransformerEngine and apex, which are not needed
        from megatron.core import parallel_state
    return parallel_state
