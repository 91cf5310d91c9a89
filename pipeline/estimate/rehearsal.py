"""A training step on torch's meta device: the trainer's own code runs and tensors have shapes but no data.

Every storage that the step makes is counted while it lives, so memory follows from the code that will train, at any
size, without a GPU. Three things are done as on a GPU because the meta device would do them otherwise: attention is the
memory-efficient kernel (on V100 the only fused one; flash saves the same), dropout keeps a mask of one byte, and AdamW
works on lists of tensors. What a kernel takes for itself is not seen.
"""

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PretrainedConfig

from reread.pipeline.estimate.disk import quiet
from reread.pipeline.estimate.work import Work, kind_of, summed, work_of
from reread.training.assembly import Assembly, resolved_with
from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED
from reread.training.data.dataset import Dataset
from reread.training.data.settings import DataSettings
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import close_mesh

aten = torch.ops.aten
META, CPU = torch.device("meta"), torch.device("cpu")

RARE_SHARE = 0.2
"""Assumed share of a micro-batch's tokens in each cluster of rare words of an adaptive softmax (`nonzero` finds so
many). By Zipf's law the largest cluster of WikiText-103 has 13 %."""


@dataclass(frozen=True)
class State:
    """Bytes on one GPU that stay from step to step, by what they hold."""

    tensor: int
    """Tensor-parallel size."""
    parameters: int
    """Parameters of the whole model, as in a checkpoint; all other fields are of one tensor rank."""
    weights: int
    """Weights and buffers in the type of the computation."""
    masters: int
    """Master weights in float32; 0 if the weights are float32."""
    optimizer: int
    """Both moments of the optimiser."""
    gradients: int
    """Gradients in their float32 buckets."""
    checkpoint_bytes: int
    """Bytes of the weights and moments of the whole model on disk."""

    @property
    def state(self) -> int:
        """All of them, without the memory of lanes."""
        return self.weights + self.masters + self.optimizer + self.gradients


@dataclass(frozen=True)
class Footprint(State):
    """The same with what a step needs beside them, and the bytes that it moves."""

    micro_batch: int
    checkpointing: bool
    memory_a_lane: int
    """Memory that a lane keeps from segment to segment."""
    activations: int
    """Tensors that are kept for the backward pass at the end of the encoder."""
    head: int
    """Tensors that the head and the losses keep in addition."""
    working: int
    """Other tensors that exist at the peak of the micro-batch."""
    update: int
    """Tensors of the optimiser's step, in which no activations exist any more."""
    update_work: Work
    """What the gradients' norm, the update and clearing the gradients ask for."""
    slots: int
    """Tokens of the micro-batch, with padding."""
    work: Mapping[str, Work]
    """What the micro-batch asks for, by kind of operation."""
    tensor_bytes: int
    """Bytes that are all-reduced over the tensor group in a micro-batch."""
    tensor_calls: int

    @property
    def within(self) -> int:
        """Peak bytes of a micro-batch beside the state."""
        return self.activations + self.head + self.working

    @property
    def passing(self) -> int:
        """Peak bytes of a step beside the state: the optimiser's step begins after the micro-batches are freed."""
        return max(self.within, self.update)


