"""ERNIE-Doc-base's attention to memory and segment: the fused form against the einsum-and-shift form written out.

    python benchmarks/models/ernie_doc_attention.py [--length 512] [--memory 128] [--rows 4] [--rounds 3]
        [--dropout 0] [--layers 0] [--device cuda --dtype float16]

Forms: `fused` is relative_attention of the model; `plain` is that of Transformer-XL and of the authors' code: a product
with all distances, shifted by padding and reshaping, added to the product with the keys. A step is attention forward
and backward from projected queries, keys, values and distances, or with --layers a training step of a model of that
many layers. Each form runs in a process of its own, on CPU on one thread.

Attention dropout is off by default: on CPU torch has no fused kernel with dropout (on GPUs it has), and
scaled_dot_product_attention then writes out probabilities as the plain form does.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import (
    COST_COLUMNS,
    Cost,
    Step,
    attention_parser,
    compare,
    heading,
    in_process,
    in_turns,
    step_cost,
)
from reread.preprocessing.errors import one_line
from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining, attention_ernie_doc

FORMS = ("fused", "plain")


def plain_attention(
    q: Any,
    k: Any,
    v: Any,
    r: Any,
    biases: Any,
    term: Any,
    mask: Any,
    *,
    dropout: float,
    official: bool = False,
    gap: int = 0,
) -> Any:
    """As relative_attention, where no columns are left out (`gap`)."""
    (u, w), length, keys = biases, q.shape[1], k.shape[1]
    content = torch.einsum("binh,bjnh->bnij", q + u, k)
    position = torch.einsum("binh,pnh->bnip", q + w, r[:-1])
    padded = F.pad(position, (1, 0)).flatten(2)[..., length:]
    scores = (content + padded.view(position.shape)[..., :keys]) * q.shape[-1] ** -0.5
    for added in (term, mask):
        scores = scores if added is None else scores + added
    return torch.einsum("bnij,bjnh->binh", F.dropout(scores.softmax(-1), dropout), v)


def attention_step(form: str, options: argparse.Namespace) -> Step:
    attend = attention_ernie_doc.relative_attention if form == "fused" else plain_attention
    heads, size, keys = 12, 64, options.memory + options.length
    shapes = [(options.rows, options.length), *[(options.rows, keys)] * 2, (keys + options.length,), (), ()]
    q, k, v, r, u, w = (
        torch.randn(*shape, heads, size, device=options.device, dtype=options.dtype, requires_grad=True)
        for shape in shapes
    )
    mask = torch.zeros(options.rows, 1, 1, keys, device=options.device, dtype=options.dtype)

    return lambda: attend(q, k, v, r, (u, w), None, mask, dropout=options.dropout).sum().backward()


def model_step(form: str, options: argparse.Namespace) -> Step:
    if form == "plain":
        attention_ernie_doc.ErnieDocSelfAttention.attend = staticmethod(plain_attention)
    config = ErnieDocConfig(
        num_hidden_layers=options.layers,
        max_position_embeddings=options.length,
        memory_length=options.memory,
        attention_probs_dropout_prob=options.dropout,
    )
    model = ErnieDocForPreTraining(config).to(options.device, options.dtype).train()
    ids = torch.randint(1, config.vocab_size, (options.rows, options.length), device=options.device)
    mems = tuple(torch.randn_like(memory) for memory in model.empty_mems(options.rows))

    places = torch.arange(0, ids.numel(), 7, device=options.device)

    def step() -> None:
        output = model(
            ids,
            torch.ones_like(ids),
            mems=mems,
            masked_positions=places,
            labels=ids.flatten()[places],
            reorder_labels=torch.zeros_like(ids[:, 0]),
        )
        output.loss.backward()

    return step


def measure(form: str, options: argparse.Namespace) -> Cost:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options.dtype = getattr(torch, options.dtype)
    return step_cost((model_step if options.layers else attention_step)(form, options), options.device)


@one_line()
def main() -> None:
    parser = attention_parser(__doc__, rounds=3, rows=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--memory", type=int, default=128)
    parser.add_argument("--layers", type=int, default=0)
    options = parser.parse_args()
    what = f"a step of {options.layers} layers" if options.layers else "attention, forward and backward"
    print(f"ERNIE-Doc-base width, {what}: {options.rows} rows of {options.length} tokens, memory {options.memory}")
    print(f"attention dropout {options.dropout}, {options.device}, {options.dtype}")
    heading("form", *COST_COLUMNS)
    sides = {form: partial(in_process, measure, form, options) for form in FORMS}
    compare((), in_turns(sides, options.rounds), "plain")


if __name__ == "__main__":
    main()
