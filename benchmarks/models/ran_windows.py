"""A RAN layer's two forms against each other: by the length of a text, and by the size of its windows.

    python benchmarks/models/ran_windows.py [--lengths 1024 2048 ... 65536] [--window 256] [--windows 64 ... 1024]
        [--length 8192] [--hidden 128 --heads 4 --head-size 32] [--profile rannet] [--rows 1] [--no-review]
        [--dropout 0] [--rounds 4] [--device cuda --dtype float16]

Forms: `parallel` is RanLayer.forward, in which only the chain of cells is sequential; `in turn` is the recurrence as
written, one window after the other. Both are of one layer with one input, and that they give the same is checked. What
is measured is forward without gradients, and forward and backward, on CPU on one thread. Times are per 1,024 tokens, so
a column of equal figures is linear in the length. Memory is what a step's tensors take besides input, weights and their
gradients.

The work in windows is linear in the length. Memory review is not: each token looks at one cell a window, 4 L^2 D / W
operations, which --no-review leaves out. Dropout is off by default: with it the outputs differ.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import (
    COST_COLUMNS,
    Cost,
    Step,
    attention_parser,
    compare,
    heading,
    in_turns,
    keep_freed_memory,
    step_cost,
)
from reread.preprocessing.errors import one_line
from reread.training.models.blocks import rotate
from reread.training.models.ran import RanConfig
from reread.training.models.ran.attention_ran import RanLayer, _Cells, standardise
from reread.training.models.ran.windows_ran import RanWindows

PASSES = ("forward", "forward+backward")


def in_turn(
    layer: RanLayer, hidden: torch.Tensor, cell: torch.Tensor, windows: RanWindows
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `RanLayer.forward` of texts without padding and masks, one window after the other."""
    attention, cells, outputs = layer.attention, _Cells(layer, layer.initial(cell), windows), []
    assert windows.rotary is not None
    for window in windows.cut(hidden).unbind(1):
        z = layer.dropout(layer.LayerNorm(torch.cat([cells.all[-1][:, None], window], dim=1)))
        q, k, v = (attention.split(x) for x in attention.project(z))
        q, k = (torch.cat([x[:, :, :1], rotate(x[:, :, 1:], windows.rotary)], dim=2) for x in (q, k))
        output = attention.finish(attention.heads(q, k, v, None), z)
        output = layer.dropout(standardise(output, layer.config))
        cells.update(output[:, 0])
        outputs.append(output[:, 1:])
    tokens = windows.join(torch.stack(outputs, dim=1), hidden.shape[1])
    return layer.review_of(tokens, cells.reviewed, windows), cells.all[-1], torch.stack(cells.raw, dim=1)


def steps_of(length: int, window: int, options: argparse.Namespace) -> dict[str, tuple[Step, Step]]:
    """Both passes by form."""
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
    windows = RanWindows.of(config, hidden, None, None, causal=False)

    def passes(form: Callable[..., tuple[Any, ...]]) -> tuple[Step, Step]:
        def forward() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                return form(hidden, cell, windows)[:3]

        def both() -> None:
            tokens, last, *_ = form(hidden, cell, windows)
            (tokens.sum() + last.sum()).backward()

        return forward, both

    forms = {"parallel": passes(lambda *given: layer.forward(*given)[:3]), "in turn": passes(partial(in_turn, layer))}
    if not options.dropout:
        tolerance = 1e-3 if options.dtype == "float32" else 0.1
        outputs = [forward() for forward, _ in forms.values()]
        torch.testing.assert_close(*outputs, atol=tolerance, rtol=tolerance)
    return forms


def report(cases: list[tuple[int, int]], options: argparse.Namespace) -> None:
    heading("tokens", "window", "pass", "form", "ms / 1,024 tokens", *COST_COLUMNS[1:])
    for length, window in cases:
        forms = steps_of(length, window, options)
        for number, name in enumerate(PASSES):
            sides = {form: partial(step_cost, steps[number], options.device) for form, steps in forms.items()}
            share = 1024 / (length * options.rows)
            runs = {
                form: [Cost(share * cost.seconds, cost.megabytes) for cost in costs]
                for form, costs in in_turns(sides, options.rounds).items()
            }
            compare((length, window, name), runs, "in turn")


@one_line()
def main() -> None:
    parser = attention_parser(__doc__, rounds=4)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2**power for power in range(10, 17)])
    parser.add_argument("--window", type=int, default=256, help="of the texts of --lengths")
    parser.add_argument("--windows", type=int, nargs="*", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--length", type=int, default=8192, help="of the texts of --windows")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-size", type=int, default=32)
    parser.add_argument("--profile", default="rannet", choices=("rannet", "paper"))
    parser.add_argument("--no-review", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
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