class Ledger(TorchDispatchMode):
    """Counts the bytes of storages on the meta device while they live.

    Integers and booleans that follow from a batch are computed on the CPU where the code reads them, since what a model
    does may depend on them, as on the number of global tokens. Where it reads another value back from the device it
    gets 0, and `nonzero` finds `RARE_SHARE` of the elements.

    Layers are alike, and so are rehearsals, so most calls are like an earlier one. Torch computes the shapes of a
    result, and we its work, for the first of them alone; both are Python and take ten times as long as all else.
    """

    _calls: dict[tuple[Any, ...], "_Call"] = {}
    """What calls made, by `_signature`: for all ledgers of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.work: dict[str, Work] = {}
        """What the operations that wrote memory asked for, by kind."""
        self.reduced = self.calls = 0
        """Bytes and number of all-reduces."""
        self._known: set[int] = set()
        self._values = WeakTensorKeyDictionary()
        """A `_Value` for each tensor of integers or booleans that follows from what is known."""
        self._deferred: weakref.WeakSet[_Deferred] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            if function is aten._local_scalar_dense.default:
                return self._values[args[0]].read().item() if args[0] in self._values else 0.0
            if function is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                return self._values[args[0]].read().clone() if args[0] in self._values else torch.zeros(args[0].shape)
            if function is aten.nonzero.default:
                found = math.ceil(args[0].numel() * RARE_SHARE)
                indices = torch.empty(found, args[0].dim(), dtype=torch.int64, device=META)
                self._note("others", Work(1, _bytes(args[:1]) + self._count_all([indices])))
                return indices
        called, inputs = _signature(function, args, kwargs)
        self._know(inputs)
        call = self._calls.get(called)
        output = call.repeated(inputs) if call and call.results else function(*args, **kwargs)
        made = _tensors(output)
        if made and not any(one.is_floating_point() or one.is_complex() for one in made):
            self._compute(function, args, kwargs, made)
        new = self._count_all(made)
        if call is None:
            work = self._work(function, args, kwargs, inputs, output, new)
            resized = called != _signature(function, args, kwargs)[0]
            written = tree_leaves(_written(function._schema, args, kwargs))
            # What lies on the CPU, such as a count of steps, is written each time
            repeats = not resized and all(one is None or one.is_meta for one in written)
            results = _results(inputs, output) if repeats else None
            call = self._calls[called] = _Call(results, isinstance(output, tuple | list), work)
        if call.work:
            self._note(kind_of(function), call.work)
        return output

    def _work(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: Sequence[Tensor],
        output: Any,
        new: int,
    ) -> Work | None:
        """What a call asked for that made `new` bytes of storages; None if it wrote nothing: it made a view."""
        written = _bytes(_tensors(_written(function._schema, args, kwargs))) + new
        if not written or function._schema.name.startswith(("aten::empty", "aten::new_empty")):
            return None
        return work_of(function, args, kwargs, output, _bytes(inputs) + written)

    def _note(self, kind: str, work: Work) -> None:
        self.work[kind] = self.work.get(kind, Work()).plus(work)

    def _compute(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Sequence[Tensor]) -> None:
        """Note how to compute the values of the tensors that a function `made`, if those of its arguments are known.

        They are computed at once where it matters when: a call that writes its arguments, after all that has to see
        what was there before; one that draws random numbers; and one of tensors on the CPU, which others may write."""
        at_once, known = function._schema.is_mutable or torch.Tag.nondeterministic_seeded in function.tags, True
        before: list[_Deferred] = []

        def value(leaf: Any) -> Callable[[], Any]:
            nonlocal at_once, known
            if isinstance(leaf, Tensor):
                if not leaf.is_meta:
                    at_once = True
                elif leaf in self._values:
                    before.append(self._values[leaf].call)
                    return self._values[leaf].result
                else:
                    known = False
            return lambda: CPU if leaf == META else leaf

        call = _Deferred(function, _later(args, value), _later(kwargs, value), before)
        if not known:
            return
        if function._schema.is_mutable:
            _make([*self._deferred])
        self._values.update((one, _Value(call, number)) for number, one in enumerate(made))
        if at_once:
            _make([call])
        else:
            self._deferred.add(call)

    def _know(self, inputs: Iterable[Tensor]) -> None:
        """Note the storages that are older than the ledger, so that a view of one is not counted as new memory."""
        for storage in (tensor.untyped_storage() for tensor in inputs):
            if storage._cdata not in self._known:
                self._track(storage)

    def _track(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _count_all(self, made: Iterable[Tensor]) -> int:
        """The bytes of storages that are new."""
        return sum(self._count(tensor.untyped_storage()) for tensor in made)

    def _count(self, storage: torch.UntypedStorage) -> int:
        """The bytes of a storage if it is new, else 0."""
        if storage._cdata in self._known:
            return 0
        self._track(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        return storage.nbytes()

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def all_reduce(self, tensor: Tensor, *_: Any, async_op: bool = False, **__: Any) -> "Sent | None":
        """Count an all-reduce, in place of torch.distributed's: nothing is sent, so no other process takes part."""
        self.calls += 1
        self.reduced += tensor.nbytes
        return Sent() if async_op else None

    def since(self, live: int) -> int:
        """The most bytes above `live` since the last call; the next peak begins now."""
        most, self.peak = self.peak - live, self.live
        return most


class Sent:
    """The handle of an all-reduce that has ended."""

    def wait(self) -> None:
        return


class _Deferred:
    """A call on the CPU that is made when one of its results is read."""

    numbers = itertools.count()

    def __init__(
        self, function: Any, args: Callable[[], Any], kwargs: Callable[[], Any], before: "list[_Deferred]"
    ) -> None:
        """`before`: the calls whose results are among the arguments."""
        self.number, self.before, self.results = next(self.numbers), before, list[Any]()
        self._call: Callable[[], Any] | None = lambda: function(*args(), **kwargs())

    def make(self) -> None:
        """After the calls `before`; once."""
        assert self._call is not None
        self.results, self.before = tree_leaves(self._call()), []
        self._call = None  # nor are its arguments kept


