"""Longformer-base's self-attention: ours against transformers' own, with the same weights and inputs.

    python benchmarks/longformer_attention.py [--lengths 1024 2048 4096 8192 16384] [--window 512] [--rows 1]
        [--global-tokens 0] [--dropout 0] [--rounds 2] [--device cuda --dtype float16]

What is measured is the whole module, projections included: forward without gradients, and forward and backward. That
both sides give the same is checked. Ours works out its mask in the first step, as a model does in its first layer for
all of one window. Each side runs in a process of its own, so that its peak memory is its own: what a step adds to
inputs and weights. The sides take turns; time is the best of all steps after the first, on CPU in CPU seconds of one
thread, which neighbours on the machine disturb least.

Attention dropout is off unless --dropout says otherwise: on CPU torch has no fused kernel with dropout (on GPUs it
has), and scaled_dot_product_attention then writes out probabilities, for windows only.
"""

import argparse
import ctypes
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDES = ("ours", "theirs")
PASSES = ("forward", "forward+backward")


def attention_of(side: str, options: argparse.Namespace) -> Callable[[Any], Any]:
    """hidden [B, L, D] -> [B, L, D]."""
    import torch
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention as Theirs

    from training.models.longformer.attention_longformer import LongformerSelfAttention, Sight

    windows, dropout = [options.window] * 12, options.dropout
    config = LongformerConfig(attention_window=windows, attention_probs_dropout_prob=dropout)
    marks = torch.ones(options.rows, options.length, dtype=torch.long, device=options.device)
    marks[:, : options.global_tokens] = 2
    torch.manual_seed(0)
    theirs = Theirs(config, 0).to(options.device, options.dtype)
    if side == "ours":
        ours = LongformerSelfAttention(config, options.window // 2).to(options.device, options.dtype)
        ours.load_state_dict(theirs.state_dict())
        sight = Sight(marks if options.global_tokens else None)
        return lambda hidden: ours(hidden, sight)
    is_global = marks == 2
    mask = torch.zeros(marks.shape, device=options.device, dtype=options.dtype)
    mask[is_global] = torch.finfo(options.dtype).max
    masked = torch.zeros_like(is_global)
    return lambda hidden: theirs(hidden, mask, masked, is_global, bool(options.global_tokens))[0]


def measure(side: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak megabytes of both passes, and a mean of the outputs."""
    import torch

    torch.set_num_threads(1)
    options.dtype = getattr(torch, options.dtype)
    attend = attention_of(side, options)
    torch.manual_seed(1)
    hidden = torch.randn(options.rows, options.length, 768, device=options.device, dtype=options.dtype)
    hidden.requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            attend(hidden)

    def both() -> None:
        attend(hidden).sum().backward()

    (hidden.sum() * 0).backward()  # gradients of the input exist from here on
    figures: dict[str, float] = {}
    for name, step in zip(PASSES, (forward, both), strict=True):
        watch = on_gpu if options.device == "cuda" else on_cpu
        figures[f"{name} seconds"], figures[f"{name} megabytes"] = watch(step)
    with torch.no_grad():
        figures["output"] = attend(hidden).float().abs().mean().item()
    return figures


def on_gpu(step: Callable[[], None]) -> tuple[float, float]:
    import torch

    seconds, megabytes = [], 0.0
    for number in range(8):
        torch.cuda.synchronize()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        if number:
            seconds.append(time.perf_counter() - start)
            megabytes = (torch.cuda.max_memory_allocated() - before) / 2**20
    return min(seconds), megabytes


def on_cpu(step: Callable[[], None]) -> tuple[float, float]:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step()
    megabytes, seconds = resident("VmHWM") - before, []
    for _ in range(3):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds), megabytes


def resident(field: str) -> float:
    """Megabytes this process holds now (VmRSS) or held at most (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--window", type=int, default=512, help="to both sides together; lengths are multiples of it")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--global-tokens", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options)))
        return
    print(
        f"Longformer-base's self-attention: {options.rows} rows, window {options.window}, global tokens "
        f"{options.global_tokens}, dropout {options.dropout}, {options.device}, {options.dtype}"
    )
    print(
        f"{'tokens':>6s}  {'pass':16s}  {'ours s':>7s}  {'theirs s':>8s}  {'faster':>7s}"
        f"  {'ours MB':>7s}  {'theirs MB':>9s}  {'leaner':>7s}"
    )
    for length in options.lengths:
        report(length, compare(length, options))


def compare(length: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The least of each figure of each side."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side in SIDES:
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--length", str(length)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs[side].append(json.loads(output.splitlines()[-1]))
    best = {side: {key: min(run[key] for run in runs[side]) for key in runs[side][0]} for side in SIDES}
    outputs = [figures["output"] for figures in best.values()]
    tolerance = 1e-4 if options.dtype == "float32" else 2e-2
    if not options.dropout and not math.isclose(*outputs, rel_tol=tolerance):
        sys.exit(f"the sides differ at {length} tokens: {outputs}")
    return best


def report(length: int, best: dict[str, dict[str, float]]) -> None:
    ours, theirs = best["ours"], best["theirs"]
    for name in PASSES:
        seconds, megabytes = f"{name} seconds", f"{name} megabytes"
        print(
            f"{length:6d}  {name:16s}  {ours[seconds]:7.4f}  {theirs[seconds]:8.4f}"
            f"  {theirs[seconds] / ours[seconds]:6.2f}x  {ours[megabytes]:7.0f}  {theirs[megabytes]:9.0f}"
            f"  {theirs[megabytes] / ours[megabytes]:6.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
