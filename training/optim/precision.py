"""Mixed precision: the type to compute in, float32 master weights, and the dynamic loss scale of float16."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from reread.preprocessing.corpus.manifest import Count
from reread.preprocessing.errors import UserError
from reread.training.parallel.gradients import GradientBuckets, flat_weights
from reread.training.parallel.layout import Slice
from reread.training.parallel.shares import Shares

log = logging.getLogger("reread")


def resolve_precision(setting: Literal["auto", "fp32", "fp16", "bf16"], device: torch.device) -> torch.dtype:
    """The type of activations and of the model's weights; logs what was chosen and why."""
    hip, capability, name = torch.version.hip, None, "the CPU"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if not hip:  # there it would be the number of the architecture, 9.0 of gfx90a and of gfx906
            capability = torch.cuda.get_device_capability(device)
    if setting == "auto":
        if device.type != "cuda":
            chosen, reason = torch.float32, "auto: no GPU"
        elif capability is None:
            chosen = torch.bfloat16
            reason = f"auto: {name} by ROCm {hip}, which is taken to have bf16; before MI200 set fp16"
        elif capability >= (8, 0):
            chosen, reason = torch.bfloat16, f"auto: {name} has compute capability {_dotted(capability)}, from 8.0 bf16"
        else:
            chosen, reason = torch.float16, f"auto: {name} has compute capability {_dotted(capability)}, below 8.0 fp16"
    elif setting == "bf16" and capability is not None and capability < (8, 0):
        chosen, reason = torch.float16, f"bf16 requested, but {name} ({_dotted(capability)}) has no bf16 tensor cores"
    else:
        chosen = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[setting]
        reason = "as the recipe says"
    log.info("precision: %s (%s)", str(chosen).removeprefix("torch."), reason)
    return chosen


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


class Scale(TypedDict):
    """The state of a `LossScale` in a checkpoint."""

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    good: Count
    bad: Count
    active: bool


class LossScale:
    """The factor on the loss that keeps float16 gradients in range; always 1 with other types.

    `dtype` is the narrowest type that gradients are in, computed or sent. The rule is the one NEZHA trained with, of
    TensorFlow 1.15's ExponentialUpdateLossScaleManager (NEZHA began at 2^32): doubled after 1000 good steps in a row,
    halved after 2 bad ones, in a row or not; each change resets both counts. It stays between 1 and float32's maximum.
    """

    GOOD_STEPS = 1000
    BAD_STEPS = 2

    def __init__(self, dtype: torch.dtype, initial: float = 2.0**16) -> None:
        self.active = dtype == torch.float16
        self.value = initial if self.active else 1.0
        self.good = self.bad = 0
        """Good steps since the last bad one, and bad steps, both since the last change."""

    def update(self, good: bool) -> None:
        """Count a step: `good` if its gradient was finite on all ranks, else it was skipped.

        Raises `UserError` when gradients overflow even unscaled, in 2 steps in a row.
        """
        if not self.active:
            return
        in_a_row = self.bad > 0 and self.good == 0
        self.good, self.bad = (self.good + 1, self.bad) if good else (0, self.bad + 1)
        if self.good == self.GOOD_STEPS:
            doubled = self.value * 2
            self._change(doubled if doubled <= torch.finfo(torch.float32).max else self.value)
        if self.bad == self.BAD_STEPS:
            if self.value <= 1 and in_a_row:
                raise UserError(
                    "train.precision: fp16 gradients are not finite even at loss scale 1; "
                    "lower train.optimizer.learning_rate, or train in bf16 or fp32 with "
                    "train.parallel.gradient_dtype: fp32"
                )
            self._change(max(self.value / 2, 1.0))

    def _change(self, value: float) -> None:
        self.value, self.good, self.bad = value, 0, 0

    def state(self) -> Scale:
        return {"active": self.active, "value": self.value, "good": self.good, "bad": self.bad}

    def load(self, state: Scale) -> None:
        if self.active and state["active"]:  # a run may begin to send fp16 later
            self.value, self.good, self.bad = float(state["value"]), int(state["good"]), int(state["bad"])


