"""A run's checkpoint -> the Hugging Face folder of its model."""

import json
from pathlib import Path
from typing import Any

from preprocessing.errors import UserError
from training.checkpoint.export import model_card, write_huggingface
from training.checkpoint.store import CheckpointStore
from training.config import TrainSettings
from training.data.source import open_source
from training.metrics import read_metrics
from training.models import model_spec
from training.models.build import model_config
from training.parallel.mesh import Mesh
from training.provenance import corpus_facts


def export_run(run: Path, folder: Path, settings: TrainSettings, examples: list[str], step: int | None = None) -> None:
    """Write the model of checkpoint `step`, or of the last one, whatever the split it was saved at.

    Raises `UserError` if the run has no (such) checkpoint.
    """
    store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, Mesh())
    step = store.latest() if step is None else step
    if step is None:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint yet; train first with `reread train`")
    if step not in store.steps():
        raise UserError(f"{run / 'checkpoints'}: none of step {step}; there are {', '.join(map(str, store.steps()))}")
    if fault := store.fault(step):
        raise UserError(f"{run / 'checkpoints'}: that of step {step} is damaged ({fault}); export another with --step")
    source = open_source(settings.data, settings.seed, "train")
    spec = model_spec(settings.model["type"])
    config = model_config(spec, settings.model, source.vocab_size, settings.init)
    model = spec.pretraining(config)
    weights = store.read_full(step, "model.")
    tied = set(model._tied_weights_keys or {})
    missing = {name for name, _ in model.named_parameters()} - weights.keys() - tied
    if missing:
        raise UserError(f"{run / 'checkpoints'}: step {step} lacks {', '.join(sorted(missing)[:5])}; is it this model?")
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    write_huggingface(folder, model, source.tokenizer_folder, _card(run, settings, step, examples))


def _card(run: Path, settings: TrainSettings, step: int, examples: list[str]) -> str:
    figures: dict[str, Any] = {}
    for line in read_metrics(run):
        if line["step"] <= step:
            figures |= {name: round(value, 4) for name, value in line.items() if name.endswith(("loss", "accuracy"))}
    sections = {
        "Figures at the end": {"steps": step, **figures},
        "Corpus": _corpus(settings.data.corpus),
        "Recipe": settings.model_dump(mode="json", exclude={"parallel", "checkpoint"}),
    }
    summary = f"Pretrained by reread for {step:,} steps of {settings.global_batch:,} rows."
    return model_card(settings.model["type"], summary, sections, examples)


def _corpus(folder: Path) -> dict[str, Any]:
    """What the model card says of the corpus: counts and sources, from its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        **corpus_facts(folder),
        "dropped": manifest.get("dropped", {}),
        "sources": [Path(source["path"]).name for source in manifest.get("sources", [])],
    }
