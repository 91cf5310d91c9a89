"""The scores of ONNX files on a task's dev examples, beside torch's, and the time that a row takes."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.data.tasks.settings import task_of
from reread.training.exchange.onnx import Graph, run, session_of
from reread.training.models.heads import HeadOutput, SpanOutput
from reread.training.parallel.mesh import Mesh
from reread.training.run.model import RunModel
from reread.training.scoring.task_scores import SCORES, formatted

log = logging.getLogger("reread")


def log_scores(kept: RunModel, settings: TrainSettings, graph: Graph, files: Mapping[str, Path]) -> None:
    """Log the scores and the milliseconds a row of torch and of each of the `files` of a task's graph, by name, on dev;
    why there are none, if there is no such file. `settings` are those of the run with its `auto` chosen."""
    task = task_of(settings.data)
    assert task is not None
    try:
        held_out: Any = open_dataset(settings.data, settings.seed, "validation")
    except UserError as error:
        log.info("no scores beside the files: %s", error)
        return
    if len(held_out) == 0:
        log.info("no scores beside the files: the run has no dev examples (task.dev)")
        return
    model: Any = graph.model
    objective = kept.objective(model, settings, Mesh(), held_out=held_out)
    for name, file in {"torch": None, **files}.items():
        with _forward(model, graph, file) as time:
            figures = objective.held_out_summary(None)
        model.eval()
        scores = ", ".join(
            f"{score} {formatted(score, figures[score])}" for score in SCORES[task.scored_as] if score in figures
        )
        log.info("%s: %s: %s, %.1f ms a row", task.held_out, name, scores, 1000 * time[0] / max(time[1], 1))


@contextmanager
def _forward(model: Any, graph: Graph, file: Path | None) -> Iterator[list[float]]:
    """Within it `model` computes by `file`, or by torch for None; yields the seconds and the rows so far."""
    session, plain, spent = None if file is None else session_of(file), model.forward, [0.0, 0.0]

    def forward(**given: Any) -> Any:
        begin = perf_counter()
        output = plain(**given) if session is None else _by_session(graph, session, given)
        ids = given["input_ids"]
        spent[0] += perf_counter() - begin
        spent[1] += ids.shape[:-1].numel()
        return output

    model.forward = forward
    try:
        yield spent
    finally:
        del model.forward


def _by_session(graph: Graph, session: Any, given: Mapping[str, Any]) -> Any:
    """A head's output for its arguments, computed by a session."""
    ids: Tensor = given["input_ids"]
    tensors = {name: given.get(name, torch.zeros_like(ids)) for name in graph.inputs if not name.startswith("mems_")}
    mems = given.get("mems") or (graph.model.empty_mems(len(ids)) if graph.memories else ())  # type: ignore[operator]
    tensors |= {f"mems_{number}": memory.float() for number, memory in enumerate(mems)}
    found = dict(zip(graph.outputs, run(session, tensors), strict=True))
    new = tuple(found.pop(f"new_mems_{number}") for number in range(graph.memories))
    return (SpanOutput if "start_logits" in found else HeadOutput)(**found, mems=new or None)
