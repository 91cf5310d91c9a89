"""Real process groups in tests: `ranks(n, function, *args)` runs `function` in n processes over gloo.

The processes are forked from a server that has imported torch and megatron-core once, so a call costs a fraction of a
second, every call starts clean, and a crash in one test cannot affect another. `function` must be a top-level function
of a module; it sees the environment of torchrun (RANK, WORLD_SIZE, ...), or none of it when n is 1.
"""

import os
import pickle
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from tests.forks import LAUNCHER_VARIABLES, context, free_port


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[Any]]:
    """`ranks(n, function, *args)`: the results in rank order; raises with the tracebacks of the ranks that failed."""

    def run(n: int, function: Callable[..., Any], *args: Any, float64: bool = False, timeout: float = 300) -> list[Any]:
        port = free_port()
        processes, pipes = [], {}
        for rank in range(n):
            receive, send = context().Pipe(duplex=False)
            work = (send, (rank, n, port), float64, function, args)
            process = context().Process(target=_rank, args=work, daemon=True)
            process.start()
            send.close()
            processes.append(process)
            pipes[receive] = rank
        try:
            return _collect(pipes, timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()

    return run


@pytest.fixture(scope="session")
def ranks_in_float64(ranks: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`ranks` with float64 in place of float32, so that on any processor a difference above float64's rounding is a
    mistake."""
    return partial(ranks, float64=True)


def _collect(pipes: dict[Connection, int], timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[str] = []
    waiting = set(pipes)
    while waiting:
        # peers of a failed rank end by themselves; those that do not notice are not waited for
        ready = wait(list(waiting), timeout=5 if failures else timeout)
        if not ready:
            failures.append(f"no answer from ranks {sorted(pipes[pipe] for pipe in waiting)}")
            break
        for pipe in ready:
            waiting.discard(pipe)  # type: ignore[arg-type]
            rank = pipes[pipe]  # type: ignore[index]
            try:
                good, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                good, value = False, "the process died"
            if good:
                results[rank] = value
            else:
                failures.append(f"rank {rank}: {value}")
    if failures:
        raise RuntimeError("\n".join(failures))
    return [results[rank] for rank in range(len(pipes))]


def _compute_in_float64() -> None:
    """Replace float32 by float64 for the rest of this process, in our code and in megatron-core's, whose cross-entropy
    casts its input."""
    import torch

    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float64  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.nn.Module.float = torch.nn.Module.double  # type: ignore[method-assign]


def _rank(
    send: Connection,
    place: tuple[int, int, int],
    float64: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    import torch

    from reread.training.parallel.rendezvous import close_mesh

    torch.set_num_threads(1)
    if float64:
        _compute_in_float64()
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    rank, n, port = place
    if n > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        answer = pickle.dumps((True, function(*args)))  # plain pickle: tensors travel by value
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    send.send_bytes(answer)
    send.close()
    close_mesh()
