"""Predictions for examples without labels, from a run or an exported model."""

import json
import logging
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError, close_to, first_line
from reread.preprocessing.input.fields import json_type
from reread.preprocessing.labelled.examples import Example
from reread.training.assembly import Resolved, resolve, to_device
from reread.training.config import TrainSettings
from reread.training.continued_file import Continued, continued_file
from reread.training.data.kinds import KINDS, open_task
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.settings import task_of
from reread.training.exchange.sentence_transformers import pooling_of
from reread.training.models import MODELS, model_spec
from reread.training.models.build import build_model
from reread.training.models.spec import ModelSpec
from reread.training.objectives import as_task
from reread.training.objectives.classify import PROBLEM_TYPES
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import close_mesh, init_mesh
from reread.training.run.auto import settings_of_run
from reread.training.run.files import RUNS, RunFile
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from reread.training.run.threads import use_threads
from reread.training.trainer import local_device

log = logging.getLogger("reread")

PART = 10_000
"""Examples that are predicted before their lines are written."""


def predict(
    model: Path, settings: TrainSettings, output: Path | None, step: int | None = None, echo: bool = False
) -> None:
    """Write a JSON line for each example of `settings.data.train`, or for each question about several of its texts, in
    the file's order, to `output` or standard output;
    with `echo` the example's texts, too. If it is interrupted, the same call goes on with the file.

    Each of the processes that are running does a share. Raises `UserError` for a model without a task's head.
    """
    mesh = init_mesh(settings.parallel.tensor, local_device(), "torch", 60.0)
    try:
        with mesh.together():
            objective, dataset = _prepare(model, settings, mesh, step)
        use_threads(settings, model, RunFile.CHECKPOINTS.of(model).exists(), mesh)
        for name, value in dataset.coverage():
            log.info("%s: %s", name, value)
        with ExitStack() as stack:
            with mesh.together():
                file = stack.enter_context(_lines(output, objective, dataset, echo)) if mesh.rank == 0 else None
            begin = mesh.gather(file.lines if file else 0)[0][0]
            if begin:
                log.info("%s: an interrupted command wrote %s predictions; going on after them", output, f"{begin:,}")
            lines = dataset.lines
            total = len(dataset) if lines is None else len(lines)
            for first in range(begin, total, PART):
                part = range(first, min(first + PART, total))
                members = [[number] if lines is None else lines[number] for number in part]
                predictions = objective.predict(dataset, np.array([one for line in members for one in line]))
                with mesh.together():
                    if file:
                        file.write(_line(dataset, line, predictions, echo) for line in members)
    finally:
        close_mesh()


def _line(dataset: TaskDataset[Any, Any], members: Sequence[int], predictions: Mapping[int, Any], echo: bool) -> str:
    number = dataset.best_of(members, predictions)
    example = dataset.examples[number]
    echoed = {"input": texts_of(example)} if echo else {}
    values = {"id": example.id, **echoed, **dataset.written(number, predictions[number])}
    return json.dumps(values, ensure_ascii=False)


def texts_of(example: Example) -> dict[str, Any]:
    """What the model reads of an example, by the names of its fields."""
    return {name: value for name in example.read if (value := getattr(example, name)) is not None}


def task_of_export(folder: Path) -> dict[str, Any]:
    """The `train` section of a model exported with a task's head, from its config.json.

    Raises `UserError` for any other folder.
    """
    config, spec, heads = described(folder)
    kinds = [kind for kind in heads if kind in KINDS]
    if spec is None or not kinds:
        head = (config.get("architectures") or ["a model"])[0]
        raise UserError(f"{folder}: {head} without a head of a task; fine-tune it with `reread finetune`")
    path, task = folder / "config.json", config.get("task")
    name_of_task = kinds[0]
    if isinstance(task, dict):
        name_of_task = task["kind"] if task.get("kind") in kinds else name_of_task
    else:
        task = _task_without(path, config, name_of_task, spec)
        settings = KINDS[name_of_task].settings
        unknown = sorted(settings.model_fields.keys() - task.keys() - settings.file_fields - {"kind", "frame"})
        log.info(
            "%s: no `task`, as in other people's models: %s have their defaults; give "
            "those that the model was trained with, as task.KEY=VALUE",
            *(path, ", ".join(unknown)),
        )
    return {
        "model": {"type": spec.name},
        "init": str(folder),
        "data": {**task, "kind": name_of_task, "train": "", "tokenizer": str(folder), "frame": spec.frame},
        "steps": 0,
        "global_batch": 32,
        "micro_batch": 32,
        "optimizer": {"learning_rate": 1e-5},
    }


