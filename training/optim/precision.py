"""Mixed precision: the type to compute in, float32 master weights, and the dynamic loss scale of float16."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn
from typing_extensions import TypedDict

from reread.preprocessing.corpus.manifest import Count
from reread.preprocessing.errors import UserError
from reread.training.parallel.gradients import GradientBuckets

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
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, first_rows: Mapping[str, int] = {}) -> None:
        """`first_rows`: the first row that learns, for parameters that learn partly (`freeze` in models/build.py)."""
        self.first_rows = first_rows
        self.model_parameters = dict(model.named_parameters())
        self.masters = self.model_parameters
        if dtype != torch.float32:
            self.masters = {name: _master(parameter) for name, parameter in self.model_parameters.items()}
            model.to(dtype)
        self._learning = {
            name: nn.Parameter(master.detach()[first_rows[name] :]) if name in first_rows else master
            for name, master in self.masters.items()
            if master.requires_grad
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.masters.items())

    def learning(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The masters that are not frozen; if only the last rows learn (`freeze`), a view of those rows."""
        return iter(self._learning.items())

    def step(self, optimizer: torch.optim.Optimizer, gradients: GradientBuckets, rate: float, factor: float) -> None:
        """Make one optimiser step at learning rate `rate` on `factor` times the gradients, and update the model."""
        gradients.scale(factor)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        for name, master in self.learning():
            gradient = gradients.grad_of(self.model_parameters[name])
            master.grad = gradient[self.first_rows[name] :] if name in self.first_rows else gradient
        optimizer.step()
        self.to_model()

    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        largest = torch._foreach_norm([master.detach() for master in self.masters.values()], math.inf)
        return bool(torch.stack([one.float() for one in largest]).isfinite().all())

    @torch.no_grad()
    def to_model(self) -> None:
        """Round the masters to the model's type; call it after loading a checkpoint into them."""
        if self.masters is not self.model_parameters:
            torch._foreach_copy_(list(self.model_parameters.values()), list(self.masters.values()))


def _master(parameter: nn.Parameter) -> nn.Parameter:
    master = nn.Parameter(parameter.detach().to(torch.float32, copy=True), requires_grad=parameter.requires_grad)
    master.tensor_model_parallel = getattr(parameter, "tensor_model_parallel", False)  # type: ignore[attr-defined]
    return master
