"""The table of optimisers, and the construction of the one that the recipe names."""

import importlib.util
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from reread.preprocessing.errors import UserError
from reread.training.config import OptimizerSettings
from reread.training.optim.lamb import Lamb
from reread.training.optim.muon import Muon, is_hidden_matrix
from reread.training.optim.stable_adamw import StableAdamW
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings, mesh: Mesh
) -> torch.optim.Optimizer:
    """The optimiser that the settings name, with initialised state. Biases and layer norms are not decayed."""
    common: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps}
    row = OPTIMIZERS[settings.name]
    return with_state(row.make(_groups(named_parameters, settings), common, settings, mesh), row.state)


def updated_whole(name: str, settings: OptimizerSettings, parameter: nn.Parameter) -> bool:
    """Whether an update of this parameter needs all of it, so that processes cannot divide it."""
    return OPTIMIZERS[settings.name].hidden_state is not None and is_hidden_matrix(name, parameter)


def with_state(optimizer: torch.optim.Optimizer, names: tuple[str, ...]) -> torch.optim.Optimizer:
    """`optimizer` with tensors of zeros of these names for each parameter, of other names in groups that have `state`,
    and no steps taken."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros = {name: torch.zeros_like(parameter) for name in group.get("state", names)}
            optimizer.state[parameter].update(zeros)
    set_steps_taken(optimizer, 0)
    return optimizer


def _adam(
    groups: list[dict[str, Any]], common: dict[str, Any], settings: OptimizerSettings, mesh: Mesh
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, **common)


def _lamb(
    groups: list[dict[str, Any]], common: dict[str, Any], settings: OptimizerSettings, mesh: Mesh
) -> torch.optim.Optimizer:
    """LAMB. Apex's FusedLAMB computes the `standard` variant if it is installed and nothing is split."""
    divided = _divided(groups)
    if (missing := _why_not_apex(settings, mesh, divided)) is None:
        from apex.optimizers import FusedLAMB

        log.info("optimizer: lamb standard, by apex's FusedLAMB")
        # gradients come clipped
        fused: torch.optim.Optimizer = FusedLAMB(
            groups, weight_decay=settings.weight_decay, max_grad_norm=float("inf"), **common
        )
        return fused
    log.info("optimizer: lamb %s, our own (%s)", settings.variant, missing)
    common |= {"weight_decay": settings.weight_decay, "variant": settings.variant}
    return Lamb(groups, tensor_group=mesh.tensor_group, data_group=mesh.data_group if divided else None, **common)


def _stable_adamw(
    groups: list[dict[str, Any]], common: dict[str, Any], settings: OptimizerSettings, mesh: Mesh
) -> torch.optim.Optimizer:
    divided = _divided(groups)
    return StableAdamW(
        groups, tensor_group=mesh.tensor_group, data_group=mesh.data_group if divided else None, **common
    )


def _muon(
    groups: list[dict[str, Any]], common: dict[str, Any], settings: OptimizerSettings, mesh: Mesh
) -> torch.optim.Optimizer:
    """Muon. Raises `UserError` with tensor parallelism."""
    if mesh.tensor_size > 1:
        raise UserError(
            "train.optimizer.name: muon needs whole matrices, which tensor parallelism splits; set parallel.tensor=1 "
            "(parallel.shard_state divides the optimiser's state between matrices), or another optimizer.name"
        )
    return Muon(groups, momentum=settings.momentum, **common)


def _divided(groups: list[dict[str, Any]]) -> bool:
    """Whether data-parallel processes hold other rows of the parameters."""
    return any(getattr(one, "divided", False) for group in groups for one in group["params"])


class OptimizerRow(NamedTuple):
    make: Callable[[list[dict[str, Any]], dict[str, Any], OptimizerSettings, Mesh], torch.optim.Optimizer]
    """(parameter groups, values common to all, settings, mesh) -> the optimiser."""
    state: tuple[str, ...]
    """Tensors that it keeps for each parameter, in its shape; they are saved and loaded."""
    hidden_state: tuple[str, ...] | None = None
    """Those of matrices of the layers (`is_hidden_matrix`), if it updates each of these as a whole; None: they are as
    the others."""


