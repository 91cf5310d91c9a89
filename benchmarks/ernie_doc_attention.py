"""ERNIE-Doc-base's attention to memory and segment: the fused form against the einsum-and-shift form written out.

    python benchmarks/ernie_doc_attention.py [--length 512] [--memory 128] [--rows 4] [--rounds 3] [--dropout 0]
        [--layers 0] [--device cuda --dtype float16]

Forms: `fused` is relative_attention of the model; `plain` its rival as Transformer-XL and the authors' code have it:
a product with all distances, shifted by padding and reshaping, added to the product with the keys. What is measured is
attention forward and backward from projected queries, keys, values and distances, or with --layers a training step
of a model of that many layers. Each form runs in a process of its own, so that its peak memory is its own: what the
first step adds to tensors with gradients. The forms take turns; time is the best of all steps after the first,
on CPU in CPU seconds of one thread, which neighbours on the machine disturb least.

Attention dropout is off unless --dropout says otherwise: on CPU torch has no fused kernel with dropout (on GPUs it
has), and scaled_dot_product_attention then writes out probabilities as the plain form does.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMS = ("fused", "plain")


def plain_attention(
    q: Any, k: Any, v: Any, r: Any, biases: Any, term: Any, mask: Any, *, dropout: float, official: bool = False
) -> Any:
    """As relative_attention."""
    import torch
    import torch.nn.functional as F

    (u, w), length, keys = biases, q.shape[1], k.shape[1]
    content = torch.einsum("binh,bjnh->bnij", q + u, k)
    position = torch.einsum("binh,pnh->bnip", q + w, r[:-1])
    padded = F.pad(position, (1, 0)).flatten(2)[..., length:]
    scores = (content + padded.view(position.shape)[..., :keys]) * q.shape[-1] ** -0.5
    for added in (term, mask):
        scores = scores if added is None else scores + added
    return torch.einsum("bnij,bjnh->binh", F.dropout(scores.softmax(-1), dropout), v)


def attention_step(form: str, options: argparse.Namespace) -> Callable[[bool], None]:
    import torch

    from training.models.ernie_doc.attention_ernie_doc import relative_attention

    attend = relative_attention if form == "fused" else plain_attention
    heads, size, keys = 12, 64, options.memory + options.length
    shapes = [(options.rows, options.length), *[(options.rows, keys)] * 2, (keys + options.length,), (), ()]
    q, k, v, r, u, w = (
        torch.randn(*shape, heads, size, device=options.device, dtype=options.dtype, requires_grad=True)
        for shape in shapes
    )
    mask = torch.zeros(options.rows, 1, 1, keys, device=options.device, dtype=options.dtype)

    def step(full: bool) -> None:
        if full:
            attend(q, k, v, r, (u, w), None, mask, dropout=options.dropout).sum().backward()
        else:  # gradients exist from here on
            sum(x.sum() for x in (q, k, v, r, u, w)).backward()  # type: ignore[union-attr]

    return step


def model_step(form: str, options: argparse.Namespace) -> Callable[[bool], None]:
    import torch

    from training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining, attention_ernie_doc

    if form == "plain":
        attention_ernie_doc.relative_attention = plain_attention
    config = ErnieDocConfig(
        num_hidden_layers=options.layers,
        max_position_embeddings=options.length,
        memory_length=options.memory,
        attention_probs_dropout_prob=options.dropout,
    )
    model = ErnieDocForPreTraining(config).to(options.device, options.dtype).train()
    ids = torch.randint(1, config.vocab_size, (options.rows, options.length), device=options.device)
    mems = tuple(torch.randn_like(memory) for memory in model.empty_mems(options.rows))

    def step(full: bool) -> None:
        tokens = ids if full else ids[:, :8]
        places = torch.arange(0, tokens.numel(), 7, device=options.device)
        output = model(
            tokens,
            torch.ones_like(tokens),
            mems=mems,
            masked_positions=places,
            labels=tokens.flatten()[places],
            reorder_labels=torch.zeros_like(tokens[:, 0]),
        )
        output.loss.backward()

    return step


def measure(form: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak megabytes of one step."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    options.dtype = getattr(torch, options.dtype)
    step = (model_step if options.layers else attention_step)(form, options)
    step(False)
    if options.device == "cuda":
        seconds, megabytes = [], 0.0
        for number in range(8):
            torch.cuda.synchronize()
            before, start = torch.cuda.memory_allocated(), time.perf_counter()
            torch.cuda.reset_peak_memory_stats()
            step(True)
            torch.cuda.synchronize()
            if number:
                seconds.append(time.perf_counter() - start)
                megabytes = (torch.cuda.max_memory_allocated() - before) / 2**20
        return {"seconds": min(seconds), "megabytes": megabytes}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step(True)
    megabytes, seconds = resident("VmHWM") - before, []
    for _ in range(3):
        start = time.process_time()
        step(True)
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "megabytes": megabytes}


def resident(field: str) -> float:
    """Megabytes this process holds now (VmRSS) or held at most (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--memory", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.form:
        print(json.dumps(measure(options.form, options)))
        return
    what = f"a step of {options.layers} layers" if options.layers else "attention, forward and backward"
    print(f"ERNIE-Doc-base width, {what}: {options.rows} rows of {options.length} tokens, memory {options.memory}")
    print(f"attention dropout {options.dropout}, {options.device}, {options.dtype}")
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for _ in range(options.rounds):
        for form in FORMS:
            command = [sys.executable, __file__, *sys.argv[1:], "--form", form]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs[form].append(json.loads(output.splitlines()[-1]))
    best = {form: {key: min(run[key] for run in runs[form]) for key in runs[form][0]} for form in FORMS}
    print("form   seconds  megabytes")
    for form, figures in best.items():
        print(f"{form:5s}  {figures['seconds']:7.4f}  {figures['megabytes']:9.0f}")
    fused, plain = best["fused"], best["plain"]
    print(f"fused against plain: {plain['seconds'] / fused['seconds']:.2f}x as fast")
    print(f"fused against plain: {plain['megabytes'] / fused['megabytes']:.2f}x as lean")


if __name__ == "__main__":
    main()
