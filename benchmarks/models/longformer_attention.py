"""Longformer-base's self-attention: ours against transformers' own, with the same weights and inputs.

    python benchmarks/models/longformer_attention.py [--lengths 1024 2048 4096 8192 16384] [--window 512] [--rows 1]
        [--global-tokens 0] [--dropout 0] [--rounds 2] [--device cuda --dtype float16]

What is measured is the whole module, projections included: forward without gradients, and forward and backward. That
both sides give the same is checked. Ours computes its mask in the first step, as a model does in its first layer for
all of one window. Each side runs in a process of its own, on CPU on one thread.

Attention dropout is off by default: on CPU torch has no fused kernel with dropout (on GPUs it has), and
scaled_dot_product_attention then writes out probabilities, for windows only.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention as Theirs

from benchmarks.harness import COST_COLUMNS, Cost, attention_parser, compare, heading, in_process, in_turns, step_cost
from reread.preprocessing.errors import one_line
from reread.training.models.longformer.attention_longformer import LongformerSelfAttention, Sight

SIDES = ("ours", "theirs")
PASSES = ("forward", "forward+backward")


def attention_of(side: str, options: argparse.Namespace) -> Callable[[Any], Any]:
    """hidden [B, L, D] -> [B, L, D]."""
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


def measure(side: str, length: int, options: argparse.Namespace) -> tuple[dict[str, Cost], float]:
    """Costs by pass, and a mean of the outputs."""
    torch.set_num_threads(1)
    options.length, options.dtype = length, getattr(torch, options.dtype)
    attend = attention_of(side, options)
    torch.manual_seed(1)
    hidden = torch.randn(options.rows, length, 768, device=options.device, dtype=options.dtype, requires_grad=True)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return attend(hidden)

    def both() -> None:
        attend(hidden).sum().backward()

    costs = [step_cost(step, options.device) for step in (forward, both)]
    return dict(zip(PASSES, costs, strict=True)), forward().float().abs().mean().item()


@one_line()
def main() -> None:
    parser = attention_parser(__doc__, rounds=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--window", type=int, default=512, help="to both sides together; lengths are multiples of it")
    parser.add_argument("--global-tokens", type=int, default=0)
    options = parser.parse_args()
    print(
        f"Longformer-base's self-attention: {options.rows} rows, window {options.window}, global tokens "
        f"{options.global_tokens}, dropout {options.dropout}, {options.device}, {options.dtype}"
    )
    heading("tokens", "pass", "side", *COST_COLUMNS)
    for length in options.lengths:
        runs = in_turns({side: partial(in_process, measure, side, length, options) for side in SIDES}, options.rounds)
        outputs = [run[1] for side in SIDES for run in runs[side][:1]]
        tolerance = 1e-4 if options.dtype == "float32" else 2e-2
        if not options.dropout and not math.isclose(*outputs, rel_tol=tolerance):
            sys.exit(f"the sides differ at {length} tokens: {outputs}")
        for name in PASSES:
            costs = {side: [run[0][name] for run in runs[side]] for side in SIDES}
            compare((length, name), costs, "theirs")


if __name__ == "__main__":
    main()
