"""A model assembled for its objective, for the trainer, the rehearsal of `reread plan` and evaluation."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import KINDS
from reread.training.data.settings import DataSettings
from reread.training.kernels.choice import by_kernels
from reread.training.kernels.layers import install
from reread.training.kernels.products import add_product, adds_products
from reread.training.models import model_spec
from reread.training.models.bounds import LARGEST
from reread.training.models.build import build_model, checked_values, freeze, model_config
from reread.training.models.spec import ModelSpec
from reread.training.objectives import objective_of
from reread.training.objectives.objective import Objective
from reread.training.optim.build import OPTIMIZERS, build_optimizer, updated_whole
from reread.training.optim.flat import flat_update
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.reduce import reducer
from reread.training.parallel.shares import shares_of
from reread.training.parallel.tensor import layout, parallelise

log = logging.getLogger("reread")


@dataclass(frozen=True)
class Resolved:
    """The settings of a run with the model, objective and configuration that they name; made once and handed on."""

    settings: TrainSettings
    spec: ModelSpec
    objective: type[Objective]
    config: PretrainedConfig
    """It includes fields that the objective sets, such as a task's number of classes."""

    @property
    def head(self) -> type[PreTrainedModel]:
        return head_of(self.spec, self.objective, self.settings.data)

    def check(self) -> None:
        """Raises `UserError` if the model cannot learn the objective from such data, or has too few positions."""
        check_data(self.spec, self.objective, self.config, self.settings.data)


def resolve(
    settings: TrainSettings,
    vocab_size: int,
    init: Path | None = None,
    special: Mapping[str, int] = {},
    *,
    grows: bool = False,
) -> Resolved:
    """Resolve `settings`; `grows` is as in `model_config`.

    Raises `UserError` for an unknown objective, and as `model_config` does.
    """
    spec, objective = spec_of(settings), objective_of(settings)
    config = model_config(spec, settings.model, vocab_size, init, special, grows=grows)
    objective.configure(config, settings.data)
    return Resolved(settings, spec, objective, config)


def resolved_with(settings: TrainSettings, config: PretrainedConfig) -> Resolved:
    """As `resolve`, with a given configuration. Raises `UserError` for an unknown objective."""
    return Resolved(settings, spec_of(settings), objective_of(settings), config)


