"""Generators that run in the children of test_confined.py."""

import os
import resource
from collections.abc import Iterator

MEGABYTE = 1 << 20


def load() -> None:
    """These need no library."""


def counted(up_to: int) -> Iterator[int]:
    yield from range(up_to)


def grown(steps: int) -> Iterator[int]:
    held = []
    for step in range(steps):
        held.append(b"x" * (16 * MEGABYTE))
        yield step


def kept() -> Iterator[int]:
    """Memory that is never given back."""
    globals()["KEPT"] = b"x" * (160 * MEGABYTE)
    yield 0


def ended(number: int) -> Iterator[int]:
    yield 0
    print("what a library prints is no answer", flush=True)
    os.kill(os.getpid(), number)
    yield 1


def failed() -> Iterator[int]:
    yield 0
    raise FileNotFoundError(2, "no such file", "a")


def endless() -> Iterator[int]:
    resource.setrlimit(resource.RLIMIT_CPU, (1, -1))
    while True:
        pass
    yield 0
