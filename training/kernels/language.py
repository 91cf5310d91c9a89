"""Triton's names, or stand-ins where it is not installed, so that kernels can be imported and counted anywhere; and the
operators that launch kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:
    triton = tl = None
    constexpr = None

__all__ = ["Operator", "cdiv", "constexpr", "jit", "missing", "next_power_of_2", "operator", "tl", "triton"]


def missing() -> str | None:
    """Why no kernel can run in this process, or None."""
    return None if triton else "Triton is not installed"


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`, by which `function` is compiled when it is first launched."""
    return triton.jit(function) if triton else function


def _on_meta(first: Tensor | list[Tensor]) -> bool:
    return (first[0] if isinstance(first, list) else first).is_meta


def cdiv(count: int, size: int) -> int:
    """Pieces of `size` for `count`. Triton's own, which kernels can call, too, takes as long as a launch."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of 2 that is not less, for `count` of 1 or more."""
    return 1 << (count - 1).bit_length()


class Operator:
    """A function of tensors that launches kernels: torch's operator `reread::name` on the device `meta`, where a plan
    counts it, and called as it is elsewhere. torch's operators in Python keep the host busy for .1 ms a call, longer
    than many kernels run; a whole step of a base model then waits for the host."""

    def __init__(self, function: Callable[..., Any], mutates: tuple[str, ...]) -> None:
        self.function = self.called = function
        self.counted = torch.library.custom_op(f"reread::{function.__name__}", function, mutates_args=mutates)

    def __call__(self, *given: Any) -> Any:
        return (self.counted if _on_meta(given[0]) else self.called)(*given)

    def launch(self, *given: Any) -> Any:
        """The outputs alone, for a function of autograd that itself keeps what its backward pass needs."""
        return (self.counted if _on_meta(given[0]) else self.function)(*given)

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


def operator(function: Callable[..., Any] | None = None, *, mutates: tuple[str, ...] = ()) -> Any:
    """Makes an `Operator` of `function`; `mutates` names the arguments that it writes to."""
    if function is None:
        return lambda given: Operator(given, mutates)
    return Operator(function, mutates)
