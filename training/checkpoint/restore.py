"""Loads the whole model of a run's checkpoint, whatever split it was saved at."""

from pathlib import Path

from transformers import PretrainedConfig, PreTrainedModel

from preprocessing.errors import UserError
from training.assembly import head_of, spec_of
from training.checkpoint.store import CheckpointStore
from training.config import TrainSettings
from training.models.build import copy_projections
from training.objectives import objective_of
from training.parallel.mesh import Mesh


def restore_model(
    run: Path, settings: TrainSettings, config: PretrainedConfig, step: int | None = None
) -> tuple[PreTrainedModel, int]:
    """The model of checkpoint `step`, by default the best or the last one, on the CPU, and the step.

    `config` is the run's (`read_run_model`). Raises `UserError` if there is no such checkpoint, it is damaged, or
    `config` does not fit it.
    """
    store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, Mesh())
    step = store.chosen() if step is None else step
    if step is None:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint yet; train first with `reread train`")
    if step not in store.steps():
        raise UserError(f"{run / 'checkpoints'}: no step {step}; there are {', '.join(map(str, store.steps()))}")
    if fault := store.fault(step):
        raise UserError(f"{run / 'checkpoints'}: step {step} is damaged ({fault}); choose another with --step")
    spec = spec_of(settings)
    model = head_of(spec, objective_of(settings), settings.data)(config)
    weights = store.read_full(step, "model.")
    tied = set(model._tied_weights_keys or {})
    missing = {name for name, _ in model.named_parameters()} - weights.keys() - tied
    if missing:
        raise UserError(f"{run / 'checkpoints'}: step {step} lacks {', '.join(sorted(missing)[:5])}; check train.model")
    ours = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if unlike := sorted(name for name, tensor in weights.items() if ours.get(name) != tensor.shape):
        raise UserError(
            f"{run / 'checkpoints'}: {', '.join(unlike[:3])} of step {step} do not fit train.model; revert it"
        )
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    copy_projections(model, spec.copied_in(objective_of(settings).name))
    return model, step
