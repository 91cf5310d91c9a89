"""A run's checkpoint -> the model it holds, whole, whatever the split it was saved at."""

from pathlib import Path

from transformers import PreTrainedModel

from preprocessing.errors import UserError
from training.checkpoint.store import CheckpointStore
from training.config import TrainSettings
from training.models import model_spec
from training.models.build import model_config
from training.parallel.mesh import Mesh


def restore_model(
    run: Path, settings: TrainSettings, vocab_size: int, step: int | None = None
) -> tuple[PreTrainedModel, int]:
    """The model of checkpoint `step`, or of the last one, on CPU, and the step.

    Raises `UserError` if the run has no (such) checkpoint, or it is damaged.
    """
    store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, Mesh())
    step = store.latest() if step is None else step
    if step is None:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint yet; train first with `reread train`")
    if step not in store.steps():
        raise UserError(f"{run / 'checkpoints'}: none of step {step}; there are {', '.join(map(str, store.steps()))}")
    if fault := store.fault(step):
        raise UserError(f"{run / 'checkpoints'}: that of step {step} is damaged ({fault}); take another with --step")
    spec = model_spec(settings.model["type"])
    model = spec.pretraining(model_config(spec, settings.model, vocab_size, settings.init))
    weights = store.read_full(step, "model.")
    tied = set(model._tied_weights_keys or {})
    missing = {name for name, _ in model.named_parameters()} - weights.keys() - tied
    if missing:
        raise UserError(f"{run / 'checkpoints'}: step {step} lacks {', '.join(sorted(missing)[:5])}; is it this model?")
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model, step
