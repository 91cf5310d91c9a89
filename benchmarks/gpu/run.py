"""A GPU's benchmark: what decides most comes first, in under nine minutes.

    make gpu OUT=runs/gpu                        # or: python benchmarks/gpu/run.py --out runs/gpu
    make gpu PYTHON=python3                      # another interpreter with torch, transformers and our dependencies
    make gpu ONLY="'steps*' ran"                 # some cases
    make gpu ONLY="'steps*'" WITHOUT=gelu        # each model of ours also without that kernel, in turns
    python benchmarks/gpu/run.py --toy --out here   # the same at toy sizes, on CPU too: figures without a meaning

The cases are in `cases.py`. Each is a process of its own (`measure.py`) with a limit, so one that fails leaves the
others alone; one that runs out of memory is tried again with half the rows. Its sides take turns, three to warm up and
ten that count, fewer if time runs out; the median counts. Results are appended to OUT/results.jsonl as a case ends,
what a case printed is in OUT/*.log, and OUT/table.md is printed at the end. When the minutes are nearly up no other
case is begun, and those left are named. tests/gpu come last. Without a GPU it prints what it would run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

import torch

from benchmarks.gpu import measure
from benchmarks.gpu.cases import CASES, Case
from benchmarks.gpu.models import TOKENS
from benchmarks.gpu.sides import Figures
from benchmarks.gpu.table import tables
from benchmarks.gpu.without import KERNELS
from benchmarks.harness import add_result, matching, parser, read_results
from reread.preprocessing.errors import one_line

ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 20.0
"""With less time left no other case is begun."""
TESTS, TESTS_SECONDS = "tests/gpu", 170.0
DRIVERS = {Path("/proc/driver/nvidia/version"): r"\d+\.\d[\d.]*", Path("/sys/module/amdgpu/version"): r"\S+"}
"""The files in which a driver states its version, and how it looks."""


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
    """The status of `command`, or that it was ended after so many seconds; what it prints goes to `log`.

    Without a GPU our kernels are run by Triton's interpreter."""
    environment = {**({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}), **os.environ}
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} s"
    finally:
        log.seek(0)


def run_case(
    case: Case, tokens: int, out: Path, seconds: float, toy: bool = False, without: Sequence[str] = ()
) -> tuple[list[Figures], str | None]:
    """The lines of a case, from a process that is ended after so many seconds, and why there are no more, or None."""
    label = re.sub(r"[^\w-]+", "-", f"{case.name}-{tokens}")
    with tempfile.TemporaryDirectory() as folder, (out / f"{label}.log").open("w+") as printed:
        command = [sys.executable, measure.__file__, case.name, folder, f"--seconds={seconds}", f"--tokens={tokens}"]
        command += [*["--toy"] * toy, *(["--without", *without] if without else [])]
        status = run_logged(command, printed, seconds)
        results = read_results(Path(folder) / "lines.jsonl")
        said = [line.strip() for line in printed if line.strip()]
    if not status:
        return results, None
    if isinstance(status, str):
        return results, status
    causes = [line for line in said if "out of memory" in line] or said
    return results, causes[-1][:300] if causes else f"status {status}"


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


def tokens_here() -> int:
    """Tokens of a micro-batch on this GPU."""
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else 80
    return TOKENS if memory > 24 else TOKENS // 2


def run_all(
    chosen: Sequence[Case],
    out: Path,
    deadline: float,
    *,
    toy: bool = False,
    tested: bool = False,
    without: Sequence[str] = (),
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results: list[Figures] = []

    def keep(*lines: Figures) -> None:
        for line in lines:
            add_result(out / "results.jsonl", line)

    heading = f"{machine(1)}{', toy sizes' if toy else ''}"
    print(heading, flush=True)
    keep({"machine": heading})
    left: list[str] = []
    for case in chosen:
        tokens = case.times * tokens_here()
        while True:
            seconds = min(case.seconds, deadline - time.monotonic())
            if seconds < LEAST_SECONDS:
                left.append(case.name)
                break
            begin = time.monotonic()
            lines, reason = run_case(case, tokens, out, seconds, toy, without)
            wall = round(time.monotonic() - begin, 1)
            if reason:
                lines.append({"case": case.name, "side": "the rest", "error": reason})
            keep(*({**line, "wall": wall} for line in lines))
            results += lines
            print(f"{case.name}: {outcome(lines)} ({wall:.0f} s)", flush=True)
            if tokens < TOKENS // 16 or "out of memory" not in (reason or ""):
                break
            tokens //= 2
    tests = "not run"
    if tested:
        if deadline - time.monotonic() < LEAST_SECONDS:
            left.append(TESTS)
        else:
            counted = run_tests(out, min(TESTS_SECONDS, deadline - time.monotonic()))
            keep({"case": TESTS, **counted})
            tests = ", ".join(f"{name} {value}" for name, value in counted.items() if value != [])
    text = f"{heading}\n\n{tables(results)}\n\n{TESTS}: {tests}\n"
    text += f"\nNot run, the time was up: {', '.join(left)}\n" if left else ""
    (out / "table.md").write_text(text)
    print(f"\n{text}", flush=True)


def outcome(lines: Sequence[Figures]) -> str:
    """The sides and how many times as fast as the first each is, in a line."""
    return "; ".join(
        f"{one.get('side', 'all')}: {one['error']}" if "error" in one else f"{one['side']} {one.get('times', 1):.2f}x"
        for one in lines[:8]
    ) + (f"; {len(lines) - 8} more" if len(lines) > 8 else "")


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the results")
    arguments.add_argument("--minutes", type=float, default=8.7, help="limit for everything")
    arguments.add_argument("--only", nargs="+", default=["*"], metavar="CASE", help="names or globs of cases")
    arguments.add_argument(
        "--without", nargs="+", choices=[*KERNELS, "all"], default=[], help="kernels that a second side is without"
    )
    arguments.add_argument("--toy", action="store_true", help="small sizes, no tests; on CPU too")
    options = arguments.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    names = matching([*(case.name for case in CASES), *[TESTS] * (not options.toy)], options.only)
    print(f"in {options.minutes:g} minutes: {', '.join(names)}", flush=True)
    if not torch.cuda.is_available() and not options.toy:
        print("torch sees no GPU here, so nothing is run; --toy runs the same at toy sizes")
        return
    chosen = [case for case in CASES if case.name in names]
    run_all(chosen, options.out, deadline, toy=options.toy, tested=TESTS in names, without=options.without)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
