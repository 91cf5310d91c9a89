"""A GPU's benchmark: the tests that need one, then speed and memory of each model, in under nine minutes.

    make gpu OUT=runs/gpu                        # or: python benchmarks/gpu/run.py --out runs/gpu
    make gpu PYTHON=python3                      # another interpreter with torch, transformers and our dependencies
    python benchmarks/gpu/run.py --toy --out here   # the same at toy sizes, on CPU too: figures without a meaning

Each model trains as its recipe says by the trainer's own step, on full rows of random ids, so the losses mean nothing:
two micro-batches and the optimiser. BERT and Longformer of transformers stand beside it with the same sizes, rows,
weights in half precision, float32 masters, gradient buckets and optimiser, and their own loss, which puts all tokens
through the head where ours takes the masked ones. MFU counts the FLOPs of our model for both (see the log's formula).

A case is a process of its own (`measure.py`), so one that fails leaves the others alone; one that runs out of memory is
tried again with half the rows. Results are appended to OUT/results.jsonl as they come, what a case printed is in
OUT/*.log, and OUT/table.md is printed at the end. When the minutes are nearly up no other case is begun, and those left
are named. Without a GPU it prints what it would run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import math
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from fnmatch import fnmatchcase
from typing import TextIO

import torch

from benchmarks.gpu import measure
from benchmarks.gpu.cases import ACCUMULATION, CASES, Case, rows_of
from benchmarks.gpu.kernels import KINDS
from benchmarks.gpu.measure import Figures
from benchmarks.harness import parser
from reread.preprocessing.errors import one_line

ROOT = Path(__file__).resolve().parents[2]
CASE_SECONDS = 90.0
"""A case that takes longer is ended."""
LEAST_SECONDS = 30.0
"""With less time left no other case is begun."""
TESTS_SECONDS = 170.0
DRIVERS = {Path("/proc/driver/nvidia/version"): r"\d+\.\d[\d.]*", Path("/sys/module/amdgpu/version"): r"\S+"}
"""The files in which a driver states its version, and how it looks."""


def precisions() -> tuple[list[str], str]:
    """The precisions of this device, first the one that `precision: auto` takes; and a phrase that names them."""
    if not torch.cuda.is_available():
        return ["fp32"], "fp32, because there is no GPU"
    major, minor = torch.cuda.get_device_capability()
    if major < 8 and not torch.version.hip:
        return ["fp16"], f"fp16; no bf16 below compute capability 8.0, this is {major}.{minor}"
    return ["bf16", "fp16"], "bf16, then fp16"


def machine(count: int) -> str:
    """The name of this machine's GPUs, how many are used, and the versions of torch, its platform and the driver."""
    parts = ["CPU"]
    if torch.cuda.is_available():
        parts = [f"{count} x {torch.cuda.get_device_name() or 'a GPU without a name'}"]
    parts.append(f"torch {torch.__version__}")
    if torch.version.hip or torch.version.cuda:
        parts.append(f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}")
    for file, pattern in DRIVERS.items():
        if file.exists() and (found := re.search(pattern, file.read_text())):
            parts.append(f"driver {found[0]}")
    return ", ".join(parts)


def run_logged(command: list[str], log: TextIO, seconds: float) -> int | str:
    """The status of `command`, or that it was ended after so many seconds; what it prints goes to `log`."""
    try:
        return subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} s"
    finally:
        log.seek(0)


def run_case(case: Case, precision: str, rows: int, toy: bool, out: Path, seconds: float) -> Figures:
    """The figures of a case, or `error`, from a process that is ended after so many seconds."""
    label = re.sub(r"[^\w-]+", "-", f"{case.name}-{precision}-{rows}")
    with tempfile.TemporaryDirectory() as folder, (out / f"{label}.log").open("w+") as printed:
        command = [sys.executable, measure.__file__, case.name, precision, str(rows), folder, *["--toy"] * toy]
        status = run_logged(command, printed, seconds)
        if status == 0:
            return json.loads((Path(folder) / "result.json").read_text())
        lines = [line.strip() for line in printed if line.strip()]
    if isinstance(status, str):
        return {"error": status}
    causes = [line for line in lines if "out of memory" in line] or lines
    return {"error": causes[-1][:300] if causes else f"status {status}"}


