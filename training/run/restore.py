"""Loads the whole model of a checkpoint, however it was split when it was saved."""

from pathlib import Path

from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.models.build import copy_projections
from reread.training.models.size import check_size
from reread.training.parallel.mesh import Mesh
from reread.training.run.files import RunFile
from reread.training.run.model import RunModel


def restore_model(run: Path, kept: RunModel, step: int | None = None) -> tuple[PreTrainedModel, int]:
    """The model of checkpoint `step`, by default of the best or else the last one, on the CPU; and the step.

    `kept` is from `read_run_model`. Raises `UserError` if there is no such checkpoint, it is damaged, or the
    configuration does not fit it.
    """
    folder = RunFile.CHECKPOINTS.of(run)
    store = CheckpointStore(folder, kept.settings.checkpoint.keep, Mesh())
    step = store.chosen() if step is None else step
    if step is None:
        raise UserError(f"{folder}: no checkpoint yet; train first with `reread train`")
    if step not in store.steps():
        raise UserError(f"{folder}: no step {step}; there are {', '.join(map(str, store.steps()))}")
    if fault := store.fault(step):
        raise UserError(f"{folder}: step {step} is damaged ({fault}); choose another with --step")
    weights, head = store.read_full(step, "model."), kept.head
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
