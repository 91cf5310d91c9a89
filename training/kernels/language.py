"""Triton's names, or stand-ins where it is not installed, so that kernels can be imported and counted anywhere."""

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:
    triton = tl = None
    constexpr = None

__all__ = ["constexpr", "jit", "missing", "tl", "triton"]


def missing() -> str | None:
    """Why no kernel can run in this process, or None."""
    return None if triton else "Triton is not installed"


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`, by which `function` is compiled when it is first launched."""
    return triton.jit(function) if triton else function
