"""Tensor parallelism applied from outside: a plan names the layers of a plain model that become megatron-core's.

A plan maps globs of module or parameter names to kinds; the first that matches counts:

    column      a Linear split over its outputs (Shoeybi et al. 2019, section 3)
    row         the Linear after it, split over its inputs; its output is whole again
    vocabulary  an Embedding, Linear or Parameter split over the vocabulary in its first dimension, padded with zeros
                to a multiple of 128 rows a process; a Linear's padding logits are the least finite number
    attention   a module whose positional tensors, as far as they have a gradient, are inputs of column layers only: the
                gradient is summed once for all of them, and dropout inside differs between tensor ranks; where heads
                are unlike, its `keep_heads` is told which of them this rank has
    split       a module without parameters that computes on this rank's heads: dropout inside differs between ranks
    heads       a Parameter of an attention module that is split over heads in its first dimension
    shared      a Parameter that every tensor rank holds whole but uses for its own heads: its gradient is summed
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reread.preprocessing.errors import UserError
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh

VOCABULARY_MULTIPLE = 128
"""Rows per process: tensor cores need aligned matrices."""


def parallelise(model: nn.Module, plan: Mapping[str, str], mesh: Mesh) -> None:
    """Cut `model`'s full weights in place to this tensor rank's part; tied parameters stay tied.

    With one tensor rank only the vocabulary is padded. Raises `UserError` if a layer or the attention heads do not
    divide by the tensor-parallel size.
    """
    heads = getattr(getattr(model, "config", None), "num_attention_heads", mesh.tensor_size)
    if heads % mesh.tensor_size:
        raise UserError(f"train.parallel.tensor: {heads} attention heads do not divide by {mesh.tensor_size}")
    kinds = {name: _kind(name, plan) for name, _ in model.named_modules()}
    attentions = tuple(f"{name}." for name, kind in kinds.items() if kind == "attention")
    # Replace the layers that are split.
    cut = _Cut(mesh)
    for name, kind in kinds.items():
        module = model.get_submodule(name)
        if kind == "vocabulary":
            _set(model, name, _split_vocabulary(module, cut, name))
        elif kind in ("attention", "split") and mesh.tensor_size > 1:
            _split_attention(module, mesh, sum_inputs=kind == "attention")
            if keep := getattr(module, "keep_heads", None):
                keep(mesh.tensor_rank * heads // mesh.tensor_size, heads // mesh.tensor_size)
        elif kind == "column" and mesh.tensor_size > 1:
            _set(model, name, _column(module, cut, name, reduce_input=not name.startswith(attentions)))
        elif kind == "row" and mesh.tensor_size > 1:
            _set(model, name, _row(module, cut, name))
    # Cut parameters that belong to no such layer, and tie again what was tied.
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        kind = _kind(name, plan)
        if kind == "vocabulary" and not hasattr(parameter, "logical_shape"):
            cut(parameter, 0, name, VOCABULARY_MULTIPLE)
        elif kind == "heads" and mesh.tensor_size > 1:
            cut(parameter, 0, name)
        elif kind == "shared" and mesh.tensor_size > 1 and parameter.requires_grad:
            parameter.register_hook(_sum_over(mesh))
        if id(parameter) in cut.done:  # itself, or tied to one that a layer holds
            _set(model, name, cut.done[id(parameter)][1])


def layout(model: nn.Module, mesh: Mesh) -> dict[str, Slice]:
    """The location of each parameter of a parallelised model in its logical (whole, unpadded) tensor."""
    slices = {}
    for name, parameter in model.named_parameters():
        shape: tuple[int, ...] = getattr(parameter, "logical_shape", tuple(parameter.shape))
        dim: int | None = getattr(parameter, "partition_dim", None)
        cuts = () if dim is None else tuple(parameter.shape[dim] * rank for rank in range(mesh.tensor_size + 1))
        slices[name] = Slice(shape, dim, cuts, mesh.tensor_rank)
    return slices


def vocab_cross_entropy(logits: Tensor, labels: Tensor, mesh: Mesh) -> Tensor:
    """-log softmax at the labels, at least float32 [n], of logits [n, V / tensor_size] split over the vocabulary."""
    if mesh.tensor_size == 1:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, labels, reduction="none")
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    # a copy, because megatron-core writes into float32 logits
    return vocab_parallel_cross_entropy(logits.to(torch.float32, copy=True), labels)


def vocab_argmax(logits: Tensor, mesh: Mesh) -> Tensor:
    """The best id [n] over the whole vocabulary, from logits [n, V / tensor_size]."""
    best, index = logits.max(dim=-1)
    if mesh.tensor_size == 1:
        return index
    mine = torch.stack([best.double(), (index + mesh.tensor_rank * logits.shape[-1]).double()])
    everyone = [torch.empty_like(mine) for _ in range(mesh.tensor_size)]
    dist.all_gather(everyone, mine, group=mesh.tensor_group)
    values, ids = torch.stack(everyone, dim=1)
    return ids.gather(0, values.argmax(dim=0, keepdim=True)).squeeze(0).long()


def whole_vocabulary(logits: Tensor, mesh: Mesh) -> Tensor:
    """Logits [n, V] from logits [n, V / tensor_size] split over the vocabulary; without gradient."""
    if mesh.tensor_size == 1:
        return logits
    everyone = [torch.empty_like(logits) for _ in range(mesh.tensor_size)]
    dist.all_gather(everyone, logits.contiguous(), group=mesh.tensor_group)
    return torch.cat(everyone, dim=-1)


class _Cut:
    """Cuts this rank's part out of full parameters; a parameter that is cut twice gives the same part."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.done: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        """id of a full parameter -> it, which is kept so that the id is not reused, and its part."""

    @torch.no_grad()
    def __call__(self, full: nn.Parameter, dim: int, name: str, multiple: int | None = None) -> nn.Parameter:
        """`multiple` pads dimension `dim` with zeros to that many rows a process; without, it must divide."""
        if id(full) in self.done:
            return self.done[id(full)][1]
        size, ranks = full.shape[dim], self.mesh.tensor_size
        if multiple is None and size % ranks:
            raise UserError(f"train.parallel.tensor: {name} of size {size} does not divide by {ranks}")
        length = -(-size // (ranks * (multiple or 1))) * (multiple or 1)
        start = min(self.mesh.tensor_rank * length, size)
        valid = min(length, size - start)
        shape = list(full.shape)
        shape[dim] = length
        part = nn.Parameter(full.new_zeros(shape), requires_grad=full.requires_grad)
        part.narrow(dim, 0, valid).copy_(full.narrow(dim, start, valid))
        part.logical_shape = tuple(full.shape)  # type: ignore[attr-defined]
        if ranks > 1:  # the names that megatron-core gives
            part.tensor_model_parallel = True  # type: ignore[attr-defined]
            part.partition_dim = dim  # type: ignore[attr-defined]
        self.done[id(full)] = (full, part)
        return part


def _kind(name: str, plan: Mapping[str, str]) -> str | None:
    return next((kind for pattern, kind in plan.items() if fnmatchcase(name, pattern)), None)


def _set(model: nn.Module, name: str, value: nn.Module | nn.Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, value)


def _settings(weight: Tensor, mesh: Mesh) -> dict[str, Any]:
    """Constructor arguments that all of megatron-core's layers share: ours come with their weights."""
    from megatron.core import ModelParallelConfig

    config = ModelParallelConfig(
        tensor_model_parallel_size=mesh.tensor_size,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=weight.dtype,
    )
    return {"config": config, "init_method": nn.init.zeros_, "tp_group": mesh.tensor_group}


def _column(linear: Any, cut: _Cut, name: str, reduce_input: bool, multiple: int | None = None) -> nn.Module:
    from megatron.core.tensor_parallel import ColumnParallelLinear

    weight = cut(linear.weight, 0, name, multiple)
    layer = ColumnParallelLinear(
        linear.in_features,
        len(weight) * cut.mesh.tensor_size,
        bias=linear.bias is not None,
        disable_grad_reduce=not reduce_input,
        **_settings(weight, cut.mesh),
    )
    layer.weight = weight
    if linear.bias is not None:
        layer.bias = cut(linear.bias, 0, name, multiple)
    return _plain(layer)


def _row(linear: Any, cut: _Cut, name: str) -> nn.Module:
    from megatron.core.tensor_parallel import RowParallelLinear

    weight = cut(linear.weight, 1, name)
    layer = RowParallelLinear(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        input_is_parallel=True,
        skip_bias_add=False,
        **_settings(weight, cut.mesh),
    )
    layer.weight = weight
    if linear.bias is not None:
        layer.bias = linear.bias
    return _plain(layer)


def _split_vocabulary(module: Any, cut: _Cut, name: str) -> nn.Module:
    weight: nn.Parameter = module.weight
    part = cut(weight, 0, name, VOCABULARY_MULTIPLE)
    split = cut.mesh.tensor_size > 1
    # An embedding
    if isinstance(module, nn.Embedding):
        if split:
            from megatron.core.tensor_parallel import VocabParallelEmbedding

            rows = len(part) * cut.mesh.tensor_size
            module = VocabParallelEmbedding(rows, part.shape[1], **_settings(part, cut.mesh))
        else:
            module.num_embeddings = len(part)
        module.weight = part
        return module
    # A layer of logits, of which those of padding are hidden
    if split:
        module = _column(module, cut, name, reduce_input=True, multiple=VOCABULARY_MULTIPLE)
    else:
        module.weight, module.out_features = part, len(part)
        if module.bias is not None:
            module.bias = cut(module.bias, 0, name, VOCABULARY_MULTIPLE)
    valid = max(len(weight) - cut.mesh.tensor_rank * len(part), 0)
    if valid < len(part):

        def hide_padding(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
            logits[..., valid:] = torch.finfo(logits.dtype).min
            return logits

        module.register_forward_hook(hide_padding)
    return module


def _plain(layer: nn.Module) -> nn.Module:
    """Make `layer` callable like nn.Linear: megatron-core's take at most three dimensions and return (output, bias)."""
    forward = layer.forward

    def plain(x: Tensor) -> Tensor:
        output: Tensor = forward(x.flatten(0, -2))[0]
        return output.unflatten(0, x.shape[:-1])

    layer.forward = plain
    return layer


def _split_attention(module: nn.Module, mesh: Mesh, sum_inputs: bool) -> None:
    entered: list[Callable[[], object]] = []

    def summed(argument: Any) -> Any:
        if not isinstance(argument, Tensor) or not argument.requires_grad:
            return argument
        argument = argument.view_as(argument)
        argument.register_hook(_sum_over(mesh))
        return argument

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if module.training:
            entered.append(_diverge(inputs[0].device, mesh.tensor_rank))
        return tuple(summed(argument) for argument in inputs) if sum_inputs else inputs

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if entered:
            entered.pop()()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)  # activation checkpointing stops recomputing by an exception


def _diverge(device: torch.device, tensor_rank: int) -> Callable[[], object]:
    """Give this tensor rank random numbers of its own; the function returned restores the common ones."""
    golden = 0x9E3779B97F4A7C15  # odd and large: seeds that are near each other stay apart
    if device.type == "cuda":  # by seed and offset, which the host knows without waiting for the device
        generator = torch.cuda.default_generators[device.index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.manual_seed((seed + golden * (tensor_rank + 1)) % 2**63)
        generator.set_offset(offset)

        def converge() -> None:
            used = generator.get_offset()
            generator.manual_seed(seed)
            generator.set_offset(used)

        return converge
    generator = torch.default_generator
    seed = int(torch.randint(2**62, (), dtype=torch.int64))
    state = generator.get_state()
    generator.manual_seed((seed + golden * (tensor_rank + 1)) % 2**63)
    return partial(generator.set_state, state)


def _sum_over(mesh: Mesh) -> Callable[[Tensor], Tensor]:
    def total(gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=mesh.tensor_group)
        return gradient

    return total