class _Value:
    """The value of a tensor on the meta device: result `number` of a call."""

    def __init__(self, call: _Deferred, number: int) -> None:
        self.call, self.number = call, number

    def read(self) -> Tensor:
        _make([self.call])
        return self.result()

    def result(self) -> Tensor:
        """After the call was made."""
        value: Tensor = self.call.results[self.number]
        return value


def _make(calls: list[_Deferred]) -> None:
    """Make calls and all that they depend on, in the order in which the code made them."""
    needed: dict[int, _Deferred] = {}
    while calls:
        one = calls.pop()
        if not one.results and one.number not in needed:
            needed[one.number] = one
            calls += one.before
    for _, one in sorted(needed.items()):
        one.make()


def _later(tree: Any, leaf_of: Callable[[Any], Callable[[], Any]]) -> Callable[[], Any]:
    """What makes arguments again, each leaf by what `leaf_of` it returns."""
    if isinstance(tree, tuple | list):
        parts = [_later(one, leaf_of) for one in tree]
        return lambda: [part() for part in parts]
    if isinstance(tree, dict):
        named = {name: _later(one, leaf_of) for name, one in tree.items()}
        return lambda: {name: part() for name, part in named.items()}
    return leaf_of(tree)


def _written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that a function writes in place."""
    named = {argument.name: argument for argument in schema.arguments if argument.alias_info}
    given = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
    return [given[name] for name, argument in named.items() if argument.alias_info.is_write and name in given]


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors on the meta device in arguments or a result: pytree's leaves take ten times as long."""
    found: list[Tensor] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        if tree.is_meta:
            found.append(tree)
    elif isinstance(tree, tuple | list):
        for one in tree:
            _gather(one, found)
    elif isinstance(tree, dict):
        for one in tree.values():
            _gather(one, found)


class _Call(NamedTuple):
    """What a call made, to make it again."""

    results: Sequence[int | tuple[Any, ...] | None] | None
    """Of each the number of the argument that is returned; or size, stride and type of a new tensor; or nothing. None
    where the function has to be called again, as for a view."""
    several: bool
    work: Work | None

    def repeated(self, inputs: Sequence[Tensor]) -> Any:
        made = tuple(
            torch.empty_strided(one[0], one[1], dtype=one[2], device=META)
            if isinstance(one, tuple)
            else (None if one is None else inputs[one])
            for one in self.results or ()
        )
        return made if self.several else made[0]


