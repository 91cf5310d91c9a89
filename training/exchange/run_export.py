"""Exports a run's checkpoint as a Hugging Face folder."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from reread.training.config import TrainSettings
from reread.training.data.tasks.dataset import special_tokens
from reread.training.data.tasks.settings import task_of
from reread.training.exchange.card import Measured, model_card, score_entries
from reread.training.exchange.export import write_huggingface
from reread.training.exchange.onnx import FOLDER, OPSET, check_onnx, graphs, quantise, write_graph
from reread.training.exchange.onnx_scores import log_scores
from reread.training.models.build import UNTRAINED_POOLER, vocabulary_of
from reread.training.run.auto import settings_of_run
from reread.training.run.metrics import each_metrics, quality, read_evaluations
from reread.training.run.model import RunModel, read_run_model
from reread.training.run.restore import average_of, averaged_steps, restore_model
from reread.training.scoring.task_scores import SCORES

log = logging.getLogger("reread")

AVERAGED = "averaged_steps"
"""In an export's config.json: the checkpoints of which its weights are the average."""
NO_POOLER = (
    "the objective has no pairs of texts or order of chunks, so `pooler_output` is that of random weights; "
    "`last_hidden_state` is trained, and fine-tuning trains both"
)


def export_run(
    run: Path,
    folder: Path,
    settings: TrainSettings,
    examples: list[str],
    step: int | None = None,
    known: Mapping[str, Any] = {},
    average: str | None = None,
    *,
    onnx: bool = False,
    int8: bool = False,
) -> None:
    """Write the model of checkpoint `step`, by default the last one, whatever split it was saved at; with `average` the
    mean of several checkpoints (`averaged_steps`), which config.json and the card say.

    With `onnx` the folder also has graphs for onnxruntime, and with `int8` the same with weights of 8 bits; of a task
    the scores of all on dev are logged. Only the run folder is needed. `known` are entries of the card's front matter
    that the run does not have. Raises `UserError` if the run has no (such) checkpoint, and for a model that is no graph
    (`check_onnx`).
    """
    kept = read_run_model(run, settings)
    if onnx:
        check_onnx(kept.spec, kept.objective.name, kept.config)
    averaged = averaged_steps(run, average, step)
    model, step = restore_model(run, kept, step, averaged)
    if averaged:
        setattr(model.config, AVERAGED, averaged)
    if untrained := kept.untrained_pooler and any(".pooler." in f".{name}" for name in model.state_dict()):
        log.info("nothing has trained the pooler: %s", NO_POOLER)
        setattr(model.config, UNTRAINED_POOLER, True)
    pipeline = kept.objective.card.pipeline
    known = {
        **known,
        **score_entries(run.name, pipeline, list(_measured(run, kept, step, averaged)), known.get("datasets", ())),
    }
    card = _card(run, kept, step, averaged, examples, untrained, known)
    further: Callable[[Path], object] = lambda temporary: None  # noqa: E731
    if onnx:
        further = partial(_write_graphs, run, kept, model, int8)
    write_huggingface(folder, model, kept.tokenizer_folder, card, further=further)


def _write_graphs(run: Path, kept: RunModel, model: PreTrainedModel, int8: bool, folder: Path) -> None:
    """Write the graphs of a model to FOLDER/onnx, and say what they are."""
    spec, objective = kept.spec, kept.objective.name
    model.eval()
    special = special_tokens(kept.tokenizer_folder, vocabulary_of(kept.tokenizer_folder)).values()
    about = {"model_type": spec.name, "objective": objective}
    for graph in graphs(model, spec, objective, list(special), not kept.untrained_pooler):
        written = write_graph(folder / FOLDER, graph, spec, about)
        rows = ", ".join(f"{rows} x {length}" for rows, length in written.shapes)
        log.info(
            "%s/%s: opset %d, %s -> %s; as torch within %.1g for rows of other lengths (%s tokens), with padding",
            *(FOLDER, written.path.name, OPSET, ", ".join(graph.inputs), ", ".join(graph.outputs)),
            *(written.difference, rows),
        )
        files = {f"{FOLDER}/{written.path.name}": written.path}
        if int8:
            small = quantise(written.path)
            files[f"{FOLDER}/{small.name}"] = small
            sizes = [_megabytes(path) for path in (written.path, small)]
            log.info("%s/%s: %s instead of %s; its outputs are close, not equal", FOLDER, small.name, *sizes[::-1])
        if int8 and task_of(kept.settings.data):
            log_scores(kept, settings_of_run(kept.settings, run), graph, files)
    if longest := spec.longest(kept.config):
        log.info("a graph reads rows of up to %d tokens; longer texts are cut before: docs/serving.md", longest)


def _megabytes(file: Path) -> str:
    """The size of a graph with the weights beside it."""
    return f"{sum(one.stat().st_size for one in file.parent.glob(f'{file.name}*')) / 1e6:,.1f} MB"


def _card(
    run: Path,
    kept: RunModel,
    step: int,
    averaged: Sequence[int],
    examples: list[str],
    untrained_pooler: bool,
    known: Mapping[str, Any],
) -> str:
    settings = kept.settings
    # What was logged in training is of single checkpoints.
    figures = {name: round(value, 4) for name, value in ({} if averaged else _figures(run, step)).items()}
    sections = {
        "Figures at the end": {"steps": step, **figures},
        "Corpus": kept.corpus,
        "Recipe": settings.model_dump(mode="json", exclude={"parallel", "checkpoint"}),
    }
    what, of = ("Fine-tuned", "examples") if task_of(settings.data) else ("Pretrained", "rows")
    summary = f"{what} by reread for {step:,} steps of {settings.batch} {of}."
    if averaged:
        summary += f" Its weights are the average of those at steps {', '.join(map(str, averaged))}."
    if untrained_pooler:
        summary += f" Nothing has trained its pooler: {NO_POOLER}."
    cleaning = kept.corpus.get("cleaning", [])  # labelled data has none
    lengths = {**kept.config.to_dict(), "sequence_length": settings.data.sequence_length}
    return model_card(kept.spec, kept.objective, summary, sections, examples, lengths, cleaning, known)


def _figures(run: Path, step: int) -> dict[str, Any]:
    """The last values of losses and the like that were logged up to `step`."""
    found: dict[str, Any] = {}
    chosen = cache(quality)  # most lines have the same names
    for line in each_metrics(run):
        if line["step"] <= step:
            found |= {name: line[name] for name in chosen(tuple(line))}
    return found


def _measured(run: Path, kept: RunModel, step: int, averaged: Sequence[int] = ()) -> Iterator[Measured]:
    """What `reread evaluate` and `finetune` have measured of this checkpoint or average, read as in training."""
    data, task = kept.settings.data, task_of(kept.settings.data)
    other = data.other_text.partition("=")[0]
    for one in read_evaluations(run):
        read_by = [override for override in one["overrides"] if not override.startswith(f"{other}=")]
        if one["step"] == step and read_by == average_of(averaged):
            names = SCORES[task.scored_as] if task else quality(one["figures"])
            scores = {name: one["figures"][name] for name in names if name in one["figures"]}
            is_test = task is not None and one["held_out"] == str(task.test)
            yield Measured(Path(one["held_out"]).name, "test" if is_test else "validation", scores)