def run_tests(out: Path, seconds: float) -> Figures:
    """tests/gpu, counted from what pytest printed, so tests that ended before the time was up count too."""
    begin = time.monotonic()
    with (out / "tests.log").open("w+") as printed:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")]
        status = run_logged(command, printed, seconds)
        text = printed.read()
    counts = Counter(re.findall(r"^tests/\S+::.* (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE))
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.MULTILINE)
    counted: Figures = {kind.lower(): count for kind, count in counts.items()}
    if not counts and text.strip():  # pytest is not there, or a module that the tests import
        counted = {"error": text.strip().splitlines()[-1][:300]}
    return {**counted, "status": status, "failed_tests": failed, "seconds": round(time.monotonic() - begin, 1)}


def table(results: list[Figures]) -> str:
    columns = ("model", "precision", "rows", "s/step", "tokens/s", "MFU", "peak GiB", "waiting", "attention")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for one in results:
        start = f"| {one['case']} | {one['precision']} | {ACCUMULATION} x {one['micro_batch']} |"
        if "error" in one:
            lines.append(f"{start} {one['error'].replace('|', '/')} |" + " |" * (len(columns) - 4))
            continue
        mfu = f"{100 * one['mfu']:.1f} %" if math.isfinite(one["mfu"]) else "-"
        peak = f"{one['peak_gib']:.1f}" if "peak_gib" in one else "-"
        skipped = f" ({one['skipped_steps']} steps skipped)" if one["skipped_steps"] else ""
        lines.append(
            f"{start} {one['seconds_per_step']:.3f}{skipped} | {one['tokens_per_second']:,.0f} | {mfu} | {peak} | "
            f"{100 * one['data_wait_share']:.1f} % | {', '.join(one['attention']) or 'no SDPA'} |"
        )
    return "\n".join(lines)


def kernel_table(results: list[Figures]) -> str:
    """Milliseconds of a step's kernels by kind; their sum, with gaps between them left out, is at most the step."""
    kinds = [*KINDS, "others"]
    lines = [f"| model | precision | {' | '.join(kinds)} | sum | step | launches | waits |"]
    lines.append(f"|{'---|' * (len(kinds) + 6)}")
    for one in results:
        if "milliseconds" in one:
            taken = one["milliseconds"]
            shares = " | ".join(f"{taken.get(kind, 0):.1f}" for kind in kinds)
            lines.append(
                f"| {one['case']} | {one['precision']} | {shares} | {sum(taken.values()):.1f} | "
                f"{1000 * one['seconds_per_step']:.1f} | {sum(one['launches'].values())} | {one['waits']} |"
            )
    return "\n".join(lines)


def outline(chosen: list[Case], toy: bool, minutes: float) -> str:
    begin = "" if toy else "tests/gpu, then "
    lines = [f"in {minutes:g} minutes: {begin}each of these in {precisions()[1]}:"]
    for case in chosen:
        rows, length = rows_of(case, toy), case.tokens(toy)
        who = "transformers' model" if case.theirs else f"recipe {case.recipe}"
        lines.append(f"  {case.name}: {who}, {ACCUMULATION} micro-batches of {rows} rows of {length} tokens")
    return "\n".join(lines)


def run_all(chosen: list[Case], toy: bool, out: Path, deadline: float, tested: bool = True) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results: list[Figures] = []

    def keep(result: Figures) -> None:
        results.append(result)
        with (out / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")

    heading = f"{machine(1)}{', toy sizes' if toy else ''}"
    print(heading, flush=True)
    tests = "not run"
    if tested and not toy:
        counted = run_tests(out, min(TESTS_SECONDS, deadline - time.monotonic()))
        keep({"case": "tests/gpu", **counted})
        tests = ", ".join(f"{name} {value}" for name, value in counted.items() if value != [])
        print(f"tests/gpu: {tests}", flush=True)
        results.clear()  # the table is of cases
    left: list[str] = []
    for precision in precisions()[0]:
        for case in chosen:
            rows = rows_of(case, toy)
            while True:
                seconds = min(CASE_SECONDS, deadline - time.monotonic())
                if seconds < LEAST_SECONDS:
                    left.append(f"{case.name} {precision}")
                    break
                begin = time.monotonic()
                figures = run_case(case, precision, rows, toy, out, seconds)
                wall = round(time.monotonic() - begin, 1)
                keep({"case": case.name, "precision": precision, "micro_batch": rows, **figures, "wall": wall})
                outcome = figures.get("error") or f"{figures['tokens_per_second']:,.0f} tokens/s"
                print(f"{case.name}, {precision}, {ACCUMULATION} x {rows} rows: {outcome} ({wall:.0f} s)", flush=True)
                if rows == 1 or "out of memory" not in figures.get("error", ""):
                    break
                rows //= 2
    text = f"{heading}\n\ntests/gpu: {tests}\n\n{table(results)}\n"
    text += f"\n{kernel_table(results)}\n" if any("milliseconds" in one for one in results) else ""
    text += f"\nNot run, the time was up: {', '.join(left)}\n" if left else ""
    (out / "table.md").write_text(text)
    print(f"\n{text}", flush=True)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the results")
    arguments.add_argument("--minutes", type=float, default=8.5, help="limit for everything")
    arguments.add_argument("--only", default="*", help="glob of cases, for example 'nezha*'")
    arguments.add_argument("--toy", action="store_true", help="small sizes, no tests; on CPU too")
    arguments.add_argument("--no-tests", action="store_true", help="leave tests/gpu out")
    options = arguments.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    chosen = [case for case in CASES if fnmatchcase(case.name, options.only)]
    print(outline(chosen, options.toy, options.minutes), flush=True)
    if not torch.cuda.is_available() and not options.toy:
        print("torch sees no GPU here, so nothing is run; --toy runs the same at toy sizes")
        return
    run_all(chosen, options.toy, options.out, deadline, not options.no_tests)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
