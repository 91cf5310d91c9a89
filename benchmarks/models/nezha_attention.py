"""One training step of NEZHA-base on CPU: the fused unclipped attention against the paper's formula written out.

    python benchmarks/models/nezha_attention.py [--layers 12] [--lengths 128 512 1024] [--rounds 3] [--rows 1]
        [--dropout 0.1]

Forms: `fused` is rotated_attention; `plain` has the paper's [L, L, h] table, one for all layers (the public ports keep
one a layer); `clipped` is the gather form of released checkpoints. A step is forward and backward, the head on 15 % of
the tokens. Each form runs in a process of its own, on one thread.

Attention dropout is off by default: on CPU torch has no fused kernel with dropout (on GPUs it has), and
scaled_dot_product_attention then writes out L x L probabilities like the others.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import COST_COLUMNS, Cost, compare, heading, in_process, in_turns, parser, step_cost
from reread.preprocessing.errors import one_line
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining, attention_nezha, modeling_nezha

FORMS = ("fused", "plain", "clipped")


def plain_attention(q: Any, k: Any, v: Any, positions: Any, mask: Any, *, dropout: float) -> Any:
    """As rotated_attention; positions holds the table [L, L, h]."""
    table = positions[0]
    scores = q @ k.transpose(-1, -2) + torch.einsum("bnih,ijh->bnij", q, table)
    scores = scores / q.shape[-1] ** 0.5
    probabilities = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
    return probabilities @ v + torch.einsum("bnij,ijh->bnih", probabilities, table)


def plain_positions(self: Any, length: int, like: Any) -> Any:
    head_size = self.config.hidden_size // self.config.num_attention_heads
    table = attention_nezha.sinusoids(torch.arange(1 - length, length), head_size).to(like.dtype)
    rows = torch.arange(length) - torch.arange(length)[:, None] + length - 1
    return attention_nezha.Rotations(table[rows], torch.zeros(()))


def measure(form: str, length: int, options: argparse.Namespace) -> Cost:
    if form == "plain":
        attention_nezha.rotated_attention = plain_attention
        modeling_nezha.NezhaEncoder._positions = plain_positions  # type: ignore[method-assign]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = NezhaConfig(
        num_hidden_layers=options.layers,
        max_relative_position=64 if form == "clipped" else None,
        attention_probs_dropout_prob=options.dropout,
    )
    model = NezhaForPreTraining(config).train()
    ids = torch.randint(1, config.vocab_size, (options.rows, length))
    positions = torch.randperm(ids.numel())[: ids.numel() * 15 // 100].sort().values

    def step() -> None:
        output = model(
            ids,
            torch.ones_like(ids),
            masked_positions=positions,
            labels=ids.flatten()[positions],
            next_sentence_label=torch.zeros(len(ids), dtype=torch.long),
        )
        output.loss.backward()

    return step_cost(step)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024])
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--rows", type=int, default=1)
    arguments.add_argument("--dropout", type=float, default=0.0)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    print(f"NEZHA-base width, {options.layers} layers, {options.rows} rows a step, attention dropout {options.dropout}")
    heading("tokens", "form", *COST_COLUMNS)
    for length in options.lengths:
        sides = {form: partial(in_process, measure, form, length, options) for form in FORMS}
        compare((length,), in_turns(sides, options.rounds), "plain")


if __name__ == "__main__":
    main()
