"""Single operations as sides of a comparison: attention, products, our kernels, the update, CUDA graphs.

On a GPU a turn is timed by its events, behind a pause in which the host queues all calls, so launching them costs
nothing. GB/s and TFLOP/s are of the bytes and FLOPs that `reread plan` counts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.ernie_doc_attention import attended
from benchmarks.gpu.models import NEZHA_512, VOCABULARIES
from benchmarks.gpu.sides import Comparison, Figures, LeftOutError, Place, Side
from reread.pipeline.estimate.rehearsal import META, Ledger, as_on
from reread.pipeline.estimate.work import Work, summed
from reread.training.assembly import Assembly, resolve
from reread.training.kernels.gelu import bias_gelu
from reread.training.kernels.head import losses_of
from reread.training.kernels.language import missing
from reread.training.kernels.layers import dropout_seed
from reread.training.kernels.ran import ran_norm
from reread.training.kernels.residual import residual_output
from reread.training.kernels.rotation import from_heads, to_heads
from reread.training.kernels.shift import BLOCK, relative_attention, relative_bias, split_queries
from reread.training.kernels.sums import add_to
from reread.training.kernels.windows import Options, window_attention
from reread.training.models import blocks
from reread.training.models.ernie_doc.attention_ernie_doc import _RelativeBias
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.ran.attention_ran import standardise
from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.optim.build import set_steps_taken
from reread.training.optim.flat import flat_update
from reread.training.parallel.mesh import Mesh

CALLS = 10
"""Calls of a turn on a GPU."""
PAUSE_CYCLES = 20_000_000
"""About 10 ms."""

Function = Callable[..., Tensor | tuple[Tensor, ...]]


class Operation:
    """`function` of tensors and, unless `is_forward`, the gradients of those of floating point."""

    def __init__(
        self,
        place: Place,
        function: Function,
        given: Sequence[Tensor],
        *,
        is_forward: bool = False,
        is_compared: bool = False,
        function_on_meta: Function | None = None,
    ) -> None:
        self.place, self.function, self.is_compared = place, function, is_compared
        self.given = [one.detach().requires_grad_(one.is_floating_point() and not is_forward) for one in given]
        self.work = _counted(function_on_meta or function, self.given)

    def turn(self) -> Figures:
        return {"ms": _milliseconds(lambda: _run(self.function, self.given), self.place)}

    def about(self) -> Figures:
        return {"bytes": self.work.bytes, "flops": self.work.flops, "launches": self.work.launches}

    def results(self) -> Sequence[Tensor]:
        return _run(self.function, self.given) if self.is_compared else ()

    def close(self) -> None:
        self.given.clear()


def _run(function: Function, given: Sequence[Tensor]) -> list[Tensor]:
    """The outputs and the gradients of their sum."""
    learning = [one for one in given if one.requires_grad]
    with torch.set_grad_enabled(bool(learning)):
        output = function(*given)
    outputs = output if isinstance(output, tuple) else (output,)
    ones = [torch.ones_like(one) for one in outputs]
    gradients = torch.autograd.grad(outputs, learning, ones) if learning else ()
    return [*(one.detach() for one in outputs), *gradients]


def _counted(function: Function, given: Sequence[Tensor]) -> Work:
    likes = [torch.empty_like(one, device=META).requires_grad_(one.requires_grad) for one in given]
    with Ledger() as ledger, as_on("gpu", ledger):
        _run(function, likes)
    return summed([*ledger.work.values()])


def _milliseconds(call: Callable[[], object], place: Place) -> float:
    """Of one call."""
    if not place.is_gpu:
        begin = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - begin)
    begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(PAUSE_CYCLES)
    begins.record()
    for _ in range(CALLS):
        call()
    ends.record()
    torch.cuda.synchronize()
    return begins.elapsed_time(ends) / CALLS


def _random(place: Place, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.randn(shape, device=place.device, dtype=dtype or place.dtype)


# Attention

BACKENDS = {
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}


def attention(place: Place) -> Iterator[Comparison]:
    """The kernels, for heads of 64 columns, twice that as NEZHA has them, and what a low rank of its table would need,
    at two lengths, with dropout and without, on rows without padding."""
    for length in (32,) if place.toy else (512, 128):
        for size in (16,) if place.toy else (64, 128, 96, 104):
            for dropout in (0.0, 0.1):
                heads = 2 if place.toy else 12
                shape = max(1, place.tokens // length), heads, length, size
                yield Comparison(
                    f"attention, {length} tokens, heads of {size}, dropout {dropout:g}",
                    {name: partial(_attention, backend=backend, shape=shape, dropout=dropout)
                     for name, backend in (BACKENDS if place.is_gpu else {"math": SDPBackend.MATH}).items()},
                )  # fmt: skip


def _attention(place: Place, backend: SDPBackend, shape: tuple[int, ...], dropout: float) -> Side:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)

    return Operation(
        place,
        attend,
        [_random(place, *shape) for _ in range(3)],
        function_on_meta=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout),
    )


# Products


def products(place: Place) -> Iterator[Comparison]:
    """Three products for query, key and value or one; how a product's weight gradient gets into the float32 buckets;
    and more tokens at a time."""
    width, inner = (32, 64) if place.toy else (768, 3072)
    tokens = place.tokens

    def three(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.linear(x, weight) for weight in weights)

    def one(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, torch.cat(weights)).chunk(3, dim=-1)

    def side(function: Function, *shapes: tuple[int, ...]) -> Callable[[Place], Side]:
        return lambda place: Operation(place, function, [_random(place, *shape) for shape in shapes])

    of_three = (tokens, width), (width, width), (width, width), (width, width)
    yield Comparison(
        "query, key and value", {f"3 x {width}": side(three, *of_three), f"1 x {3 * width}": side(one, *of_three)}
    )

    def added(dy: Tensor, x: Tensor, total: Tensor) -> Tensor:
        return total.add_(dy.T @ x)

    def fused(dy: Tensor, x: Tensor, total: Tensor) -> Tensor:
        return torch.addmm(total, dy.T, x, out_dtype=torch.float32, out=total)

    def gradient(function: Function) -> Callable[[Place], Side]:
        def build(place: Place) -> Side:
            if function is fused and not place.is_gpu:
                raise LeftOutError("torch.addmm has no out_dtype on a CPU")
            total = _random(place, inner, width, dtype=torch.float32)
            given = [_random(place, tokens, inner), _random(place, tokens, width), total]
            return Operation(place, function, given, is_forward=True, function_on_meta=added)

        return build

    yield Comparison("a weight's gradient, added in float32", {"mm + add_": gradient(added), "addmm": gradient(fused)})

    def twice(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.linear(half, weight) for half in x.chunk(2))

    shapes = (2 * tokens, width), (inner, width)
    yield Comparison(
        f"{width} to {inner} columns",
        {f"2 x {tokens}": side(twice, *shapes), f"1 x {2 * tokens}": side(F.linear, *shapes)},
    )


# Kernels of our own


class Own(NamedTuple):
    """A kernel beside the operations that it replaces."""

    name: str
    plain: Function
    ours: Function
    shapes: tuple[tuple[int, ...], ...]
    fixed: tuple[Tensor, ...] = ()
    """Tensors that follow and have no gradient."""
    is_compared: bool = True
    is_forward: bool = False


def own_kernels(place: Place) -> Iterator[Comparison]:
    """Forward and backward of each kernel beside the plain form; with dropout the two drop other elements."""
    for one in _own(place):
        yield Comparison(one.name, {"plain": partial(_plain, one=one), "ours": partial(_ours, one=one)})


def _plain(place: Place, one: Own) -> Side:
    return _operation(place, one, one.plain)


def _ours(place: Place, one: Own) -> Side:
    if reason := missing():
        raise LeftOutError(reason)
    return _operation(place, one, one.ours)


def _operation(place: Place, one: Own, function: Function) -> Side:
    torch.manual_seed(0)  # the same numbers on both sides
    given = [_random(place, *shape) for shape in one.shapes]
    return Operation(
        place,
        lambda *tensors: function(*tensors, *one.fixed),
        given,
        is_forward=one.is_forward,
        is_compared=one.is_compared,
        function_on_meta=lambda *tensors: function(*tensors, *(fixed.to(META) for fixed in one.fixed)),
    )


def _by_shift(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor) -> Tensor:
    return relative_attention(q, k, v, r, (u, w), None, None, dropout=0.0)


def _in_one_kernel(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor) -> Tensor:
    return attended(q, k, v, r, u, w, None, 0.0, 0)[0]  # type: ignore[no-any-return]


def _own(place: Place) -> Iterator[Own]:
    length, heads, size, inner = (8, 2, 16, 64) if place.toy else (512, 12, 64, 3072)
    rows = 1 if place.toy else max(1, place.tokens // length)
    width, tokens = heads * size, rows * length
    wide, column = (tokens, width), (width,)
    turns = torch.rand(length, size // 2, 2, device=place.device)
    features = torch.rand(length, size, device=place.device)

    def norm(probability: float) -> tuple[Function, Function]:
        def plain(x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            return F.layer_norm(residual + F.dropout(x + bias, probability), column, gamma, beta, 1e-5)

        def ours(x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            seed = dropout_seed(place.device) if probability else 0
            return residual_output(x, bias, residual, gamma, beta, 1e-5, probability, seed)

        return plain, ours

    def plain_heads(qkv: Tensor, features: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (one.unflatten(-1, (heads, size)).transpose(1, 2) for one in qkv.chunk(3, dim=-1))
        shared = features.to(k.dtype).expand_as(k)
        back = blocks.rotate(q, turns, back=True)
        return tuple(torch.cat(pair, dim=-1) for pair in ((q, back), (k, shared), (v, shared)))

    def plain_output(z: Tensor, turns: Tensor) -> Tensor:
        content, relative = z.chunk(2, dim=-1)
        return (content + blocks.rotate(relative, turns)).transpose(1, 2).flatten(2)

    def plain_bias(q: Tensor, u: Tensor, w: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        content, position = ((q + bias) * size**-0.5 for bias in (u, w))
        return content, _RelativeBias.apply(position, table, None)

    def our_bias(q: Tensor, u: Tensor, w: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        content, position = split_queries(q, u, w, min(BLOCK, length))
        return content, relative_bias(position, table, None, length)

    def our_gelu(x: Tensor, bias: Tensor) -> Tensor:
        return bias_gelu(x, bias, False)

    def plain_sum(value: Tensor, total: Tensor) -> Tensor:
        return total.add_(value)

    def our_sum(value: Tensor, total: Tensor) -> Tensor:
        add_to([total], [value])
        return total

    words = 50 if place.toy else VOCABULARIES["nezha-base"]
    labels = torch.arange(tokens, device=place.device) % words

    def plain_losses(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(features, weight, bias).float(), labels, reduction="none")

    def our_losses(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return losses_of(F.linear(features, weight, bias), labels, words)[0]

    of_norm = wide, column, wide, column, column
    yield Own("residual and norm", *norm(0.0), of_norm)
    yield Own("residual, dropout and norm", *norm(0.1), of_norm, is_compared=False)
    yield Own("bias and GELU", lambda x, bias: F.gelu(x + bias), our_gelu, ((tokens, inner), (inner,)))
    yield Own("NEZHA's heads", plain_heads, to_heads, ((rows, length, 3 * width),), (features, turns))
    yield Own("NEZHA's output", plain_output, from_heads, ((rows, heads, length, 2 * size),), (turns,))
    keys = length + length // 4
    segment, context, bias = (rows, length, heads, size), (rows, keys, heads, size), (heads, size)
    table = keys + length, heads, size
    yield Own("ERNIE-Doc's queries and bias", plain_bias, our_bias, (segment, bias, bias, table))
    of_attention = segment, context, context, table, bias, bias
    yield Own("ERNIE-Doc's attention in one kernel", _by_shift, _in_one_kernel, of_attention)
    yield from _own_of_ran(place)
    of_head = (tokens // 6, width), (words, width), (words,)
    yield Own("losses of words", plain_losses, our_losses, of_head, (labels[: tokens // 6],))
    total = torch.zeros(inner, width, device=place.device)
    yield Own("a sum in float32", plain_sum, our_sum, ((inner, width),), (total,), is_compared=False, is_forward=True)


def _own_of_ran(place: Place) -> Iterator[Own]:
    positions, heads, size = (4, 2, 16) if place.toy else (256, 12, 768)
    rows = 2 if place.toy else max(1, place.tokens // positions)
    config = RanConfig(layer_norm_eps=1e-5)

    def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return standardise(x, config) * weight + bias

    def our_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ran_norm(x, None, None, weight, bias, 1e-5)[0]

    def plain_window(q: Tensor, k: Tensor, v: Tensor, turns: Tensor) -> Tensor:
        q, k, v = (F.silu(one).unflatten(-1, (heads, size)).transpose(1, 2) for one in (q, k, v))
        q, k = (torch.cat([one[:, :, :1], blocks.rotate(one[:, :, 1:], turns)], dim=2) for one in (q, k))
        scores = (q * size**-0.5) @ k.transpose(-1, -2)
        return (scores.float().softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)

    def our_window(q: Tensor, k: Tensor, v: Tensor, turns: Tensor) -> Tensor:
        return window_attention([q, k, v], Options(size, True, turns, None, 0.0, 0))

    wide, column = (rows * positions, size), (size,)
    yield Own("RAN's norm", plain_norm, our_norm, (wide, column, column))
    window = rows, 1 + positions, heads * size
    turns = torch.rand(positions, size // 2, 2, device=place.device)
    yield Own("RAN's window", plain_window, our_window, (window,) * 3, (turns,))


# The update


class Update:
    """LAMB's second step on the weights of nezha-base; the gradients are the same numbers each time."""

    def __init__(self, place: Place, how: str) -> None:
        self.place = place
        assembly, update = _updating(place, place.device, how == "ours")
        assembly.buckets.flat.copy_(torch.arange(assembly.buckets.flat.numel(), device=place.device).sin())
        self.masters = assembly.masters.masters
        plain = assembly.masters.step if how != "compiled" else torch.compile(assembly.masters.step, dynamic=False)
        self.optimizer = assembly.optimizer
        self.gradients = assembly.buckets.flat
        self.kept = self.gradients.clone()
        self.step = update or partial(plain, assembly.optimizer, assembly.buckets)
        with Ledger() as ledger, as_on("gpu", ledger):
            counted, update = _updating(place, META, how == "ours")
            ledger.work.clear()
            (update or partial(counted.masters.step, counted.optimizer, counted.buckets))(1e-4, 1.0)
        self.work = summed([*ledger.work.values()])

    def turn(self) -> Figures:
        self.gradients.copy_(self.kept)
        set_steps_taken(self.optimizer, 1)  # the number is a constant in compiled code
        if not self.place.is_gpu:
            return {"ms": _milliseconds(lambda: self.step(1e-4, 1.0), self.place)}
        torch.cuda.synchronize()  # as a step begins its update: with nothing queued
        begin = time.perf_counter()
        self.step(1e-4, 1.0)
        torch.cuda.synchronize()
        return {"ms": 1000 * (time.perf_counter() - begin)}

    def about(self) -> Figures:
        return {"bytes": self.work.bytes, "launches": self.work.launches}

    def results(self) -> Sequence[Tensor]:
        return [master.detach() for master in self.masters.values()]

    def close(self) -> None:
        self.masters = {}


