"""A RAN layer's two forms against each other: against the length of a text, and against the size of its windows.

    python benchmarks/ran_windows.py [--lengths 1024 2048 ... 65536] [--window 256] [--windows 64 ... 1024]
        [--length 8192] [--hidden 128 --heads 4 --head-size 32] [--profile rannet] [--rows 1] [--no-review]
        [--dropout 0] [--rounds 2] [--device cuda --dtype float16]

Forms: `parallel` is RanLayer.forward, in which only the chain of cells is sequential; `in turn` is
RanLayer.by_windows, the recurrence as written. Both have the same weights and input, and that they give the same is
checked. What is measured is one layer: forward without gradients, and forward and backward. Each form runs in a
process of its own, so that its peak memory is its own: what a step adds to input and weights. The forms take turns;
time is the best of all steps after the first, on CPU in CPU seconds of one thread, which neighbours on the machine
disturb least. There the C library is told to keep freed memory, as torch does on a GPU: what it maps anew for each
tensor above 32 MB costs more than a third of the time.

The work in windows is linear in the length. Memory review is not: each token looks at one cell a window, 4 L^2 D / W
operations, which --no-review leaves out. Dropout is off unless --dropout says otherwise: then the outputs differ.
"""

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc's environment variables."""
FORMS = ("parallel", "in turn")
PASSES = ("forward", "forward+backward")


def passes_of(form: str, options: argparse.Namespace) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward, which gives the mean of the outputs' sizes, and forward and backward."""
    import torch

    from training.models.ran import RanConfig
    from training.models.ran.modeling_ran import RanLayer, Windows

    length, window = options.case
    torch.manual_seed(0)
    config = RanConfig(
        profile=options.profile,
        hidden_size=options.hidden,
        num_attention_heads=options.heads,
        head_size=options.head_size,
        window_size=window,
        memory_review=not options.no_review,
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
    )
    layer = RanLayer(config).to(options.device, options.dtype)
    hidden = torch.randn(options.rows, length, options.hidden).to(options.device, options.dtype).requires_grad_()
    cell = torch.randn(options.rows, options.hidden).to(options.device, options.dtype).requires_grad_()
    windows = Windows.of(config, hidden, None, None, causal=False)
    run = layer.forward if form == "parallel" else layer.by_windows
    sum(x.sum() * 0 for x in (hidden, cell, *layer.parameters())).backward()  # type: ignore[union-attr]

    def forward() -> float:
        with torch.no_grad():
            return sum(x.float().abs().mean().item() for x in run(hidden, cell, windows))

    def both() -> None:
        tokens, last, _ = run(hidden, cell, windows)
        (tokens.sum() + last.sum()).backward()

    return forward, both


def measure(form: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak megabytes of both passes, and a mean of the outputs."""
    import torch

    torch.set_num_threads(1)
    options.dtype = getattr(torch, options.dtype)
    forward, both = passes_of(form, options)
    figures: dict[str, float] = {}
    for name, step in zip(PASSES, (forward, both), strict=True):
        watch = on_gpu if options.device == "cuda" else on_cpu
        figures[f"{name} seconds"], figures[f"{name} megabytes"] = watch(step)
    return {**figures, "output": forward()}  # type: ignore[dict-item]


def on_gpu(step: Callable[[], object]) -> tuple[float, float]:
    import torch

    seconds, megabytes = [], 0.0
    for number in range(6):
        torch.cuda.synchronize()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        if number:
            seconds.append(time.perf_counter() - start)
            megabytes = (torch.cuda.max_memory_allocated() - before) / 2**20
    return min(seconds), megabytes


def on_cpu(step: Callable[[], object]) -> tuple[float, float]:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step()
    megabytes, seconds = resident("VmHWM") - before, []
    while len(seconds) < 2 or (sum(seconds) < 0.5 and len(seconds) < 10):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds), megabytes


def resident(field: str) -> float:
    """Megabytes this process holds now (VmRSS) or held at most (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def compare(length: int, window: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The least of each figure of each form."""
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for _ in range(options.rounds):
        for form in FORMS:
            command = [sys.executable, __file__, *sys.argv[1:], "--form", form, "--case", str(length), str(window)]
            environment = {**os.environ, **KEEPING}
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            runs[form].append(json.loads(output.splitlines()[-1]))
    best = {form: {key: min(run[key] for run in runs[form]) for key in runs[form][0]} for form in FORMS}
    outputs = [figures["output"] for figures in best.values()]
    tolerance = 1e-4 if options.dtype == "float32" else 2e-2
    if not options.dropout and not math.isclose(*outputs, rel_tol=tolerance):
        sys.exit(f"the forms differ at {length} tokens, window {window}: {outputs}")
    return best


def table(cases: list[tuple[int, int]], options: argparse.Namespace) -> None:
    """Milliseconds per 1,024 tokens of a row, so that a column of equal figures is linear in the length."""
    print("| tokens | window | pass | parallel ms/1k | in turn ms/1k | faster | parallel MB | in turn MB | leaner |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for length, window in cases:
        parallel, in_turn = compare(length, window, options).values()
        for name in PASSES:
            seconds, megabytes = f"{name} seconds", f"{name} megabytes"
            per_1k = [1024e3 * form[seconds] / (length * options.rows) for form in (parallel, in_turn)]
            print(
                f"| {length:6d} | {window:4d} | {name:16s} | {per_1k[0]:8.2f} | {per_1k[1]:8.2f}"
                f" | {per_1k[1] / per_1k[0]:4.2f}x | {parallel[megabytes]:6.0f} | {in_turn[megabytes]:6.0f}"
                f" | {in_turn[megabytes] / max(parallel[megabytes], 1):4.2f}x |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2**power for power in range(10, 17)])
    parser.add_argument("--window", type=int, default=256, help="of the texts of --lengths")
    parser.add_argument("--windows", type=int, nargs="*", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--length", type=int, default=8192, help="of the texts of --windows")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-size", type=int, default=32)
    parser.add_argument("--profile", default="rannet", choices=("rannet", "paper"))
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--no-review", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--case", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.form:
        print(json.dumps(measure(options.form, options)))
        return
    print(
        f"A RAN layer ({options.profile}{', no memory review' if options.no_review else ''}): {options.rows} rows, "
        f"hidden size {options.hidden}, {options.heads} heads of {options.head_size}, dropout {options.dropout}, "
        f"{options.device}, {options.dtype}"
    )
    table([(length, options.window) for length in options.lengths], options)
    if options.windows:
        print()
        table([(options.length, window) for window in options.windows], options)


if __name__ == "__main__":
    main()