def _signature(function: Any, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """What the result and the work of a call depend on: its arguments, tensors by their form, and which are the same.
    Beside it, all tensors on the meta device among the arguments.

    Types stand beside numbers, as 1 == 1.0 == True. The seed of a kernel's dropout is left out."""
    seed, inputs = _seed_at(function), list[Tensor]()
    if seed is not None:
        args = *args[:seed], *args[seed + 1 :]
    forms = _form(args, inputs), _form(tuple(kwargs.items()), inputs)
    places: dict[tuple[Any, ...], int] = {}
    same = tuple([places.setdefault(_location(one), number) for number, one in enumerate(inputs)])
    return (function, same, forms), inputs


@functools.cache
def _seed_at(function: Any) -> int | None:
    return next((number for number, one in enumerate(function._schema.arguments) if one.name == "seed"), None)


def _form(tree: Any, found: list[Tensor]) -> Any:
    """`_tensors` are added to those `found`."""
    if isinstance(tree, Tensor):
        if tree.is_meta:
            found.append(tree)
        return tree.shape, tree.stride(), tree.dtype, tree.device
    if isinstance(tree, tuple | list):
        return tuple([_form(one, found) for one in tree])
    return type(tree), tree


def _results(inputs: Sequence[Tensor], output: Any) -> list[int | tuple[Any, ...] | None] | None:
    """The results of a call for `_Call`; None where one is a view, or not on the meta device."""
    found: list[int | tuple[Any, ...] | None] = []
    older = {one.untyped_storage()._cdata for one in inputs}
    numbers = {id(one): number for number, one in enumerate(inputs)}
    for one in output if isinstance(output, tuple | list) else [output]:
        if one is None:
            found.append(None)
        elif not isinstance(one, Tensor) or not one.is_meta:
            return None
        elif id(one) in numbers:
            found.append(numbers[id(one)])
        elif one.untyped_storage()._cdata in older or one.storage_offset():
            return None
        else:
            older.add(one.untyped_storage()._cdata)
            found.append((one.size(), one.stride(), one.dtype))
    return found


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors, without repetitions along an expanded dimension; the same one twice counts once."""
    return sum({_location(tensor): _once(tensor) for tensor in tensors}.values())


def _location(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def _once(tensor: Tensor) -> int:
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0]
    return math.prod(sizes) * tensor.element_size()


def _held(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages, each counted once, on which the tensors lie."""
    return sum({one._cdata: one.nbytes() for one in (tensor.untyped_storage() for tensor in tensors)}.values())


def step_totals(data: DataSettings, global_batch: int) -> dict[str, float]:
    """The figures of a step from which FLOPs follow: rows that learn, rows that skim, predicted tokens."""
    lanes = data.lanes(1)
    predicted = int((data.blank(lanes)["labels"] != IGNORED).sum())
    return {"rows": global_batch, "skimmed": global_batch * (lanes - 1), "predicted": global_batch * predicted}


def rehearse(
    settings: TrainSettings,
    config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    tensor: int,
    micro_batch: int,
    checkpointing: bool,
    kernels: Literal["gpu", "cpu"] = "gpu",
    dataset: Dataset[Any] | None = None,
    divided_over: int = 1,
) -> Footprint:
    """The memory that one of `tensor` processes needs for a micro-batch and the optimiser's step, in `dtype`.

    `kernels` of a CPU are for comparison with what is measured on one. `dataset`: the training examples of a task,
    whose longest are taken; rows of text are full. `divided_over`: the number of data-parallel processes over which the
    optimiser's state is divided. Raises `UserError` where the model does not divide by `tensor`.
    """
    settings = _one_micro_batch(settings, micro_batch, checkpointing)
    ledger = Ledger()
    with (
        as_on(kernels, ledger),
        _assembled(settings, config, dtype, tensor, kernels, dataset, divided_over) as assembly,
    ):
        if kernels == "gpu":
            step_by_lists(assembly.optimizer)
        memory = _bytes(assembly.objective.memory.mems) if assembly.objective.memory else 0
        with ledger:
            step = _step(assembly, ledger)
        return Footprint(
            **asdict(_state(assembly)),
            micro_batch=micro_batch,
            checkpointing=checkpointing,
            memory_a_lane=memory // settings.data.lanes(micro_batch),
            **step,
        )


def rehearsed_pass(
    settings: TrainSettings,
    config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    tensor: int,
    kernels: Literal["gpu", "cpu"],
    dataset: Dataset[Any],
) -> Mapping[str, Work]:
    """The work by kind of a full micro-batch, forward and backward: `rehearse` without the optimiser's step."""
    settings, ledger = _one_micro_batch(settings, settings.micro_batch, settings.activation_checkpointing), Ledger()
    with as_on(kernels, ledger), _assembled(settings, config, dtype, tensor, kernels, dataset, 1) as assembly, ledger:
        _micro_batch(assembly, ledger)
        return dict(ledger.work)


def _one_micro_batch(settings: TrainSettings, micro_batch: int, checkpointing: bool) -> TrainSettings:
    """The settings of a step that is one micro-batch."""
    return settings.model_copy(
        update={
            "micro_batch": micro_batch,
            "activation_checkpointing": checkpointing,
            # a task's decides how often a step can hold the longest example
            "global_batch": settings.global_batch if settings.data.is_task else micro_batch,
            "batch_warmup": None,
        }
    )


def assembled_state(
    settings: TrainSettings,
    config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    tensor: int,
    kernels: Literal["gpu", "cpu"] = "gpu",
    dataset: Dataset[Any] | None = None,
    divided_over: int = 1,
) -> State:
    """The state of `rehearse`, without a step: a third of its time. Raises `UserError` in the same cases."""
    with _assembled(settings, config, dtype, tensor, kernels, dataset, divided_over) as assembly:
        return _state(assembly)


@contextmanager
def _assembled(
    settings: TrainSettings,
    config: PretrainedConfig,
    dtype: torch.dtype,
    tensor: int,
    kernels: Literal["gpu", "cpu"],
    dataset: Dataset[Any] | None,
    divided_over: int,
) -> Iterator[Assembly]:
    """What the first of `tensor` processes trains, on the meta device."""
    settings = settings.model_copy(
        update={
            "kernels": settings.kernels if kernels == "gpu" else "plain",
            "parallel": settings.parallel.model_copy(update={"shard_state": divided_over > 1}),
        }
    )
    with quiet(), _processes(tensor) as mesh:
        yield Assembly(resolved_with(settings, config), mesh, dtype, dataset=dataset, divided_over=divided_over)


def _state(assembly: Assembly) -> State:
    model, masters = assembly.model, assembly.masters
    saved = {name: part.shape for name, part in assembly.weights()[1].items()}
    return State(
        tensor=assembly.mesh.tensor_size,
        parameters=sum(math.prod(shape) for name, shape in saved.items() if name.startswith("model.")),
        weights=_held([*model.parameters(), *model.buffers()]),
        masters=_held(masters.masters.values()) if masters.rounded else 0,
        optimizer=_held(_tensors(list(assembly.optimizer.state.values()))),
        gradients=assembly.buckets.nbytes,
        checkpoint_bytes=sum(4 * math.prod(shape) for shape in saved.values()),
    )


def step_by_lists(optimizer: torch.optim.Optimizer) -> None:
    """Have AdamW work on lists of tensors, as on a GPU."""
    for group in optimizer.param_groups:
        group.update({"foreach": True} if "foreach" in group else {})


def _step(assembly: Assembly, ledger: Ledger) -> dict[str, Any]:
    """Run a micro-batch and the optimiser's step; the fields of `Footprint` that follow from them."""
    begin = ledger.live
    micro_batch = _micro_batch(assembly, ledger)
    ledger.work.clear()
    assembly.buckets.squared_norm()
    assembly.update(1.0, 1.0)
    assembly.buckets.zero()
    return micro_batch | {"update": ledger.since(begin), "update_work": summed([*ledger.work.values()])}


def _micro_batch(assembly: Assembly, ledger: Ledger) -> dict[str, Any]:
    """Run a micro-batch; the fields of `Footprint` that follow from it."""
    buckets, at_encoder = assembly.buckets, [0]
    assembly.model.base_model.register_forward_hook(lambda *_: at_encoder.__setitem__(0, ledger.live))
    begin = ledger.live
    ledger.since(begin)
    reduced, calls, kept = ledger.reduced, ledger.calls, 0
    ledger.work.clear()
    ones = dict.fromkeys(assembly.objective.counted, 1.0)
    batch = assembly.objective.largest()
    for loss, _, is_last in assembly.objective.losses(batch, ones, 0):
        if is_last:
            buckets.reduce_as_ready()
        if loss is not None:
            kept = ledger.live - begin
            loss.backward()
    del loss
    buckets.finish()
    return {
        "activations": at_encoder[0] - begin,
        "head": kept + begin - at_encoder[0],
        "working": ledger.since(begin) - kept,
        "slots": _slots(batch),
        "work": dict(ledger.work),
        "tensor_bytes": ledger.reduced - reduced,
        "tensor_calls": ledger.calls - calls,
    }


def _slots(batch: Any) -> int:
    """Tokens of a batch with padding; a task's is a list of passes."""
    passes = [rows for _, rows in batch] if isinstance(batch, list) else [batch]
    return sum(rows["input_ids"].size for rows in passes)


@contextmanager
def _processes(tensor: int) -> Iterator[Mesh]:
    """The groups of a run of tensor-parallel size `tensor`, of which this process is the first; no other is started."""
    if tensor == 1 or dist.is_initialized():
        yield Mesh(world=tensor, tensor_size=tensor, device=META)
        return
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=tensor, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, create_gloo_process_groups=False)
        yield Mesh(world=tensor, tensor_size=tensor, device=META)
    finally:
        close_mesh()


@contextmanager
def as_on(device: Literal["gpu", "cpu"], ledger: Ledger) -> Iterator[None]:
    """Within this context the meta device runs the operations of the device's kernels, also in the backward pass."""
    theirs = F.dropout, F.scaled_dot_product_attention, dist.all_reduce

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        if device == "cpu" and (dropout_p or (attn_mask is not None and attn_mask.requires_grad)):
            return theirs[1](q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(attn_mask, 0)
            attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
        if device == "cpu":
            fused = aten._scaled_dot_product_flash_attention_for_cpu
            return fused(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
        fused = aten._scaled_dot_product_efficient_attention
        return fused(q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale)[0]

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    dist.all_reduce = ledger.all_reduce
    if device == "gpu":
        F.dropout = dropout  # type: ignore[assignment]
    try:
        yield
    finally:
        F.dropout, F.scaled_dot_product_attention, dist.all_reduce = theirs
