"""Exports a run's checkpoint as a Hugging Face folder."""

from pathlib import Path
from typing import Any

from training.assembly import spec_of
from training.checkpoint.restore import restore_model
from training.config import TrainSettings
from training.exchange.export import model_card, write_huggingface
from training.metrics import quality, read_metrics
from training.objectives import objective_of
from training.run_model import RunModel, read_run_model


def export_run(run: Path, folder: Path, settings: TrainSettings, examples: list[str], step: int | None = None) -> None:
    """Write the model of checkpoint `step`, by default the last one, whatever split it was saved at.

    Only the run folder is needed. Raises `UserError` if the run has no (such) checkpoint.
    """
    kept = read_run_model(run, settings)
    model, step = restore_model(run, settings, kept.config, step)
    write_huggingface(folder, model, kept.tokenizer_folder, _card(run, settings, kept, step, examples))


def _card(run: Path, settings: TrainSettings, kept: RunModel, step: int, examples: list[str]) -> str:
    figures: dict[str, Any] = {}
    for line in read_metrics(run):
        if line["step"] <= step:
            figures |= {name: round(line[name], 4) for name in quality(line)}
    sections = {
        "Figures at the end": {"steps": step, **figures},
        "Corpus": kept.corpus,
        "Recipe": settings.model_dump(mode="json", exclude={"parallel", "checkpoint"}),
    }
    summary = f"Pretrained by reread for {step:,} steps of {settings.global_batch:,} rows."
    cleaning = kept.corpus.get("cleaning", [])  # runs of earlier versions lack it
    lengths = {**kept.config.to_dict(), "sequence_length": settings.data.sequence_length}
    return model_card(spec_of(settings), objective_of(settings), summary, sections, examples, lengths, cleaning)
