"""Gradients of a global batch: float32 sums over micro-batches, reduced over data-parallel ranks during the backward
pass."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reread.training.parallel.mesh import Mesh
from reread.training.parallel.reduce import Reduce, in_torch

BLOCK = 1024
"""In elements: each gradient begins at a multiple, so that a program of a kernel handles the parts of one tensor."""

MOST_NEW = 2**23
"""Elements of gradients that wait to be added together: 16 MB, about a layer of a base model."""


def flat_offsets(parameters: Iterable[nn.Parameter]) -> tuple[dict[nn.Parameter, int], int]:
    """The first element of each parameter that learns in a flat buffer, the last of them first, and its size."""
    offsets, size = {}, 0
    for parameter in reversed([one for one in dict.fromkeys(parameters) if one.requires_grad]):
        offsets[parameter] = size
        size += -(-parameter.numel() // BLOCK) * BLOCK
    return offsets, size


def flat_weights(offsets: Mapping[nn.Parameter, int], size: int) -> Tensor:
    """Move the parameters, all of one type, into one flat buffer, of which they become views; returns the buffer."""
    buffer = next(iter(offsets)).detach().new_zeros(size)
    for parameter, begin in offsets.items():
        move_to(parameter, buffer, begin)
    return buffer


def move_to(parameter: nn.Parameter, buffer: Tensor, begin: int) -> None:
    """Make `parameter` a view of `buffer` from element `begin` on, with its values."""
    view = buffer[begin : begin + parameter.numel()].view(parameter.shape)
    parameter.data = view.copy_(parameter.detach())


class GradientBuckets:
    """One flat float32 buffer that holds the gradient of each parameter, cut into buckets of about `bucket_bytes`.

    A step is `zero()`, micro-batches (`reduce_as_ready()` before the backward pass of the last), `finish()`. In that
    last pass `reduce` is begun for a bucket as soon as its gradients are complete, always in the same order, so it runs
    beside the rest of the pass. Gradients are summed, not averaged: the loss is divided by global counts already.

    A bucket with a parameter that the pass does not use waits for `finish()`, and so do all buckets after it: give
    seldom used parameters first. A gradient must arrive once in a pass (activation checkpointing with
    use_reentrant=False).
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], mesh: Mesh, bucket_bytes: int, reduce: Reduce | None = None
    ) -> None:
        """The last of `parameters` are reduced first, as their gradients come first."""
        self.mesh, self._reduce = mesh, reduce or in_torch(mesh)
        self.offsets, size = flat_offsets(parameters)
        """The first element of each gradient in `flat`."""
        self.flat = torch.zeros(size, dtype=torch.float32, device=mesh.device)
        self._views: dict[nn.Parameter, Tensor] = {}
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._bounds = [0]
        for parameter, offset in self.offsets.items():
            if (offset - self._bounds[-1]) * 4 >= bucket_bytes:
                self._bounds.append(offset)
            self._views[parameter] = self.flat[offset : offset + parameter.numel()].view(parameter.shape)
            self._bucket_of[parameter] = len(self._bounds) - 1
            parameter.register_post_accumulate_grad_hook(self._take)
        self._bounds.append(size)
        split = [getattr(parameter, "tensor_model_parallel", False) for parameter in self.offsets]
        self._split = torch.tensor(split, device=mesh.device)
        self.add: Callable[[list[Tensor], list[Tensor]], None] | None = None
        """(views of `flat`, gradients in half precision) -> adds them in one launch; None: one by one."""
        self._new: dict[nn.Parameter, Tensor] = {}
        """Gradients that `add` has not added yet."""
        self._waits: list[Callable[[], object]] = []
        self._reducing = False
        self.zero()

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes

    def grad_of(self, parameter: nn.Parameter) -> Tensor:
        """Float32 view in the parameter's shape."""
        return self._views[parameter]

    def zero(self) -> None:
        self.flat.zero_()
        self._new.clear()
        self._launched, self._reducing = 0, False
        for parameter, view in self._views.items():
            # autograd itself adds to the buffer if the types are equal
            parameter.grad = view if parameter.dtype == torch.float32 else None

    def take_products(self, add: Callable[[Tensor, Tensor, Tensor], None]) -> None:
        """Let linear layers `add` the gradients of their weights: (sum, gradient [n, O], x [n, I]) -> adds
        gradient^T x to the sum [O, I]. They find it at the weight as `add_product`, for `kernels.products`."""
        for parameter, total in self._views.items():
            if not parameter._backward_hooks:  # such as the sum over tensor-parallel processes, which autograd calls
                parameter.add_product = partial(add, total)  # type: ignore[attr-defined]

    def reduce_as_ready(self) -> None:
        """Start reducing buckets: the next backward pass is the last of this step."""
        self._reducing = self.mesh.data_group is not None
        self._missing = [0] * (len(self._bounds) - 1)
        for bucket in self._bucket_of.values():
            self._missing[bucket] += 1

    def finish(self) -> None:
        """Wait for the sums over all data-parallel ranks; parameters without a gradient count as zero."""
        self._add_new()
        if self.mesh.data_group is None:
            return
        while self._launched < len(self._bounds) - 1:
            self._launch()
        for wait in self._waits:
            wait()
        self._waits.clear()

    def scale(self, factor: float) -> None:
        self.flat.mul_(factor)

    def global_norm(self) -> float:
        """Norm of the whole gradient; waits for the device."""
        return math.sqrt(self.squared_norm().item())

    def squared_norm(self) -> Tensor:
        """Square of the norm of the whole gradient, float64 [], the same on all ranks; not finite if any rank's part is
        not.

        Whole parameters are counted once over tensor ranks, split ones with all their parts.
        """
        squares = torch.stack(torch._foreach_norm(list(self._views.values()))).double().square()
        if self.mesh.world == 1:
            return squares.sum()
        counted = squares if self.mesh.tensor_rank == 0 else squares * self._split
        if self.mesh.data_rank > 0:
            counted = torch.zeros_like(squares)  # a copy of data rank 0's
        total = torch.where(squares.isfinite().all(), counted.sum(), torch.inf)
        dist.all_reduce(total)
        return total

    def _take(self, parameter: nn.Parameter) -> None:
        view = self._views[parameter]
        if parameter.grad is not view and parameter.grad is not None:  # None: a product added it
            gradient, parameter.grad = parameter.grad, None
            if self.add is None:
                view.add_(gradient)
            else:
                if parameter in self._new:  # the micro-batch before left it
                    self._add_new()
                self._new[parameter] = gradient
                if sum(one.numel() for one in self._new.values()) > MOST_NEW:
                    self._add_new()
        if self._reducing:
            bucket = self._bucket_of[parameter]
            if bucket < self._launched:
                raise RuntimeError("a gradient came after its bucket was sent: twice in one pass")
            self._missing[bucket] -= 1
            while self._launched < len(self._missing) and self._missing[self._launched] <= 0:
                self._launch()

    def _add_new(self) -> None:
        if self._new and self.add:
            self.add([self._views[parameter] for parameter in self._new], list(self._new.values()))
            self._new.clear()

    def _launch(self) -> None:
        self._add_new()
        begin, end = self._bounds[self._launched : self._launched + 2]
        self._waits.append(self._reduce(self.flat[begin:end], self._launched))
        self._launched += 1
