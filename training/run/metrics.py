"""metrics.jsonl, the progress line, and the figures of `reread evaluate`."""

import json
import logging
import math
import mmap
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import sync_folder, write_atomically
from reread.training.run.files import RunFile, read_json, read_mapping
from reread.training.run.history import open_attempt
from reread.training.run.writers import Writer

if TYPE_CHECKING:
    import torch

log = logging.getLogger("reread")

PEAK_TFLOPS = {  # dense fp16 / bf16 peaks of matrix products as the vendor states them
    "V100": 125.0,
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
    "A800": 312.0,
    "H800": 989.0,
    "T4": 65.0,
    "L40S": 362.0,
    "RTX 4090": 165.0,
    "MI250X": 191.5,  # of one of its two dies, each of which is a device
    "MI300X": 1307.0,
}


def peak_flops(setting: float | None, device: "torch.device") -> float:
    """The FLOP/s of one device that count as an MFU of 1; logs the formula and the source of the figure."""
    log.info("MFU = 3 x FLOPs of the forward pass's matrix products (head on predicted tokens) / seconds / peak")
    if setting is not None:
        return setting * 1e12
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
        for known, tflops in PEAK_TFLOPS.items():
            if known in name:
                log.info("MFU peak: %g TFLOP/s, the stated half-precision peak of %s", tflops, known)
                return tflops * 1e12
        log.info("MFU peak: unknown for %s, so MFU is not shown; set train.peak_tflops", name)
        return math.nan
    peak = _measured_on_cpu()
    log.info("MFU peak: %.3f TFLOP/s, measured here with a 1024^3 fp32 matrix product per process", peak / 1e12)
    return peak


def _measured_on_cpu() -> float:
    from time import perf_counter

    import torch

    a, b = torch.ones(1024, 1024), torch.ones(1024, 1024)
    best = math.inf
    for _ in range(5):
        begin = perf_counter()
        a @ b
        best = min(best, perf_counter() - begin)
    return 2 * 1024**3 / best


class MetricsLog:
    """Appends to `metrics.jsonl`; an attempt that continues first cuts off the lines past its step."""

    def __init__(self, run: Path, resumed_step: int, processes: int = 1, writers: Sequence[Writer] = ()) -> None:
        """`writers` get the same figures. Raises `UserError` for a line past the step that is not metrics."""
        self._path = path = RunFile.METRICS.of(run)
        self._file = path.open("a", encoding="utf-8")
        _cut(path, resumed_step)
        sync_folder(run)
        open_attempt(run, resumed_step, processes)
        self._writers = writers

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write the finite `values` with the Unix time. Raises `UserError` if there is no room left."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        try:
            self._file.write(json.dumps({"step": step, "time": round(time.time(), 1), **finite}) + "\n")
            self._file.flush()
            for writer in self._writers:
                writer.write(step, finite)
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot write step {step} ({error.strerror}); make room, and the same command continues "
                "from the last checkpoint",
                error,
            ) from None

    def close(self) -> None:
        self._file.close()
        for writer in self._writers:
            writer.close()


def quality(names: Iterable[str]) -> list[str]:
    """The losses, accuracies and perplexities among `names`; `loss` is left out if `masked_lm_loss` is its equal."""
    chosen = [name for name in names if name.endswith(("loss", "accuracy", "perplexity", "bits_per_token"))]
    return [name for name in chosen if f"{name.removesuffix('loss')}masked_lm_loss" not in chosen]


def _cut(path: Path, step: int) -> None:
    """Cut off the lines past `step`, which are the last ones, and a half-written one, by one durable change of length.

    Only these lines are read.
    """
    with path.open("rb+") as file:
        if os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                end = data.rfind(b"\n") + 1
                while end and _step_of(path, data, begin := data.rfind(b"\n", 0, end - 1) + 1) > step:
                    end = begin
            file.truncate(end)
        os.fsync(file.fileno())


