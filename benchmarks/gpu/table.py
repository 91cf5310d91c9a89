"""The tables of `make gpu`."""

import math
from collections.abc import Callable, Sequence

from benchmarks.gpu.profiles import KINDS
from benchmarks.gpu.sides import Figures

Column = tuple[str, Callable[[Figures], str]]


def tables(results: Sequence[Figures]) -> str:
    """Whole steps, their kernels, and single operations, and a line for each side that was left out or failed."""
    done = [one for one in results if "ms" in one]
    whole, single = ([one for one in done if ("mfu" in one) == is_step] for is_step in (True, False))
    parts = [
        _table(STEPS, whole),
        _table(_kernel_columns(), [one for one in whole if "milliseconds" in one]),
        _table(OPERATIONS, single),
        "\n".join(f"- {_names(one)}: {one['error']}" for one in results if "error" in one),
    ]
    return "\n\n".join(part for part in parts if part)


def _names(one: Figures) -> str:
    return ", ".join(one[name] for name in ("case", "comparison", "side") if name in one)


def _table(columns: Sequence[Column], results: Sequence[Figures]) -> str:
    if not results:
        return ""
    lines = [f"| {' | '.join(name for name, _ in columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(one).replace('|', '/') for _, cell in columns)} |" for one in results]
    return "\n".join(lines)


def _text(name: str) -> Callable[[Figures], str]:
    return lambda one: str(one.get(name, ""))


def _number(name: str, form: str, scale: float = 1.0) -> Callable[[Figures], str]:
    def shown(one: Figures) -> str:
        value = one.get(name)
        return "" if value is None or not math.isfinite(value) else format(value * scale, form)

    return shown


def _rate(name: str, scale: float) -> Callable[[Figures], str]:
    return lambda one: f"{one[name] / one['ms'] * 1000 / scale:,.0f}" if one.get(name) and one.get("ms") else ""


def _idle(one: Figures) -> str:
    return " / ".join(f"{value:.1f}" for value in one["idle"].values()) if "idle" in one else ""


STEPS: tuple[Column, ...] = (
    ("x BERT", _number("times", ".2f")),
    ("case", _text("case")),
    ("side", _text("side")),
    ("precision", _text("precision")),
    ("rows", _text("micro_batch")),
    ("ms a step", _number("ms", ".1f")),
    ("tokens/s", _number("tokens_per_second", ",.0f")),
    ("MFU %", _number("mfu", ".1f", 100)),
    ("step GiB", _number("step_gib", ".1f")),
    ("first turn s", _number("first_turn_s", ".1f")),
    ("idle ms, forward / backward / update", _idle),
    ("attention", lambda one: ", ".join(one.get("attention", ()))),
)
OPERATIONS: tuple[Column, ...] = (
    ("x first", _number("times", ".2f")),
    ("case", _text("case")),
    ("comparison", _text("comparison")),
    ("side", _text("side")),
    ("ms", _number("ms", ".3f")),
    ("GB/s", _rate("bytes", 1e9)),
    ("TFLOP/s", _rate("flops", 1e12)),
    ("first turn s", _number("first_turn_s", ".1f")),
    ("difference", _number("difference", ".1e")),
)


def _kernel_columns() -> list[Column]:
    """Milliseconds of a step's kernels by kind; their sum, with gaps between them left out, is at most the step."""

    def taken(kind: str) -> Callable[[Figures], str]:
        return lambda one: f"{one['milliseconds'].get(kind, 0):.1f}"

    return [
        ("case", _text("case")),
        ("side", _text("side")),
        *((kind, taken(kind)) for kind in (*KINDS, "others")),
        ("sum", lambda one: f"{sum(one['milliseconds'].values()):.1f}"),
        ("launches", lambda one: str(sum(one["launches"].values()))),
        ("waits", _text("waits")),
    ]
