"""Compiles every kernel for a GPU that is not here: python -m tests.training.kernels.compiling CAPABILITY

The checks that a run makes before it trains call all kernels but ERNIE-Doc's attention, which is called for GPUs with
tensor cores for it. Here a call compiles and launches nothing, so the checks' comparisons are left out. Prints the
names of the kernels that were compiled.
"""

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from reread.training.kernels.attention import attended
from reread.training.kernels.layers import check_layers
from reread.training.optim.flat import check_update

CPU = torch.device("cpu")


class Absent:
    """What Triton asks a driver when it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all(capability: int) -> set[str]:
    """The names of the kernels that were compiled to machine code."""
    compiled: set[str] = set()
    run: Callable[..., Any] = JITFunction.run

    def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        made = run(kernel, *given, grid=grid, warmup=True, **named)
        assert made.asm["cubin"]
        compiled.add(f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}")
        return made

    driver.set_active(Absent(capability))  # type: ignore[arg-type]
    with patch.object(JITFunction, "run", compile_only), patch.object(torch.testing, "assert_close"):
        check_layers(CPU)
        check_update(CPU)
        for dtype in (torch.float16, torch.bfloat16) if capability >= 80 else ():
            _attend(dtype)
    return compiled


def _attend(dtype: torch.dtype) -> None:
    shapes = (2, 70, 2, 64), (2, 90, 2, 64), (2, 90, 2, 64), (160, 2, 64), (2, 64), (2, 64), (2, 1, 1, 90)
    given = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    z, _ = attended(*given, 0.1, 12345)
    z.sum().backward()


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET", "0") == "0", "nothing is compiled for the interpreter"
    print(*sorted(compile_all(int(sys.argv[1]))), sep="\n")
