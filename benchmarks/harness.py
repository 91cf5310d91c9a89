"""Shared by all benchmarks: sides that take turns, a process a side, CPU seconds, peak memory, results, tables.

Sides take turns, round after round, so that other work on the machine slows all of them. It only ever adds, so the best
round counts; the ratios of single rounds show how far to trust it.
"""

import argparse
import ctypes
import gc
import gzip
import json
import lzma
import math
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from reread.preprocessing.errors import UserError

T = TypeVar("T")
Step = Callable[[], Any]
NEVER = 1 << 30
STEPS_ALONE = {
    "activation_checkpointing": "false",
    "validate_every": NEVER,
    "checkpoint.every_steps": NEVER,
    "writers": "[]",
}
"""Settings of a run that only takes its steps, with a validation and a checkpoint at its end."""


class Cost(NamedTuple):
    seconds: float
    megabytes: float = 0.0


class Measured(NamedTuple):
    """A function that ran in a process of its own."""

    result: Any
    cpu_seconds: float
    """Child processes included."""
    peak_megabytes: float
    """Resident memory of the largest process."""
    grown_megabytes: float
    """Peak above what the process held before the function began."""
    anonymous_megabytes: float
    """The most memory of the process that is no file's, read every 20 ms."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Arguments of a benchmark, with its docstring as help."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def attention_parser(doc: str | None, rounds: int, rows: int = 1) -> argparse.ArgumentParser:
    """With the arguments of benchmarks that compare two forms of attention."""
    arguments = parser(doc)
    arguments.add_argument("--rows", type=int, default=rows)
    arguments.add_argument("--dropout", type=float, default=0.0)
    arguments.add_argument("--rounds", type=int, default=rounds)
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    return arguments


def matching(names: Sequence[str], globs: Sequence[str]) -> list[str]:
    """The names that `--only` asks for. Raises `UserError` for a glob that no name matches."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UserError(f"--only {glob}: nothing has this name; there are {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def overrides(values: Mapping[str, object]) -> list[str]:
    """Settings as overrides of a recipe."""
    return [f"{name}={value}" for name, value in values.items()]


def in_turns(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """The results of each side, round by round."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            results[name].append(side())
    return results


def in_process(function: Callable[..., T], *arguments: Any) -> T:
    """The result of `function` in a fresh process, where its memory and what it replaces in a module are its own."""
    return measured(function, *arguments).result


def measured(function: Callable[..., Any], *arguments: Any) -> Measured:
    """Run `function` in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, function, arguments).result()


def _measured(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Measured:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before, begin = _resident("VmRSS"), cpu_seconds()
    with _largest("RssAnon") as anonymous:
        result = function(*arguments)
    peak, children = _resident("VmHWM"), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Measured(result, cpu_seconds() - begin, max(peak, children), peak - before, max(anonymous))


@contextmanager
def _largest(field: str) -> Iterator[list[float]]:
    """Yields a list of what `_resident` shows during the block, filled by a thread."""
    found, ended = [_resident(field)], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            found.append(_resident(field))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def cpu_seconds() -> float:
    """Of this process and its children that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _resident(field: str) -> float:
    """Megabytes of a field of /proc/self/status (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def seconds(action: Step, device: str = "cpu") -> float:
    """CPU seconds of this process, which other processes disturb least; on a GPU seconds of the clock."""
    if device == "cpu":
        begin = time.process_time()
        action()
        return time.process_time() - begin
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def allocated(action: Step, device: str = "cpu") -> tuple[int, int, Any]:
    """Bytes of tensors that `action` kept, the most that it held at once, and its result."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = action()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before, result
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = action()
        gc.collect()
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    sums = list(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    return sums[-1], max(sums), result


def step_cost(step: Step, device: str = "cpu") -> Cost:
    """The best of several steps after one of warm-up, and the most that the tensors of one take."""
    step()
    _, most, _ = allocated(step, device)
    return Cost(min(seconds(step, device) for _ in range(3 if device == "cpu" else 7)), most / 2**20)


def keep_freed_memory() -> None:
    """Let the C library reuse memory, as torch does on a GPU; fresh pages make large tensors up to twice as slow."""
    library = ctypes.CDLL(None)
    for parameter, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
        library.mallopt(parameter, value)


def ratio(side: list[float], rival: list[float]) -> str:
    """How many times less than `rival` a side takes: the best rounds, and the range over single rounds."""
    rounds = [theirs / ours for ours, theirs in zip(side, rival, strict=True)]
    return f"{min(rival) / min(side):.2f}x ({min(rounds):.2f} to {max(rounds):.2f})"


def exponent(sizes: Sequence[float], costs: Sequence[float], least: float = 0.3) -> str:
    """The power of a size by which a cost grows beside a constant, such as the imports: 1 is linear, `-` grows by
    less than `least`, which may be noise.

    Of the three largest sizes, which grow by equal factors r: r ** exponent is the ratio of the two increments. Where
    the smaller two cost the same it is that of the whole cost from the second to the third.
    """
    (first, _, last), (least_cost, middle, most) = sizes[-3:], costs[-3:]
    if most - least_cost < least:
        return "-"
    before, after = middle - least_cost, most - middle
    ratio = after / before if before > least / 10 else most / middle
    return f"{math.log(ratio) / math.log((last / first) ** 0.5):.2f}" if ratio > 0 else "-"


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """A text, which may be packed by xz or gzip."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    return opened(path, "rt", encoding="utf-8", newline=newline)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole; a killed run may have left part of one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def add_result(path: Path, result: Mapping[str, Any]) -> None:
    """Append a line; one that a killed run left unfinished is ended first."""
    begun = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * begun + json.dumps(result) + "\n")


def heading(*columns: str) -> None:
    row(*columns)
    row(*["---"] * len(columns))


def row(*cells: object) -> None:
    """A line of a Markdown table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


COST_COLUMNS = ("ms", "faster", "MB", "less memory")


def compare(label: tuple[object, ...], costs: Mapping[str, list[Cost]], rival: str) -> None:
    """A row for each side: `label`, its name and `COST_COLUMNS` against `rival`."""
    for name in costs:
        cells = []
        for field, scale in (("seconds", 1e3), ("megabytes", 1)):
            ours, theirs = ([getattr(one, field) for one in costs[side]] for side in (name, rival))
            cells += [f"{scale * min(ours):.1f}", "1" if name == rival else ratio(ours, theirs)]
        row(*label, name, *cells)


def between(text: str, begin: str, end: str) -> str:
    """The part of a page that a benchmark has made: what stands between its markers."""
    return text[text.index(begin) + len(begin) : text.index(end)]


def put_between(page: Path, begin: str, end: str, made: str) -> None:
    """Write `made` between the markers of a page."""
    text = page.read_text(encoding="utf-8")
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    page.write_text(re.sub(pattern, lambda _: f"{begin}{made}{end}", text, flags=re.DOTALL), encoding="utf-8")