class Assembly:
    """A model that computes in `dtype` on this process' device, its master weights, optimiser and objective.

    `init` is a folder to start from, or None for random weights from the recipe's seed. `divided_over`: the number of
    processes that `train.parallel.shard_state` divides over, by default the data-parallel ones.
    """

    def __init__(
        self,
        resolved: Resolved,
        mesh: Mesh,
        dtype: torch.dtype,
        *,
        init: Path | None = None,
        dataset: Dataset[Any] | None = None,
        held_out: Dataset[Any] | None = None,
        divided_over: int | None = None,
    ) -> None:
        # Build the model, and freeze what does not learn.
        self.spec, self.config, self.mesh = resolved.spec, resolved.config, mesh
        settings, learned = resolved.settings, resolved.objective
        with mesh.device if mesh.device.type == "meta" else nullcontext():
            new_rows = {} if dataset is None else dataset.new_rows
            self.model = build_model(resolved.head, self.config, init, settings.seed, new_rows).train()
        if dataset is not None:
            learned.begin(self.model, dataset)
        unreached = {*self.spec.untrained(learned.has_global_tokens, self.config), *learned.unreached(settings.data)}
        first_rows = freeze(self.model, settings.trainable, unreached)
        if "attn_implementation" in self.spec.own_keys and mesh.device.type != "meta":
            log.info("attention: transformers' %s (train.model.attn_implementation)", self.config._attn_implementation)
            if getattr(settings.data, "separate_documents", False):
                from reread.training.models.hub import lengths

                lengths.choose(self.model, settings.model.get("attn_implementation"), mesh.device, dtype)
        # Split it over processes, and move it to the device.
        if settings.activation_checkpointing:
            enable = getattr(self.model, "activation_checkpointing_enable", None)  # what later transformers call it
            (enable or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        to_device(self.model, self.spec, mesh)
        if settings.compile:
            compile_layers(self.model, self.spec, mesh)
        elif by_kernels(settings.kernels, mesh.device):
            install(self.model)
        for name in first_rows:
            if hasattr(self.model.get_parameter(name), "logical_shape"):
                raise UserError(
                    f"train.trainable: {name} can be split over devices, so it learns whole or not at all; leave "
                    "out [n:]"
                )
        # Its master weights, optimiser, gradients and objective
        parallel, parameters = settings.parallel, seldom_first(self.model, self.spec.seldom)
        shares = None
        if parallel.shard_state:
            named = self.model.named_parameters()
            whole = {one for name, one in named if updated_whole(name, settings.optimizer, one)}
            shares = shares_of(parameters, mesh, divided_over or mesh.data_size, whole)
        self.masters = MasterWeights(self.model, dtype, first_rows, shares)
        self.optimizer = build_optimizer(self.masters.learning(), settings.optimizer, mesh)
        row = OPTIMIZERS[settings.optimizer.name]
        self._state_names = (*row.state, *(row.hidden_state or ()))
        self.buckets = GradientBuckets(parameters, mesh, parallel.bucket_bytes, reducer(parallel, mesh))
        self._by_kernels = None
        if by_kernels(settings.kernels, mesh.device):
            self._by_kernels = flat_update(self.optimizer, self.masters, self.buckets)
            if dtype != torch.float32 and adds_products(dtype, mesh.device):  # float32 is added by autograd in place
                self.buckets.take_products(add_product)
        self.objective: Objective = learned(self.model, settings, mesh, dataset, held_out)

    def update(self, rate: float, factor: float) -> None:
        """Make one optimiser step at learning rate `rate` on `factor` times the gradients, and update the model."""
        if self._by_kernels:
            self._by_kernels(rate, factor)
        else:
            self.masters.step(self.optimizer, self.buckets, rate, factor)

    def weights(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """Masters and optimiser state by their names in a checkpoint, and the part of its whole tensor that each is."""
        of_parameters = layout(self.model, self.mesh)
        tensors: dict[str, Tensor] = {}
        slices: dict[str, Slice] = {}
        for name, master in self.masters.named_parameters():
            tensors[f"model.{name}"] = master.data
            slices[f"model.{name}"] = self.masters.slice_of(name, of_parameters[name])
        for name, learning in self.masters.learning():
            part = self.masters.slice_of(name, of_parameters[name], self.masters.first_rows.get(name, 0))
            state = self.optimizer.state[learning]
            for key in (key for key in self._state_names if key in state):
                tensors[f"{key}.{name}"] = state[key]
                slices[f"{key}.{name}"] = part
        return tensors, slices

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """All tensors of a checkpoint: `weights` and the state of the objective."""
        tensors, slices = self.weights()
        more, of_objective = self.objective.state()
        return tensors | more, slices | of_objective


def seldom_first(model: PreTrainedModel, seldom: Sequence[str]) -> list[nn.Parameter]:
    """The parameters, those that match `ModelSpec.seldom` first, so that their gradients are reduced last."""
    named = sorted(model.named_parameters(), key=lambda one: not any(fnmatchcase(one[0], glob) for glob in seldom))
    return [parameter for _, parameter in named]


def to_device(model: PreTrainedModel, spec: ModelSpec, mesh: Mesh) -> None:
    """Split the model over the tensor-parallel processes and move this one's part to its device.

    Raises `UserError` if it cannot be split.
    """
    parallelise(model, spec.tensor_plan, mesh)
    model.to(mesh.device)  # type: ignore[arg-type]


def compile_layers(model: PreTrainedModel, spec: ModelSpec, mesh: Mesh) -> None:
    """Have torch.compile compile each layer when it first runs; nothing on the device `meta`.

    Raises `UserError` for a model that needs a graph for each shape, and with tensor parallelism, whose sums over
    processes cannot be compiled.
    """
    if not spec.compiles:
        raise UserError(
            f"train.compile: layers of {spec.name} need a graph for each shape of rows, and torch would soon run them "
            "uncompiled; leave it false: on a GPU kernels of our own (train.kernels) do what it is for"
        )
    if mesh.tensor_size > 1:
        raise UserError("train.compile does not work with tensor parallelism; set compile=false or parallel.tensor=1")
    for module in model.modules() if mesh.device.type != "meta" else ():
        if type(module).__name__ in ([spec.layer] if spec.layer else model._no_split_modules or ()):
            module.compile()


def spec_of(settings: TrainSettings) -> ModelSpec:
    """Raises `UserError` for an unknown type of model, and for tensor parallelism of one that is not split."""
    spec, tensor = model_spec(settings.model.get("type", "")), settings.parallel.tensor
    if tensor > 1 and not spec.tensor_plan:
        raise UserError(
            f"train.parallel.tensor: {tensor}, but {spec.name} is not split over processes; set it to 1, and "
            "for memory take train.parallel.shard_state=true, or a smaller micro_batch"
        )
    return spec


def head_of(spec: ModelSpec, objective: type[Objective], data: DataSettings) -> type[PreTrainedModel]:
    """The model class with the head of `objective`. Raises `UserError` if there is none."""
    if objective.name in spec.heads and (spec.frame == "bare") in data.text_only_values:
        return spec.head(objective.name, data)
    if objective.name != KINDS[data.kind].objective:
        raise UserError(f"train.objective: {objective.name}, but {spec.name} has heads for {', '.join(spec.heads)}")
    learned = [
        name
        for name, kind in KINDS.items()
        if kind.objective in spec.heads and (spec.frame == "bare") in kind.settings.text_only_values
    ]
    if not KINDS[data.kind].settings.is_task and all(KINDS[name].settings.is_task for name in learned):
        raise UserError(
            f"train.data.kind: {data.kind}, but {spec.name} is not pretrained here: `reread convert --model "
            f"{spec.name}` makes it of released weights, and `reread finetune` trains it ({', '.join(learned)})"
        )
    kinds = " or ".join(learned)
    raise UserError(f"train.data.kind: {data.kind}, but {spec.name} learns from {kinds}; set it to {kinds}")


NO_CORPUS = {"pad": 0, "cls": 0, "sep": 0}
"""Special tokens where no corpus is at hand: its ids may be higher; positions that count from them are never fewer."""


def check_model(settings: TrainSettings) -> None:
    """Raises `UserError` for a model that training would refuse with any corpus; needs no corpus."""
    spec, objective = spec_of(settings), objective_of(settings)
    init = settings.init if settings.init and (settings.init / "config.json").exists() else None
    head_of(spec, objective, settings.data)
    given = checked_values(spec, settings.model)
    if init is None and settings.init is not None:
        return  # the rest is checked when the recipe's `start` has made it
    vocab_size = 1 if init else given.get("vocab_size", LARGEST)
    special = {} if init else NO_CORPUS
    check_data(spec, objective, model_config(spec, settings.model, vocab_size, init, special), settings.data)


def check_same_sizes(phases: Sequence[TrainSettings]) -> None:
    """Raises `UserError` if the models of a run's phases have tensors of other shapes."""
    first = phases[0]
    if all(phase.model == first.model for phase in phases):
        return
    init = first.init if first.init and (first.init / "config.json").exists() else None
    shapes: list[dict[str, torch.Size]] = []
    for number, phase in enumerate(phases, 1):
        resolved = resolve(phase, 1 if init else checked_values(spec_of(phase), phase.model).get("vocab_size", 1), init)
        with torch.device("meta"):
            named = build_model(resolved.head, resolved.config, None, 0).named_parameters()
        shapes.append({name: parameter.shape for name, parameter in named})
        if changed := sorted(name for name in shapes[0] if shapes[0][name] != shapes[-1].get(name)):
            theirs, ours = (list(one.get(changed[0], ())) for one in (shapes[0], shapes[-1]))
            raise UserError(
                f"phase {number}: its train.model has other sizes than that of phase 1 ({changed[0]} {ours} here, "
                f"{theirs} there), and all phases train one model"
            )


def check_data(spec: ModelSpec, objective: type[Objective], config: PretrainedConfig, data: DataSettings) -> None:
    """Raises `UserError` if the model cannot learn the objective from such data, or has too few positions."""
    head_of(spec, objective, data)
    if objective.name != KINDS[data.kind].objective and data.kind not in objective.kinds:
        raise UserError(f"train.objective: {objective.name} does not learn from data.kind {data.kind}; set it to null")
    if data.text_only != (spec.frame == "bare"):
        raise UserError(
            f"train.data.special_tokens: {str(not data.text_only).lower()}, but {spec.name} reads text "
            f"{'with' if data.text_only else 'without'} [CLS] and [SEP]; set it to {str(data.text_only).lower()}"
        )
    if getattr(data, "separate_documents", False) and not spec.separates:
        raise UserError(f"train.data.separate_documents: true, but {spec.name} reads a row as a whole; set it to false")
    longest = spec.longest(config)
    if longest is not None and data.sequence_length > longest:
        raise UserError(
            f"train.data.sequence_length: {data.sequence_length}, but this model's positions end at {longest}; lower "
            "it, or raise train.model.max_position_embeddings (of a Longformer's start: `reread convert --length`)"
        )
    objective.check(config, data)
