"""A RAN layer's two forms against each other: against the length of a text, and against the size of its windows.

    python benchmarks/ran_windows.py [--lengths 1024 2048 ... 65536] [--window 256] [--windows 64 ... 1024]
        [--length 8192] [--hidden 128 --heads 4 --head-size 32] [--profile rannet] [--rows 1] [--no-review]
        [--dropout 0] [--rounds 4] [--device cuda --dtype float16]

Forms: `parallel` is RanLayer.forward, in which only the chain of cells is sequential; `in turn` is the recurrence as
written, one window after the other. Both are of one layer with one input, and that they give the same is
checked. What is measured is forward without gradients, and forward and backward. The forms take turns step by step.
Memory is what a step's tensors take at most beside input, weights and their gradients, as torch allocates them. Time
is the best of all steps after the first, on CPU in CPU seconds of one thread, which neighbours on the machine disturb
least. There the C library is told to keep freed memory, as torch does on a GPU: mapped anew for each large tensor, it
makes texts of 65,536 tokens up to twice as dear.

The work in windows is linear in the length. Memory review is not: each token looks at one cell a window, 4 L^2 D / W
operations, which --no-review leaves out. Dropout is off unless --dropout says otherwise: then the outputs differ.
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from training.models.ran import RanConfig
from training.models.ran.attention_ran import RanLayer, _Cells, standardise
from training.models.ran.windows_ran import Windows, rotate

PASSES = ("forward", "forward+backward")
Step = Callable[[], object]


def in_turn(
    layer: RanLayer, hidden: torch.Tensor, cell: torch.Tensor, windows: Windows
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `RanLayer.forward` of texts without padding and masks, one window after the other."""
    attention, cells, outputs = layer.attention, _Cells(layer, layer.initial(cell), windows), []
    for window in windows.cut(hidden).unbind(1):
        z = layer.dropout(layer.LayerNorm(torch.cat([cells.all[-1][:, None], window], dim=1)))
        q, k, v = (attention.split(x) for x in attention.project(z))
        q, k = (torch.cat([x[:, :, :1], rotate(x[:, :, 1:], windows.rotary)], dim=2) for x in (q, k))
        output = attention.finish(attention.heads(q, k, v, None), z)
        output = layer.dropout(standardise(output, layer.config))
        cells.update(output[:, 0])
        outputs.append(output[:, 1:])
    tokens = windows.join(torch.stack(outputs, dim=1), hidden.shape[1])
    return layer._review(tokens, cells, windows), cells.all[-1], torch.stack(cells.raw, dim=1)


def steps_of(length: int, window: int, options: argparse.Namespace) -> list[tuple[Step, Step]]:
    """Both passes of the parallel form, and of the other."""
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
    where = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    layer = RanLayer(config).to(**where)
    hidden = torch.randn(options.rows, length, options.hidden).to(**where).requires_grad_()
    cell = torch.randn(options.rows, options.hidden).to(**where).requires_grad_()
    windows = Windows.of(config, hidden, None, None, causal=False)
    for x in (hidden, cell, *layer.parameters()):
        x.grad = torch.zeros_like(x)

    def passes(form: Callable[..., tuple[torch.Tensor, ...]]) -> tuple[Step, Step]:
        def forward() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                return form(hidden, cell, windows)

        def both() -> None:
            tokens, last, _ = form(hidden, cell, windows)
            (tokens.sum() + last.sum()).backward()

        return forward, both

    forms = [passes(layer.forward), passes(partial(in_turn, layer))]
    if not options.dropout:
        tolerance = 1e-3 if options.dtype == "float32" else 0.1
        for ours, theirs in zip(forms[0][0](), forms[1][0](), strict=True):  # type: ignore[call-overload]
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    return forms


def seconds(step: Step, device: str) -> float:
    clock = time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
        clock = time.perf_counter
    start = clock()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def megabytes(step: Step, device: str) -> float:
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]")) / 2**20


def report(cases: list[tuple[int, int]], options: argparse.Namespace) -> None:
    """Milliseconds per 1,024 tokens, so that a column of equal figures is linear in the length."""
    print("| tokens | window | pass | parallel ms/1k | in turn ms/1k | faster | parallel MB | in turn MB |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for length, window in cases:
        pairs = list(zip(*steps_of(length, window, options), strict=True))
        held = [[megabytes(step, options.device) for step in pair] for pair in pairs]
        taken = [[[seconds(s, options.device) for s in pair] for pair in pairs] for _ in range(options.rounds)]
        for number, name in enumerate(PASSES):
            best = (min(times) for times in zip(*(turn[number] for turn in taken), strict=True))
            parallel, in_turn = (1024e3 * of_form / (length * options.rows) for of_form in best)
            print(
                f"| {length:6d} | {window:4d} | {name:16s} | {parallel:8.2f} | {in_turn:8.2f}"
                f" | {in_turn / parallel:4.2f}x | {held[number][0]:6.0f} | {held[number][1]:6.0f} |",
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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    library = ctypes.CDLL(None)
    for parameter, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
        library.mallopt(parameter, value)
    print(
        f"A RAN layer ({options.profile}{', no memory review' if options.no_review else ''}): {options.rows} rows, "
        f"hidden size {options.hidden}, {options.heads} heads of {options.head_size}, dropout {options.dropout}, "
        f"{options.device}, {options.dtype}"
    )
    report([(length, options.window) for length in options.lengths], options)
    if options.windows:
        print()
        report([(options.length, window) for window in options.windows], options)


if __name__ == "__main__":
    main()