def _updating(place: Place, device: torch.device, by_kernels: bool) -> tuple[Assembly, Callable[..., None] | None]:
    """A model with its optimiser on `device`, and the update by kernels."""
    tiny = "model.hidden_size=32", "model.num_hidden_layers=1", "model.intermediate_size=32"
    model = replace(NEZHA_512, toy=tiny)
    settings = model.settings(place.folder / "unused", place.precision, 1, place.toy)
    settings = settings.model_copy(update={"kernels": "plain"})
    vocabulary = 64 if place.toy else VOCABULARIES[model.recipe]
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assembly = Assembly(resolve(settings, vocabulary, None, special), Mesh(device=device), place.dtype)
    flat = flat_update(assembly.optimizer, assembly.masters, assembly.buckets) if by_kernels else None
    return assembly, flat


def update(place: Place) -> Iterator[Comparison]:
    yield Comparison("LAMB, its launches included", {"plain": partial(Update, how="plain"), "ours": _our_update})


def compiled_update(place: Place) -> Iterator[Comparison]:
    yield Comparison(
        "LAMB, its launches included", {"plain": partial(Update, how="plain"), "compiled": _compile_update}
    )


def _our_update(place: Place) -> Side:
    if reason := missing():
        raise LeftOutError(reason)
    return Update(place, "ours")


