"""Loads the whole model of a checkpoint, however it was split when it was saved."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.models.build import copy_projections
from reread.training.models.size import check_size
from reread.training.parallel.mesh import Mesh
from reread.training.run.files import RunFile
from reread.training.run.model import RunModel

log = logging.getLogger("reread")


def restore_model(
    run: Path, kept: RunModel, step: int | None = None, averaged: Sequence[int] = ()
) -> tuple[PreTrainedModel, int]:
    """The model of checkpoint `step`, by default of the best or else the last one, on the CPU; and the step.

    With the steps `averaged` its weights are the mean of those of these checkpoints; the step is their last.
    `kept` is from `read_run_model`. Raises `UserError` if there is no such checkpoint, it is damaged, or the
    configuration does not fit it.
    """
    folder = RunFile.CHECKPOINTS.of(run)
    store = CheckpointStore(folder, kept.settings.checkpoint.keep, Mesh())
    steps: Sequence[int | None] = averaged or [store.chosen() if step is None else step]
    for one in steps:
        if one is None:
            raise UserError(f"{folder}: no checkpoint yet; train first with `reread train`")
        if one not in store.steps():
            raise UserError(f"{folder}: no step {one}; there are {', '.join(map(str, store.steps()))}")
        if fault := store.fault(one):
            raise UserError(f"{folder}: step {one} is damaged ({fault}); choose another with --step")
    *others, step = [one for one in steps if one is not None]
    weights, head = store.read_full(step, "model."), kept.head
    for one in others:
        added = store.read_full(one, "model.")
        torch._foreach_add_(list(weights.values()), [added[name] for name in weights])
    if others:
        torch._foreach_div_(list(weights.values()), len(steps))
        log.info("the weights are the average of steps %s", _listed(steps))
    check_size(head, kept.config, sum(tensor.numel() for tensor in weights.values()), f"{folder}: step {step}")
    model = head(kept.config)
    tied = set(model._tied_weights_keys or {})
    missing = {name for name, _ in model.named_parameters()} - weights.keys() - tied
    if missing:
        raise UserError(f"{folder}: step {step} lacks {', '.join(sorted(missing)[:5])}; check train.model")
    ours = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if unlike := sorted(name for name, tensor in weights.items() if ours.get(name) != tensor.shape):
        raise UserError(f"{folder}: {', '.join(unlike[:3])} of step {step} do not fit train.model; revert it")
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    copy_projections(model, kept.spec.untrained(kept.objective.has_global_tokens, kept.config))
    return model, step


def averaged_steps(run: Path, average: str | None, step: int | None = None) -> list[int]:
    """The steps, in order, whose weights `average` names: the last N checkpoints, up to `step` if it is given, or those
    in a list, STEP,STEP,...; none for None. Raises `UserError` for what names fewer than two, and for more than there
    are."""
    if average is None:
        return []
    numbers = average.split(",")
    given = sorted({int(one) if one.strip().isdecimal() else 0 for one in numbers})
    if 0 in given or given == [1] or len(given) < len(numbers):
        raise UserError(f"average {average}: a number of checkpoints from 2 on, or their steps: 1000,2000,3000")
    if len(given) > 1:
        return given
    folder = RunFile.CHECKPOINTS.of(run)
    there = [one for one in CheckpointStore(folder, 1, Mesh()).steps() if step is None or one <= step]
    if given[0] > len(there):
        raise UserError(
            f"average {average}: {folder} holds {len(there)} checkpoints ({_listed(there) or 'none'}); a run keeps "
            "the last train.checkpoint.keep of them, which may be raised when it is continued"
        )
    return there[-given[0] :]


def average_of(steps: Sequence[int]) -> list[str]:
    """What an evaluation of the average of these checkpoints lists after its overrides; nothing for none."""
    return [f"average={','.join(map(str, steps))}"] if steps else []


def _listed(steps: Sequence[int | None]) -> str:
    return ", ".join(map(str, steps))