class MasterWeights:
    """The float32 weights that the optimiser steps, of a model that computes in `dtype`.

    Takes a float32 model (masters are copied before anything is rounded) and casts it in place. In float32 the
    masters are the model's own parameters. Masters keep the marks of tensor-parallel parameters.

    With `shares` the masters of what learns are the rows that this process updates: copies, or views in float32.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        first_rows: Mapping[str, int] = {},
        shares: Shares | None = None,
    ) -> None:
        """`first_rows`: the first row that learns, for parameters that learn partly (`freeze` in models/build.py)."""
        self.first_rows, self.shares = first_rows, shares
        self.rounded = dtype != torch.float32
        """Whether the model's weights are rounded copies of the masters."""
        self.model_parameters = dict(model.named_parameters())
        learning = [name for name, parameter in self.model_parameters.items() if parameter.requires_grad]
        self._here = {name: shares.rows_here(self.model_parameters[name]) for name in learning} if shares else {}
        """The rows of each parameter that are updated here, if they are divided."""
        self.masters = self.model_parameters
        if self.rounded:
            self.masters = {
                name: _master(parameter, part.to(torch.float32, copy=True)) for name, parameter, part in self._parts()
            }
            model.to(dtype)
        self.flat = flat_weights(shares.offsets, shares.cuts[-1]) if shares else None
        """The model's parameters that learn, if they are divided."""
        if shares and not self.rounded:
            self.masters = {name: _master(parameter, part) for name, parameter, part in self._parts()}
        self._learning = {name: self.masters[name] for name in learning}
        for name in first_rows.keys() & self._learning.keys():
            self._learning[name] = nn.Parameter(self.learnt_rows(name))
        for name in self._here:
            self._learning[name].divided = True  # type: ignore[attr-defined]
        for name, one in self._learning.items():
            parameter = self.model_parameters[name]
            shape = getattr(parameter, "logical_shape", parameter.shape)
            frozen = first_rows.get(name, 0) * math.prod(shape[1:])
            one.whole_size = math.prod(shape) - frozen  # type: ignore[attr-defined]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.masters.items())

    def learning(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The masters that are not frozen; if only the last rows learn (`freeze`), a view of those rows."""
        return iter(self._learning.items())

    def learnt_rows(self, name: str) -> Tensor:
        """A view of a master without the rows that are frozen."""
        return self._learnt(name, self.masters[name].detach())

    def step(self, optimizer: torch.optim.Optimizer, gradients: GradientBuckets, rate: float, factor: float) -> None:
        """Make one optimiser step at learning rate `rate` on `factor` times the gradients, and update the model."""
        gradients.scale(factor)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        for name, master in self.learning():
            gradient = gradients.grad_of(self.model_parameters[name])
            master.grad = self._learnt(name, gradient[self._here.get(name, ...)])
        optimizer.step()
        self.to_model()

    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        held = [master.detach() for master in self.masters.values() if master.numel()]
        largest = torch._foreach_norm(held, math.inf)
        return bool(torch.stack([one.float() for one in largest]).isfinite().all())

    @torch.no_grad()
    def to_model(self) -> None:
        """Round the masters to the model's type, and gather those of other processes; call it after loading a
        checkpoint into them."""
        if self.rounded:
            torch._foreach_copy_([part for *_, part in self._parts()], list(self.masters.values()))
        self.gather()

    def gather(self) -> None:
        """Give the model the weights that other processes have updated (collective)."""
        if self.shares and self.flat is not None:
            self.shares.gather(self.flat)

    def slice_of(self, name: str, part: Slice, first_row: int = 0) -> Slice:
        """The part of a whole tensor that the rows here, from `first_row` of the parameter on, are; `part` is that of
        the model's parameter."""
        part = replace(part, shape=(part.shape[0] - first_row, *part.shape[1:])) if first_row else part
        if not self.shares or name not in self._here:
            return part
        return self.shares.slice_of(self.model_parameters[name], part, first_row)

    def _parts(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Name, parameter of the model, and its rows of which the masters are here."""
        for name, parameter in self.model_parameters.items():
            yield name, parameter, parameter.detach()[self._here.get(name, ...)]

    def _learnt(self, name: str, rows: Tensor) -> Tensor:
        """Of the rows of a parameter that are here, those that are not frozen."""
        if name not in self.first_rows:
            return rows
        begin = self._here[name].start if name in self._here else 0
        return rows[max(self.first_rows[name] - begin, 0) :]


def _master(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    master = nn.Parameter(values, requires_grad=parameter.requires_grad)
    master.tensor_model_parallel = getattr(parameter, "tensor_model_parallel", False)  # type: ignore[attr-defined]
    return master