OPTIMIZERS = {
    "lamb": OptimizerRow(_lamb, MOMENTS),
    "adam": OptimizerRow(_adam, MOMENTS),
    "stable_adamw": OptimizerRow(_stable_adamw, MOMENTS),
    "muon": OptimizerRow(_muon, MOMENTS, ("momentum_buffer",)),
}
"""The optimisers by `train.optimizer.name`."""


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    """Updates made so far, on which bias correction depends; skipped steps do not count."""
    group = optimizer.param_groups[0]
    return int(group["step"] if "step" in group else optimizer.state[group["params"][0]]["step"])


def set_steps_taken(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Set the number of updates, after the moments have been loaded."""
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.AdamW):  # which counts the steps of each parameter
            for parameter in group["params"]:
                optimizer.state[parameter]["step"] = torch.tensor(float(steps))
        else:
            group["step"] = steps


def _groups(named_parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Parameters by weight decay and `scale`, the factor of their layer on the learning rate."""
    named = list(named_parameters)
    layers = 1 + max((int(found[1]) for name, _ in named if (found := _LAYER.search(name))), default=-1)
    of_head = (settings.head_learning_rate or settings.learning_rate) / settings.learning_rate
    groups: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        plain = name.endswith("bias") or _NORM.search(name) is not None
        below = _layers_below_the_head(name, layers)
        scale = settings.layer_decay**below if below else of_head
        groups.setdefault((plain, scale, updated_whole(name, settings, parameter)), []).append(parameter)
    hidden = {"hidden": True, "state": OPTIMIZERS[settings.name].hidden_state}
    return [
        {
            "params": groups[plain, scale, whole],
            "weight_decay": 0.0 if plain else settings.weight_decay,
            "scale": scale,
            **(hidden if whole else {}),
        }
        for plain, scale, whole in sorted(groups, key=lambda one: (one[0], -one[1], one[2]))
    ]


_LAYER = re.compile(r"\.layers?\.(\d+)\.")
_NORM = re.compile(r"LayerNorm|layer_norm|(?:^|[._])norm\.")
"""The last two are ModernBERT's: `final_norm`, `head.norm`."""


def _layers_below_the_head(name: str, layers: int) -> int:
    """1 for the top layer, `layers` for the lowest, one more for embeddings, 0 for the rest: heads and poolers."""
    if found := _LAYER.search(name):
        return layers - int(found[1])
    return layers + 1 if ".embeddings" in name else 0


def _why_not_apex(settings: OptimizerSettings, mesh: Mesh, divided: bool = False) -> str | None:
    if settings.variant != "standard":
        return "apex has no such variant"
    if mesh.tensor_size > 1 or divided:
        return "apex would use the norm of a part instead of the tensor's"
    if mesh.device.type != "cuda":
        return "apex needs a GPU"
    if torch.version.hip:
        return "apex is NVIDIA's and this torch is built for ROCm"
    return _apex_lacks()


def _apex_lacks() -> str | None:
    """The reason why the installed module apex cannot be used; None if it can. Only NVIDIA's is imported."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return "apex is not installed"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not any((folder / "optimizers" / "fused_lamb.py").exists() for folder in folders):
        location = spec.origin or ", ".join(map(str, folders))
        return f"the module apex in {location} is not NVIDIA's and not used; `make apex` builds NVIDIA's"
    if importlib.util.find_spec("amp_C") is None:
        return "NVIDIA's apex is here, but not its CUDA extension amp_C; `make apex` builds both"
    try:
        import amp_C  # noqa: F401
        from apex.optimizers import FusedLAMB  # noqa: F401
    except Exception as error:  # a build against another torch may raise anything
        return f"apex cannot be imported: {' '.join(str(error).split())}"
    return None