def described(folder: Path) -> tuple[dict[str, Any], ModelSpec | None, list[str]]:
    """The config.json of an exported model, its specification if it is one of ours, and the objectives of its head.

    Raises `UserError` for a folder without such a file, and for wild values in it.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: neither a run nor an exported model; {_where_models_are(folder)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder}: neither a run nor an exported model ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not the configuration of a model; export the run again with `reread export`")
    for field, value, kind in _kinds(config):
        if not isinstance(value, kind):
            raise UserError(f"{path}: {field} is {json_type(value)}; export the run again with `reread export`")
    name = str(config.get("model_type", "")).removeprefix("reread_")
    spec = model_spec(name) if name in MODELS else None
    head = (config.get("architectures") or [""])[0]
    return config, spec, [kind for kind, one in (spec.heads.items() if spec else ()) if one.__name__ == head]


def _where_models_are(folder: Path) -> str:
    """The way out for a path at which no model is."""
    if folder.exists():
        return "it holds no recipe.yaml and no config.json, so give another folder"
    runs = sorted(path.name for path in RUNS.glob("*") if RunFile.RECIPE.of(path).exists())
    if near := close_to(folder.name, runs, 0.7):
        return f"did you mean the run `{near[0]}`?"
    return "give a run's name or a folder; a model of the Hub is a folder after `hf download NAME --local-dir FOLDER`"


def _task_without(path: Path, config: dict[str, Any], kind: str, spec: ModelSpec) -> dict[str, Any]:
    """What a configuration without `task`, that of the file `path`, says of it."""
    reading, labels = config.get("reading") or {}, config.get("id2label") or {}
    task = {key: reading[key] for key in ("step", "predict", "retrospective") if key in reading}
    try:
        longest = spec.longest(spec.config(**config))
    except Exception as error:  # ours raise ValueError; those of transformers depend on the version
        raise UserError(f"{path}: {first_line(error)}; export the run again") from None
    task["sequence_length"] = reading.get("length") or longest or 512
    if not all(str(number).isdecimal() for number in labels):
        raise UserError(f"{path}: id2label has a key that is no number; export the run again")
    if kind == "embed" and (pooling := pooling_of(path.parent)):
        task["pooling"] = pooling
    if kind in ("classify", "tag"):
        task["labels"] = [labels[number] for number in sorted(labels, key=int)]
    if kind == "classify":
        answers = {theirs: ours for ours, theirs in PROBLEM_TYPES.items()}
        task["answer"] = answers.get(str(config.get("problem_type")), "one")
    return task


def _kinds(config: dict[str, Any]) -> Iterator[tuple[str, Any, type]]:
    """Name, value and wanted type of what is read of a config.json."""
    yield "architectures", config.get("architectures") or [], list
    yield "its architecture", (config.get("architectures") or [""])[0], str
    yield "id2label", config.get("id2label") or {}, dict
    yield "reading", config.get("reading") or {}, dict


def _prepare(
    model: Path, settings: TrainSettings, mesh: Mesh, step: int | None
) -> tuple[TaskObjective[Any], TaskDataset[Any, Any]]:
    task = task_of(settings.data)
    if task is None:
        raise UserError(f"{model}: pretrained, not fine-tuned; `reread finetune` gives it the head of a task")
    resolved: Resolved
    weights: PreTrainedModel
    if RunFile.CHECKPOINTS.of(model).exists():
        settings = settings_of_run(settings, model)
        resolved = kept = read_run_model(model, settings)
        weights, step = restore_model(model, kept, step)
        log.info("step %d of %s", step, model)
    else:
        resolved = resolve(settings, 1, model)
        weights = exported_model(resolved.head, resolved.config, model)
    dataset = open_task(task, settings.seed, "predict")
    if not len(dataset):
        raise UserError(f"{task.location}: holds no example")
    if dataset.embeddings > (known := weights.config.vocab_size):
        raise UserError(
            f"{model}: its tokenizer has ids up to {dataset.embeddings - 1:,} and its weights {known:,} tokens; export "
            "the run again"
        )
    dataset.check_predicted()
    to_device(weights, resolved.spec, mesh)
    return as_task(resolved.objective)(weights, settings, mesh, dataset), dataset


def exported_model(head: type[PreTrainedModel], config: Any, folder: Path) -> PreTrainedModel:
    """The model in an exported folder. Raises `UserError` as `build_model` does, for the folder that the user named."""
    try:
        return build_model(head, config, folder, 0)
    except UserError as error:
        raise UserError(str(error).removeprefix("train.init: ")) from None


@contextmanager
def _lines(
    output: Path | None, objective: TaskObjective[Any], dataset: TaskDataset[Any, Any], echo: bool
) -> Iterator[Continued]:
    """Standard output, or the file `output`, which is continued if model, examples and settings are the same."""
    if output is None:
        yield Continued(0, lambda lines: sys.stdout.writelines(f"{line}\n" for line in lines))
        return
    parts = dataset.fingerprint, objective.data.model_dump_json(), checksum_of(objective.model), echo, PART
    with continued_file(output, md5(repr(parts).encode()).hexdigest(), PART) as file:
        yield file


def checksum_of(model: PreTrainedModel) -> int:
    """Of the weights."""
    crc = 0
    for parameter in model.parameters():
        values = parameter.detach().cpu().contiguous().reshape(-1)
        crc = zlib.crc32(values.view(torch.uint8).numpy().data, crc)
    return crc
