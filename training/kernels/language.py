"""Triton's names, or stand-ins where it is not installed, so that kernels can be imported and counted anywhere; and the
operators that launch kernels."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:
    triton = tl = None
    constexpr = None

__all__ = ["Operator", "cdiv", "constexpr", "jit", "missing", "next_power_of_2", "real", "tl", "triton"]


def missing() -> str | None:
    """Why no kernel can run in this process, or None."""
    return None if triton else "Triton is not installed"


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`, by which `function` is compiled when it is first launched."""
    return triton.jit(function) if triton else function


def _is_counted(first: Tensor | list[Tensor]) -> bool:
    """Whether a tensor has a shape alone: on `meta`, or as torch.compile traces it."""
    one = first[0] if isinstance(first, list) else first
    return one.is_meta or type(one) not in (Tensor, nn.Parameter)


def cdiv(count: int, size: int) -> int:
    """Pieces of `size` for `count`. Triton's own, which kernels can call, too, takes as long as a launch."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of 2 that is not less, for `count` of 1 or more."""
    return 1 << (count - 1).bit_length()


def real(x: Tensor) -> Any:
    """Triton's type to compute with numbers of `x` in: float32, or float64 if x is."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


class Operator:
    """A function of tensors that launches kernels: torch's operator `reread::name` where tensors have shapes alone, as
    a plan counts them, and called as it is elsewhere. torch's operators in Python keep the host busy for .1 ms a call,
    longer than many kernels run; a whole step of a base model then waits for the host."""

    def __init__(self, function: Callable[..., Any], mutates: tuple[str, ...] = ()) -> None:
        """`mutates` names the arguments that `function` writes to."""
        self.function = self.called = function
        self.counted = torch.library.custom_op(f"reread::{function.__name__}", function, mutates_args=mutates)
        self._written = [number for number, name in enumerate(signature(function).parameters) if name in mutates]

    def __call__(self, *given: Any) -> Any:
        if _is_counted(given[0]):
            return self.counted(*given)
        output = self.called(*given)
        for number in self._written:  # so that autograd raises an error where it needs what was there before
            written = given[number] if isinstance(given[number], list) else [given[number]]
            for one in written:
                if one is not None:
                    torch.autograd.graph.increment_version(one)
        return output

    def launch(self, *given: Any) -> Any:
        """The outputs alone, for a function of autograd that itself keeps what its backward pass needs."""
        return (self.counted if _is_counted(given[0]) else self.function)(*given)

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """`fake` makes the outputs on `meta`."""
        self.counted.register_fake(fake)
        return fake

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """As `register_autograd` of torch's operators."""
        self.counted.register_autograd(backward, setup_context=setup_context)
        function = self.called

        def forward(ctx: Any, *given: Any) -> Any:
            output = function(*given)
            setup_context(ctx, given, output)
            return output

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        made: Any = type(function.__name__, (torch.autograd.Function,), methods)
        self.called = made.apply
