"""Predictions for examples without labels, from a run or an exported model."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from transformers import PreTrainedModel

from preprocessing.errors import UserError, writing
from preprocessing.files import unfinished
from training.assembly import head_of, place, spec_of
from training.checkpoint.restore import restore_model
from training.config import TrainSettings
from training.data.kinds import KINDS
from training.data.tasks.dataset import TaskDataset
from training.fitting import settings_of_run
from training.models import MODELS, model_spec
from training.models.build import build_model, model_config
from training.objectives import objective_of
from training.objectives.classify import PROBLEM_TYPES
from training.objectives.task import TaskObjective
from training.parallel.mesh import Mesh
from training.parallel.rendezvous import close_mesh, init_mesh
from training.run_model import read_run_model
from training.trainer import local_device

log = logging.getLogger("reread")


def predict(model: Path, settings: TrainSettings, output: Path | None, step: int | None = None) -> None:
    """Write a JSON line for each example of `settings.data.train`, in the file's order, to `output` or standard output.

    Each of the processes that are running does a share. Raises `UserError` for a model without a task's head.
    """
    mesh = init_mesh(settings.parallel.tensor, local_device(), "torch", 60.0)
    try:
        with mesh.together():
            objective, dataset = _prepare(model, settings, mesh, step)
        for name, value in dataset.reading():
            log.info("%s: %s", name, value)
        predictions = objective.predict(dataset)
        if mesh.rank == 0:
            with _lines(output) as file:
                for number, example in enumerate(dataset.examples):
                    line = {"id": example.id, **dataset.written(number, predictions[number])}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    finally:
        close_mesh()


def task_of_export(folder: Path) -> dict[str, Any]:
    """The `train` section of a model exported with a task's head, from its config.json.

    Raises `UserError` for any other folder.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: neither a run nor an exported model ({error})") from None
    name = str(config.get("model_type", "")).removeprefix("reread_")
    spec = model_spec(name) if name in MODELS else None
    head = (config.get("architectures") or [""])[0]
    kinds = [kind for kind, one in (spec.heads.items() if spec else ()) if one.__name__ == head and kind in KINDS]
    if spec is None or not kinds:
        raise UserError(f"{folder}: {head or 'a model'} without a head of a task; fine-tune it with `reread finetune`")
    reading = config.get("reading") or {}
    labels = [label for _, label in sorted(config.get("id2label", {}).items(), key=lambda item: int(item[0]))]
    answers = {theirs: ours for ours, theirs in PROBLEM_TYPES.items()}
    data: dict[str, Any] = {"kind": kinds[0], "train": "", "tokenizer": str(folder), "frame": spec.frame}
    data |= {"sequence_length": reading.get("length") or spec.longest(spec.config(**config)) or 512}
    data |= {key: reading[key] for key in ("step", "predict", "retrospective") if key in reading}
    if kinds[0] in ("classify", "tag"):
        data["labels"] = labels
    if kinds[0] == "classify":
        data["answer"] = answers.get(config.get("problem_type"), "one")
    return {
        "model": {"type": name},
        "init": str(folder),
        "data": data,
        "steps": 0,
        "global_batch": 32,
        "micro_batch": 32,
        "optimizer": {"learning_rate": 1e-5},
    }


def _prepare(
    model: Path, settings: TrainSettings, mesh: Mesh, step: int | None
) -> tuple[TaskObjective, TaskDataset[Any, Any]]:
    spec, learned = spec_of(settings), objective_of(settings)
    if not issubclass(learned, TaskObjective):
        raise UserError(f"{model}: pretrained, not fine-tuned; `reread finetune` gives it the head of a task")
    weights: PreTrainedModel
    if (model / "checkpoints").exists():
        settings, kept = settings_of_run(settings, model), read_run_model(model, settings)
        weights, step = restore_model(model, settings, kept.config, step)
        log.info("step %d of %s", step, model)
    else:
        config = model_config(spec, {}, 1, model)
        learned.configure(config, settings.data)
        weights = build_model(head_of(spec, learned, settings.data), config, model, 0)
    dataset = KINDS[settings.data.kind].open(settings.data, settings.seed, "train")
    assert isinstance(dataset, TaskDataset)
    if not len(dataset):
        raise UserError(f"{settings.data.place}: holds no example")
    place(weights, spec, mesh)
    return learned(weights, settings, mesh, dataset), dataset


@contextmanager
def _lines(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    temporary = unfinished(output)
    with writing(output), temporary.open("w", encoding="utf-8") as file:
        yield file
        temporary.replace(output)
