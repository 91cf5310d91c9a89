"""What operations ask of a GPU, by kind: kernels launched, bytes read and written, FLOPs.

An operation launches the kernels that an eager CUDA build does for it, and reads each input and writes each output
once; products and attention have FLOPs, by torch's own formulas.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

KINDS = ("products", "attention", "copies", "elementwise", "norms", "sums", "our kernels", "others")
_OF_OPERATION = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "baddbmm_"), "products"),
    **dict.fromkeys(("_to_copy", "clone", "cat", "stack", "copy_", "_foreach_copy_", "repeat", "flip"), "copies"),
    **dict.fromkeys(("zero_", "zeros", "zeros_like", "new_zeros", "fill_", "constant_pad_nd"), "copies"),
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward"), "norms"),
    **dict.fromkeys(("sum", "mean", "amax", "max", "argmax", "all", "any"), "sums"),
}
"""Kinds by operation; of others those that compute each element from its own are `elementwise`."""
_LAUNCHES = {
    "native_layer_norm_backward": 2,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "embedding_dense_backward": 14,  # it sorts the ids
    "nll_loss_backward": 2,
    "sort": 6,
    "argsort": 6,
}
"""Kernels of an operation, where they are not one; from profiles and torch's sources."""
_LISTS = {1: 110, 2: 64, 3: 48, 4: 36}
"""Tensors that one launch of an operation on lists takes, by the number of lists."""


class Work(NamedTuple):
    launches: int = 0
    bytes: int = 0
    flops: int = 0

    def plus(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


def summed(works: Sequence[Work]) -> Work:
    return functools.reduce(Work.plus, works, Work())


@functools.cache
def kind_of(function: Any) -> str:
    """The kind of an operation, an overload of `torch.ops`."""
    library, _, name = function._schema.name.partition("::")
    if library == "reread":
        return "our kernels"
    if "scaled_dot_product" in name:
        return "attention"
    return _OF_OPERATION.get(name) or ("elementwise" if torch.Tag.pointwise in function.tags else "others")


def work_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, moved: int) -> Work:
    """The work of an operation that read and wrote `moved` bytes."""
    count = flop_registry.get(function.overloadpacket)
    if kind_of(function) == "products":  # whose formulas do not know of `out` and its type
        args, kwargs = tuple(one for one in args if isinstance(one, Tensor)), {}
    flops = count(*args, **kwargs, out_val=output) if count else 0
    return Work(_launches(function._schema.name.partition("::")[2], args), moved, flops)


def _launches(name: str, args: tuple[Any, ...]) -> int:
    if not name.startswith("_foreach"):
        return _LAUNCHES.get(name, 1)
    lists = [one for one in args if isinstance(one, list | tuple) and one and isinstance(one[0], Tensor)]
    if any(a.shape != b.shape for other in lists[1:] for a, b in zip(lists[0], other, strict=True)):
        return len(lists[0])  # a number for each tensor has no kernel for lists
    return -(-len(lists[0]) // _LISTS[min(len(lists), 4)])