def _compile_update(place: Place) -> Side:
    if not place.is_gpu:
        raise LeftOutError("is compiled on a GPU alone")
    torch._dynamo.config.specialize_float = True  # rate and factor are constants; as symbols torch 2.13 fails
    return Update(place, "compiled")


# CUDA graphs


class Few:
    """Forward and backward of nezha-base by torch's operations on few rows, launched one by one or as a CUDA graph."""

    def __init__(self, place: Place, rows: int, is_graph: bool) -> None:
        if is_graph and not place.is_gpu:
            raise LeftOutError("CUDA graphs need a GPU")
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        model: nn.Module = NezhaForPreTraining(NezhaConfig(vocab_size=500, **sizes) if place.toy else NezhaConfig())  # type: ignore[arg-type]
        self.model = model.to(place.device, place.dtype).train()
        self.place = place
        self.ids = torch.randint(5, 500, (rows, 16 if place.toy else 128), device=place.device)
        self.call: Callable[[], object] = self.step
        if is_graph:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.step()
            torch.cuda.current_stream().wait_stream(stream)
            self.model.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            self.call = graph.replay

    def step(self) -> None:
        logits = self.model(input_ids=self.ids).prediction_logits
        logits.float().logsumexp(-1).mean().backward()

    def turn(self) -> Figures:
        if self.place.is_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        self.call()
        if self.place.is_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        return {"ms": 1000 * seconds, "tokens_per_second": self.ids.numel() / seconds}

    def about(self) -> Figures:
        return {}

    def results(self) -> Sequence[Tensor]:
        return ()

    def close(self) -> None:
        return


def graphs(place: Place) -> Iterator[Comparison]:
    for rows in (2,) if place.toy else (8, 16, 32):
        sides: dict[str, Callable[[Place], Side]] = {
            "one by one": partial(Few, rows=rows, is_graph=False),
            "graph": partial(Few, rows=rows, is_graph=True),
        }
        yield Comparison(f"{rows} rows of {16 if place.toy else 128} tokens", sides)
