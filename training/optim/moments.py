"""What optimisers share: Adam's moments on lists of tensors, and norms of tensors that are divided over processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Tensors = tuple[Tensor, ...]

CHUNK = 2**24
"""Elements of whole tensors whose updates are computed at a time. Beside state and gradients a step needs two copies of
these, instead of three copies of all weights."""


def chunks(weights: list[Tensor]) -> Iterator[list[Tensor]]:
    """`weights` in lists of at most `CHUNK` elements, or of one tensor."""
    chunk: list[Tensor] = []
    size = 0
    for weight in weights:
        if chunk and size + weight.numel() > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(weight)
        size += weight.numel()
    if chunk:
        yield chunk


def gradients_of(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def with_gradients(group: dict[str, Any]) -> list[Tensor]:
    """The parameters of a group that are updated."""
    return [weight for weight in group["params"] if weight.grad is not None]


def add_to_moments(
    state: Mapping[Tensor, dict[str, Tensor]], group: dict[str, Any], weights: list[Tensor]
) -> tuple[list[Tensor], Tensors, float]:
    """Add the gradients of some of a group's weights to the moments in `state`, which begin at zero.

    Returns Adam's first moments, the second ones without their bias, and the bias of the first, 1 - beta1^n.
    """
    beta1, beta2 = group["betas"]
    gradients = gradients_of(weights)
    for weight in weights:
        if not state[weight]:
            state[weight].update({"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)})
    first = [state[weight]["exp_avg"] for weight in weights]
    second = [state[weight]["exp_avg_sq"] for weight in weights]
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    return first, torch._foreach_div(second, 1 - beta2 ** group["step"]), 1 - beta1 ** group["step"]


def whole_norms(
    weights: Sequence[Tensor],
    norms: list[Tensor],
    tensor_group: dist.ProcessGroup | None,
    data_group: dist.ProcessGroup | None,
) -> list[Tensor]:
    """The norms of whole logical tensors, of which those of `norms` are this process' parts; each belongs to the weight
    at its place, and again from the first on. Parts of all are held over `data_group`, those of weights that are
    marked `tensor_model_parallel` over `tensor_group`; None: by nobody else (collective)."""
    if data_group is not None:
        norms = _over(data_group, norms)
    split = [n for n in range(len(norms)) if getattr(weights[n % len(weights)], "tensor_model_parallel", False)]
    if tensor_group is not None and split:
        for n, norm in zip(split, _over(tensor_group, [norms[n] for n in split]), strict=True):
            norms[n] = norm
    return norms


def _over(group: dist.ProcessGroup, norms: list[Tensor]) -> list[Tensor]:
    """The norms, in float64, of tensors of which each process of `group` holds a part with one of `norms`."""
    squares = torch.stack(norms).double().square()
    dist.all_reduce(squares, group=group)
    return list(squares.sqrt().unbind())
