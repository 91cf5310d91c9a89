"""One training step of NEZHA-base on CPU: the fused unclipped attention against the paper's formula written out.

    python benchmarks/nezha_attention.py [--layers 12] [--lengths 128 512 1024] [--rounds 3] [--rows 1] [--dropout 0.1]

Forms: `fused` is rotated_attention; `plain` its rival with the paper's [L, L, h] table, one for all layers (the public
ports keep one a layer); `clipped` the gather form of released checkpoints. A step is forward and backward, the head on
15 % of the tokens. Each form runs in a process of its own, so that its peak memory is its own: what the first step
adds to a model with gradients. The forms take turns; time is the best of all steps after the first,
in CPU seconds of one thread, which neighbours on the machine disturb least.

Attention dropout is off unless --dropout says otherwise: on CPU torch has no fused kernel with dropout (on GPUs it
has), and scaled_dot_product_attention then writes out L x L probabilities like the others.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FORMS = ("fused", "plain", "clipped")


def plain_attention(q: Any, k: Any, v: Any, positions: Any, mask: Any, *, dropout: float) -> Any:
    """As rotated_attention; positions holds the table [L, L, h]."""
    import torch
    import torch.nn.functional as F

    table = positions[0]
    scores = q @ k.transpose(-1, -2) + torch.einsum("bnih,ijh->bnij", q, table)
    scores = scores / q.shape[-1] ** 0.5
    probabilities = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
    return probabilities @ v + torch.einsum("bnij,ijh->bnih", probabilities, table)


def plain_positions(self: Any, length: int, like: Any) -> Any:
    import torch

    from training.models.nezha.attention_nezha import sinusoids

    head_size = self.config.hidden_size // self.config.num_attention_heads
    table = sinusoids(torch.arange(1 - length, length), head_size).to(like.dtype)
    rows = torch.arange(length) - torch.arange(length)[:, None] + length - 1
    return table[rows], torch.zeros((), dtype=torch.complex64)


def measure(form: str, length: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak megabytes of one step."""
    import torch

    from training.models.nezha import NezhaConfig, NezhaForPreTraining, attention_nezha, modeling_nezha

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

    def step(ids: Any, positions: Any) -> float:
        start = time.process_time()
        output = model(
            ids,
            torch.ones_like(ids),
            masked_positions=positions,
            labels=ids.flatten()[positions],
            next_sentence_label=torch.zeros(len(ids), dtype=torch.long),
        )
        output.loss.backward()
        return time.process_time() - start

    step(ids[:, :8], torch.arange(1))  # gradients exist from here on
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step(ids, positions)
    megabytes = resident("VmHWM") - before
    return {"seconds": min(step(ids, positions) for _ in range(2)), "megabytes": megabytes}


def resident(field: str) -> float:
    """Megabytes this process holds now (VmRSS) or held at most (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("FORM", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options)))
        return
    print(f"NEZHA-base width, {options.layers} layers, {options.rows} rows a step, attention dropout {options.dropout}")
    print("length  form     seconds  megabytes  time against plain  memory against plain")
    shared = ["--rows", str(options.rows), "--layers", str(options.layers), "--dropout", str(options.dropout)]
    for length in options.lengths:
        runs: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
        for _ in range(options.rounds):
            for form in FORMS:
                command = [sys.executable, __file__, "--one", form, str(length), *shared]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[form].append(json.loads(output.splitlines()[-1]))
        best = {form: {key: min(run[key] for run in runs[form]) for key in runs[form][0]} for form in FORMS}
        for form in FORMS:
            ours, plain = best[form], best["plain"]
            print(
                f"{length:6d}  {form:7s}  {ours['seconds']:7.3f}  {ours['megabytes']:9.0f}  "
                f"{plain['seconds'] / ours['seconds']:17.2f}x  {plain['megabytes'] / ours['megabytes']:19.2f}x"
            )


if __name__ == "__main__":
    main()
