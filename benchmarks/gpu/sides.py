"""What the cases of `make gpu` share: sides of a comparison, which take turns, and the figures of each."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Figures = dict[str, Any]
WARM_TURNS, TURNS, LEAST_TURNS = 3, 10, 3


@dataclass(frozen=True)
class Place:
    """Where a case runs, and at what size."""

    folder: Path
    """For corpora and runs."""
    device: torch.device
    precision: str
    tokens: int
    """Tokens of a micro-batch."""
    toy: bool = False
    without: tuple[str, ...] = ()
    """Kernels of ours that a second side of each model trains without."""

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[self.precision]


class LeftOutError(Exception):
    """A side that cannot run here, with the reason."""


class Side(Protocol):
    def turn(self) -> Figures:
        """Do the work once; figures of this turn, `ms` among them."""

    def about(self) -> Figures:
        """Figures that one look gives, after all turns."""

    def results(self) -> Sequence[Tensor]:
        """What was computed; empty if it is not to be compared."""

    def close(self) -> None: ...


class Comparison(NamedTuple):
    """Sides that take turns; the others are compared with the first."""

    name: str
    sides: Mapping[str, Callable[[Place], Side]]


def compare(comparison: Comparison, place: Place, deadline: float) -> Iterator[Figures]:
    """Figures of each side: medians over turns, `times` the first side's speed, and `difference` from its results.

    A side that fails is a line with the reason. When the time is nearly up there are fewer turns, and nothing beside.
    """
    names = {"comparison": comparison.name}
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        turns: dict[str, list[Figures]] = {}
        first_turn = {}
        for name, build in comparison.sides.items():
            try:
                side = build(place)
                stack.callback(side.close)
                begin = time.perf_counter()
                side.turn()
                first_turn[name] = round(time.perf_counter() - begin, 2)
                for _ in range(0 if place.toy else WARM_TURNS - 1):
                    side.turn()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever it is, the other sides go on
                yield {**names, "side": name, "error": _line(error)}
                continue
            sides[name], turns[name] = side, []
        for count in range(1 if place.toy else TURNS):
            if count >= LEAST_TURNS and time.monotonic() > deadline:
                break
            for name, side in sides.items():
                turns[name].append(side.turn())
        base, first = next(iter(comparison.sides)), None
        expected: Sequence[Tensor] = ()
        for name, side in sides.items():
            results = side.results()
            figures = _medians(turns[name]) | {"turns": len(turns[name]), "first_turn_s": first_turn[name]}
            figures |= side.about() if time.monotonic() < deadline else {}
            if name == base:
                first, expected = figures, results
            if first:
                figures["times"] = speed(figures) / speed(first)
            if results and expected and name != base:
                figures["difference"] = difference(results, expected)
            yield {**names, "side": name, **figures}


def speed(figures: Figures) -> float:
    return figures.get("tokens_per_second") or 1000 / figures["ms"]


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of any tensor, as a share of its largest element."""
    return max(
        ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30)).item()
        for a, b in zip(found, expected, strict=True)
    )


def _medians(turns: Sequence[Figures]) -> Figures:
    numbers = [name for name, value in turns[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(turn[name] for turn in turns) for name in numbers}


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"left out: {text}" if isinstance(error, LeftOutError) else f"{type(error).__name__}: {text}"