def _step_of(path: Path, data: mmap.mmap, begin: int) -> int:
    """The step of the line that begins at `begin`. Raises `UserError` with its number if it is not metrics."""
    data.seek(begin)
    values = _metrics_of(data.readline())
    if values is None:
        data.seek(0)
        raise _damaged(path, next(number for number in count(1) if data.tell() == begin or not data.readline()))
    return int(values["step"])


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All that `each_metrics` gives."""
    return list(each_metrics(run))


def each_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """The complete lines, one after the other; a kill may have cut the last one short.

    Raises `UserError` for a line that is not metrics.
    """
    path = RunFile.METRICS.of(run)
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                values = _metrics_of(line)
                if values is None:
                    raise _damaged(path, number)
                yield values


def _damaged(path: Path, number: int) -> UserError:
    return UserError(f"{path}: line {number} is not a line of metrics; remove it")


def _metrics_of(line: bytes) -> dict[str, Any] | None:
    """The values of a line; None if it is not JSON or not metrics."""
    try:
        values = from_json(line)  # in a fifth of the time that json takes
    except ValueError:
        try:
            values = json.loads(line)  # takes half of a surrogate pair too
        except (ValueError, RecursionError):
            return None
    return values if _is_metrics(values) else None


def _is_metrics(values: Any) -> bool:
    """Whether a line has a step and otherwise finite numbers."""
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        return False
    try:
        if math.isfinite(sum(values.values(), 0.0)):
            return True
    except (TypeError, OverflowError):
        pass
    most = sys.float_info.max  # an integer may have more digits than fit into a float
    return all(isinstance(value, int | float) and -most <= value <= most for value in values.values())


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, oldest first: step, overrides, held_out, time (Unix, s) and figures by name."""
    found = read_json(RunFile.EVALUATION.of(run))
    known = {"step", "overrides", "held_out", "time", "figures"}
    return [one for one in found if isinstance(one, dict) and known <= set(one)] if isinstance(found, list) else []


def keep_evaluation(run: Path, evaluation: dict[str, Any], figures: dict[str, float]) -> None:
    """Add figures to RUN/evaluation.json, where they replace those of the same evaluation."""
    others = [one for one in read_evaluations(run) if any(one[name] != value for name, value in evaluation.items())]
    finite = {name: value for name, value in figures.items() if math.isfinite(value)}
    evaluations = [*others, {**evaluation, "time": round(time.time(), 1), "figures": finite}]
    write_atomically(RunFile.EVALUATION.of(run), json.dumps(evaluations, ensure_ascii=False, indent=1).encode())


def read_mistakes(run: Path) -> dict[str, dict[str, Any]]:
    """Held-out file -> its mistakes (`reread.training.data.tasks.mistakes`); empty if the file cannot be read."""
    found = read_mapping(RunFile.MISTAKES.of(run))
    return found if all(isinstance(one, dict) for one in found.values()) else {}


def keep_mistakes(run: Path, held_out: str, found: dict[str, Any]) -> None:
    """Add the mistakes in a held-out file to RUN/mistakes.json, where they replace earlier ones."""
    mistakes = {**read_mistakes(run), held_out: found}
    write_atomically(RunFile.MISTAKES.of(run), json.dumps(mistakes, ensure_ascii=False).encode())


def progress_line(step: int, steps: int, values: dict[str, float], shown: Mapping[str, str]) -> str:
    """`step 40/400 10% | loss 7.2211 acc 0.0511 nsp 0.69 | lr 1.0e-2 | 12.1k tok/s | MFU 9.1% | 0:03:20 left`

    `shown` maps labels to names of `values`; figures without a value, since nothing was counted, are left out.
    """
    named = {label: name for label, name in {"loss": "loss", **shown}.items() if name in values}
    left = int(values["seconds_left"])
    clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
    parts = [
        f"step {step}/{steps} {100 * step / steps:.0f}%",
        " ".join(f"{label} {values[name]:.5g}" for label, name in named.items()),
        f"lr {values['learning_rate']:.2e} |g| {values['gradient_norm']:.2f}",
        f"{values['tokens_per_second'] / 1000:.1f}k tok/s",
        f"MFU {100 * values['mfu']:.1f}%" if math.isfinite(values["mfu"]) else "MFU -",
        f"{clock} left",
    ]
    if values["loss_scale"] != 1:
        parts.insert(3, f"scale {values['loss_scale']:g}")
    return " | ".join(parts)
