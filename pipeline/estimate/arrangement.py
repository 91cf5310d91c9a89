"""How a recipe is laid out over a cluster (tensor x data parallel, micro-batches) and the memory and time it takes."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from reread.pipeline.estimate.hardware import COMMUNICATOR_BYTES, CONTEXT_BYTES, FRAGMENTED_SHARE, GIB, Cluster, Gpu
from reread.pipeline.estimate.rehearsal import Footprint, State, assembled_state, rehearse, step_totals
from reread.pipeline.estimate.speed import StepTime, step_time
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.models.spec import ModelSpec

TENSOR_SIZES = (1, 2, 4, 8)
FEW_TOKENS, MANY_TOKENS = 1024, 32768
"""Tokens of a micro-batch: fewer leave most of a GPU idle, so the next tensor-parallel size is tried; more take memory
and gain nothing. Assumptions."""


@dataclass(frozen=True)
class Arrangement:
    footprint: Footprint
    data: int
    """Data-parallel size."""
    rows: int
    """Rows of the global batch on one GPU."""
    cluster: Cluster
    memories: int
    """Bytes of the lanes' memory on one GPU."""
    gradient_dtype: str
    """Type that the gradients are sent in: fp32 or fp16."""
    divided: bool
    """Whether the optimiser's state is divided over the data-parallel processes."""

    @property
    def accumulation(self) -> int:
        return -(-self.rows // self.footprint.micro_batch)

    @property
    def wire(self) -> int:
        """Bytes of the gradients as they are sent."""
        return self.footprint.gradients // (2 if self.gradient_dtype == "fp16" else 1)

    @property
    def copies(self) -> int:
        """Bytes of the copies of the buckets in the type in which they are sent; 0 for fp32."""
        return self.wire if self.data > 1 and self.gradient_dtype == "fp16" else 0

    @property
    def overhead(self) -> float:
        return overhead(self.footprint.tensor, self.data)

    @property
    def bytes(self) -> float:
        """Bytes on one GPU at the peak."""
        return self.footprint.state + self.copies + self.memories + self.footprint.passing + self.overhead

    @property
    def limit(self) -> float:
        return usable(self.cluster.gpu)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.limit


def overhead(tensor: int, data: int) -> float:
    """Bytes of CUDA's context and of NCCL's buffers, a set of buffers for each group of a process."""
    return CONTEXT_BYTES + ((data > 1) + (tensor > 1)) * COMMUNICATOR_BYTES


def usable(gpu: Gpu) -> float:
    """Bytes of a GPU that can be used."""
    return gpu.memory_gib * GIB * (1 - FRAGMENTED_SHARE)


class Estimator:
    """Arrangements of one training section on one cluster. Rehearsals are cached: each takes about a second.

    Before them the state alone is looked at, which takes a third of that: no step is rehearsed where it does not fit.
    """

    def __init__(
        self,
        train: TrainSettings,
        spec: ModelSpec,
        config: PretrainedConfig,
        cluster: Cluster,
        flop_share: float | None,
        kernels: Literal["gpu", "cpu"] = "gpu",
        dataset: Dataset[Any] | None = None,
    ) -> None:
        """`flop_share`: the share of the peak that a step reaches, or None for the time of its bytes and FLOPs.
        `dataset`: the training examples of a task; memory is that of the longest."""
        self.train, self.spec, self.config, self.dataset = train, spec, config, dataset
        self.cluster, self.flop_share, self.kernels = cluster, flop_share, kernels
        self.most_tokens = MANY_TOKENS if kernels == "gpu" else FEW_TOKENS
        """Most tokens of a micro-batch on a CPU; more gain nothing."""
        self._done: dict[tuple[int, int, bool, int], Footprint] = {}
        self._states: dict[tuple[int, int], State] = {}

    def arrangement(
        self, tensor: int, micro_batch: int, checkpointing: bool, divided: bool | None = None
    ) -> Arrangement:
        """`divided`: whether the optimiser's state is; None: as the recipe says.

        Raises `UserError` if the model or the global batch cannot be split like this."""
        data, rows = self._split(tensor)
        over = self._divided_over(tensor, divided)
        footprint = self._rehearsed(tensor, min(micro_batch, rows), checkpointing, over)
        memories = footprint.memory_a_lane * -(-self.train.data.lanes(self.train.global_batch) // data)
        return Arrangement(footprint, data, rows, self.cluster, memories, self.train.parallel.gradient_dtype, over > 1)

    def _divided_over(self, tensor: int, divided: bool | None) -> int:
        """The number of processes over which the optimiser's state is divided; None: as the recipe says."""
        data = self._split(tensor)[0]
        return data if (self.train.parallel.shard_state if divided is None else divided) else 1

    def _state_fits(self, tensor: int, divided: bool | None = None) -> bool:
        """Whether the state leaves room for a step. Raises `UserError` as `arrangement` does."""
        needed = self._state(tensor, divided).state + overhead(tensor, self._split(tensor)[0])
        return needed < usable(self.cluster.gpu)

    def _split(self, tensor: int) -> tuple[int, int]:
        """Data-parallel size, and rows of the global batch on one GPU."""
        data, rest = divmod(self.cluster.gpus, tensor)
        if rest or self.cluster.per_node % tensor:
            raise UserError(
                f"train.parallel.tensor: {tensor} does not divide the {self.cluster.per_node} GPUs of a machine"
            )
        if data > (least := self.train.smallest_batch):
            field = "global_batch" if least == self.train.global_batch else "batch_warmup.first"
            raise UserError(
                f"train.{field}: {least} rows are fewer than {data} data-parallel processes; raise it, or take "
                f"{least * tensor} GPUs or fewer"
            )
        if self.train.data.is_task:  # whole groups are dealt, at least one to each
            return data, self.train.global_batch // data
        return data, -(-self.train.global_batch // data)

    def as_stated(self) -> Arrangement:
        """The arrangement of the recipe. For values that are `auto`, the fastest that fits at the recipe's tensor size.

        Without activation checkpointing it is faster unless so few rows fit that launching operations takes longer.
        Raises `UserError` if nothing fits, and where the model or the global batch cannot be split so.
        """
        train, tensor = self.train, self.train.parallel.tensor
        if not train.automatic:
            return self.arrangement(tensor, train.micro_batch, train.activation_checkpointing)
        found: list[Arrangement] = []
        stated = train.activation_checkpointing
        if not self._state_fits(tensor):
            raise self._too_large(tensor, stated is not False, [tensor])
        for checkpointing in (False, True) if "activation_checkpointing" in train.automatic else (stated,):
            if "micro_batch" in train.automatic:
                one = self._largest(tensor, checkpointing)
            else:
                one = self.arrangement(tensor, train.micro_batch, checkpointing)
            if one is not None and one.fits:
                found.append(one)
                if one.accumulation == 1:  # nothing is faster
                    break
        if not found:
            if "micro_batch" not in train.automatic:
                self._refuse_stated(self.arrangement(tensor, train.micro_batch, stated is not False))
            raise self._too_large(tensor, stated is not False, [tensor])
        return min(found, key=lambda one: self.time(one).total)

    def _refuse_stated(self, one: Arrangement) -> None:
        """Raises `UserError`, which names the largest micro-batch that fits, if the micro-batch of `one` does not fit.

        Memory grows with the number of rows. Returns if no micro-batch fits."""
        stated, checkpointing = one.footprint.micro_batch, one.footprint.checkpointing
        tensor = one.footprint.tensor

        def too_many(rows: int) -> bool:
            return not self.arrangement(tensor, rows, checkpointing).fits

        if largest := bisect_left(range(1, stated), True, key=too_many):
            recompute = " with activation checkpointing" if checkpointing else ""
            raise UserError(
                f"train.micro_batch: {stated} rows at a time{recompute} take {one.bytes / GIB:.2f} GiB by the estimate "
                f"and {one.limit / GIB:.2f} are usable on {self.cluster.gpu.name}; set it to at most {largest}, or auto"
            )

    def choose(self) -> tuple[Arrangement, str]:
        """The first arrangement that fits with a sensible micro-batch, and the reason in a few words.

        Tensor sizes are tried from 1 up without activation checkpointing, then with it, each with the largest
        micro-batch that fits, in equal pieces. Raises `UserError` if none fits.
        """
        small: list[Arrangement] = []
        refused: list[UserError] = []
        for checkpointing, tensor in self._candidates():
            try:
                found = self._largest(tensor, checkpointing)
            except UserError as error:
                refused.append(error)
                continue
            if found is None:
                continue
            whole = found.footprint.micro_batch == found.rows
            if whole or found.footprint.micro_batch * self.train.data.sequence_length >= FEW_TOKENS:
                return found, self._reason(found)
            small.append(found)
        if small:
            best = max(small, key=lambda one: one.footprint.micro_batch)
            return best, f"{self._reason(best)}, though fewer than {FEW_TOKENS} tokens at a time are slow"
        raise self._impossible(refused)

    def instead_of_splitting(self, chosen: Arrangement) -> str:
        """The way out that `choose` does not try: dividing the optimiser's state, where it alone is too large for a
        smaller tensor size; empty if there is none."""
        footprint = chosen.footprint
        smaller = [size for size in TENSOR_SIZES if size < footprint.tensor and not self._state_fits(size)]
        size = None if chosen.divided else self._fits_divided(smaller, footprint.checkpointing)
        return f"train.parallel.shard_state=true fits with tensor size {size}" if size else ""

    def time(self, arrangement: Arrangement) -> StepTime:
        return step_time(
            self.cluster,
            arrangement.footprint,
            self.flops * arrangement.rows * arrangement.data / self.train.global_batch,  # the fullest GPU's, on all
            micro_batches=self.micro_batches(arrangement),
            wire_bytes=arrangement.wire,
            gathered_bytes=arrangement.footprint.weights if arrangement.divided else 0,
            accumulation=arrangement.accumulation,
            bucket_bytes=self.train.parallel.bucket_bytes,
            flop_share=self.flop_share,
        )

    def seconds(self, arrangement: Arrangement) -> float:
        """Of all steps. A step with fewer rows, as the batch grows, counts by its rows."""
        train = self.train
        return train.rows_before(train.steps) / train.global_batch * self.time(arrangement).total

    def micro_batches(self, arrangement: Arrangement) -> float:
        """How many micro-batches like the rehearsed one a GPU's rows are."""
        return arrangement.rows / arrangement.footprint.micro_batch

    def mfu(self, arrangement: Arrangement) -> float:
        """The share of the peak that the micro-batches reach."""
        seconds = self.cluster.gpus * self.time(arrangement).compute
        return self.flops / (seconds * self.cluster.gpu.peak)

    @cached_property
    def tokens(self) -> float:
        """Tokens of a step."""
        return float(self.train.global_batch) * self.train.data.sequence_length

    @cached_property
    def flops(self) -> float:
        """FLOPs of a step as MFU counts them, without recomputation."""
        totals = step_totals(self.train.data, self.train.global_batch)
        return self.spec.flops(self.config, self.train.data.sequence_length, totals)

    def _candidates(self) -> Iterator[tuple[bool, int]]:
        for checkpointing in (False, True):
            for tensor in TENSOR_SIZES:
                if self.cluster.per_node % tensor == 0 and (tensor == 1 or self.spec.tensor_plan):
                    yield checkpointing, tensor

    def _largest(self, tensor: int, checkpointing: bool) -> Arrangement | None:
        """The arrangement with the largest micro-batch that fits; None if a single row does not fit."""
        if not self._state_fits(tensor):
            return None
        one = self.arrangement(tensor, 1, checkpointing)
        if not one.fits:
            return None
        rows, most = one.rows, max(1, self.most_tokens // self.train.data.sequence_length)
        room = one.limit - (one.bytes - one.footprint.passing)
        if -(-rows // -(-rows // most)) * one.footprint.within > room:  # else the most rows fit: a row more takes less
            room -= one.footprint.within
            few = self.arrangement(tensor, 8, checkpointing)
            more = max(few.footprint.micro_batch - 1, 1)
            a_row = (few.footprint.within - one.footprint.within) / more
            most = min(most, 1 + int(room / a_row) if a_row > 0 else rows)
        pieces = -(-rows // most)
        while True:  # memory is almost linear in the rows, so the first or second try fits
            found = self.arrangement(tensor, -(-rows // pieces), checkpointing)
            if found.fits:
                return found
            pieces += 1

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations: `precision: auto` takes the GPU's best, and V100 has no bf16."""
        stated = {"fp32": torch.float32, "fp16": torch.float16}
        return stated.get(self.train.precision, self.cluster.gpu.dtype)

    def _reason(self, chosen: Arrangement) -> str:
        """A phrase that says why this one was chosen; the order is that of `_candidates`."""
        footprint = chosen.footprint
        recompute = (
            "activation checkpointing, the last resort" if footprint.checkpointing else "no activation checkpointing"
        )
        which = "the whole share" if footprint.micro_batch == chosen.rows else "the largest sensible piece that fits"
        first = "the smallest tensor size that does" if footprint.tensor > 1 else "the model needs no splitting"
        return f"{first}, {recompute}; {footprint.micro_batch} of {chosen.rows} rows at a time: {which}"

    def _impossible(self, refused: list[UserError]) -> UserError:
        """The error that explains why nothing fits, and the way out."""
        sizes = [tensor for checkpointing, tensor in self._candidates() if checkpointing]
        for tensor in reversed(sizes):
            with suppress(UserError):  # it cannot be split so
                self._state(tensor)
                return self._too_large(tensor, True, sizes)
        return refused[0]

    def _too_large(self, tensor: int, checkpointing: bool, sizes: Sequence[int]) -> UserError:
        """The error for one row of tensor-parallel size `tensor`, which fits at none of the `sizes`."""
        gpu, limit = self.cluster.gpu, usable(self.cluster.gpu)
        ways = "take a GPU with more memory"
        if divided := self._fits_divided(sizes, checkpointing):
            beside = f" with train.parallel.tensor={divided}" if divided != self.train.parallel.tensor else ""
            ways = f"set train.parallel.shard_state=true{beside}, or {ways}"
        if self.cluster.per_node < TENSOR_SIZES[-1]:
            ways += ", or more of them in a machine"
        state = self._state(tensor).state
        if self._state_fits(tensor):
            ways += ", or shorten train.data.sequence_length"
            recompute = " and activation checkpointing" if checkpointing else ""
            what = (
                f"one row of {self.train.data.sequence_length} tokens with tensor size {tensor}{recompute} takes "
                f"{self.arrangement(tensor, 1, checkpointing).bytes / GIB:.1f} GiB ({state / GIB:.1f} of them weights "
                "and optimiser)"
            )
        else:
            more = overhead(tensor, self._split(tensor)[0]) / GIB
            what = (
                f"weights and optimiser with tensor size {tensor} take {state / GIB:.1f} GiB, CUDA's context and NCCL "
                f"{more:.1f}"
            )
        return UserError(f"--gpu {gpu.name}: {what}, {limit / GIB:.1f} of {gpu.memory_gib:g} are usable; {ways}")

    def _fits_divided(self, sizes: Sequence[int], checkpointing: bool) -> int | None:
        """The first tensor-parallel size at which one row fits if the optimiser's state is divided."""
        for tensor in sizes:
            with suppress(UserError):  # it cannot be split so
                divides = self._divided_over(tensor, True) > 1 and self._state_fits(tensor, True)
                if divides and self.arrangement(tensor, 1, checkpointing, divided=True).fits:
                    return tensor
        return None

    def _state(self, tensor: int, divided: bool | None = None) -> State:
        key = tensor, self._divided_over(tensor, divided)
        if key not in self._states:
            self._states[key] = assembled_state(
                self.train,
                self.config,
                self.dtype,
                tensor=tensor,
                kernels=self.kernels,
                dataset=self.dataset,
                divided_over=key[1],
            )
        return self._states[key]

    def _rehearsed(self, tensor: int, micro_batch: int, checkpointing: bool, divided_over: int) -> Footprint:
        key = tensor, micro_batch, checkpointing, divided_over
        if key not in self._done:
            self._done[key] = rehearse(
                self.train,
                self.config,
                self.dtype,
                tensor=tensor,
                micro_batch=micro_batch,
                checkpointing=checkpointing,
                kernels=self.kernels,
                dataset=self.dataset,
                divided_over=divided_over,
            )
        return self._done[key]
