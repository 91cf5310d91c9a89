"""A run's checkpoint -> the Hugging Face folder of its model."""

import json
from pathlib import Path
from typing import Any

from training.assembly import spec_of
from training.checkpoint.restore import restore_model
from training.config import TrainSettings
from training.data.kinds import open_dataset
from training.data.readings import SegmentSettings
from training.exchange.export import model_card, write_huggingface
from training.metrics import quality, read_metrics
from training.objectives import objective_of
from training.provenance import corpus_facts


def export_run(run: Path, folder: Path, settings: TrainSettings, examples: list[str], step: int | None = None) -> None:
    """Write the model of checkpoint `step`, or of the last one, whatever the split it was saved at.

    Raises `UserError` if the run has no (such) checkpoint.
    """
    source = open_dataset(settings.data, settings.seed, "train")
    model, step = restore_model(run, settings, source, step)
    if isinstance(settings.data, SegmentSettings):
        model.config.segment_length = settings.data.sequence_length  # `read` cuts a document as training did
    write_huggingface(folder, model, source.tokenizer_folder, _card(run, settings, step, examples))


def _card(run: Path, settings: TrainSettings, step: int, examples: list[str]) -> str:
    figures: dict[str, Any] = {}
    for line in read_metrics(run):
        if line["step"] <= step:
            figures |= {name: round(line[name], 4) for name in quality(line)}
    sections = {
        "Figures at the end": {"steps": step, **figures},
        "Corpus": _corpus(settings.data.corpus),
        "Recipe": settings.model_dump(mode="json", exclude={"parallel", "checkpoint"}),
    }
    summary = f"Pretrained by reread for {step:,} steps of {settings.global_batch:,} rows."
    return model_card(spec_of(settings), objective_of(settings), summary, sections, examples)


def _corpus(folder: Path) -> dict[str, Any]:
    """What the model card says of the corpus: counts and sources, from its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        **corpus_facts(folder),
        "dropped": manifest.get("dropped", {}),
        "sources": [Path(source["path"]).name for source in manifest.get("sources", [])],
    }
