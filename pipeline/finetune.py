"""`reread finetune`: a recipe of a task and a pretrained model become a training run, or one run a seed."""

import json
import logging
import math
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.commands import check_model, evaluate, export, train
from pipeline.recipe import Published, Recipe, recipe_values
from pipeline.run_folder import RUNS, has_checkpoints
from preprocessing.errors import UserError, nearest
from preprocessing.files import write_atomically
from preprocessing.labelled.splits import check_labels, duplicates, labels_of
from training.data.kinds import KINDS
from training.data.tasks.dataset import TaskDataset
from training.data.tasks.settings import TaskSettings
from training.models import MODELS, model_spec
from training.parallel.place import place

log = logging.getLogger("reread")


def finetune(name: str, overrides: list[str]) -> None:
    """Train a task from a pretrained model, once for each seed, and print the scores of the best checkpoints.

    Raises `UserError` for what cannot work, before any training.
    """
    recipe = finetune_recipe(name, overrides)
    assert recipe.train is not None and recipe.finetune is not None
    if place().launcher:
        train(recipe, [])
        return
    check_model(recipe)
    measured = []
    for number in range(recipe.finetune.seeds):
        seed = recipe.train.seed + number
        run = recipe.name if recipe.finetune.seeds == 1 else f"{recipe.name}-seed{seed}"
        given = [*overrides, f"train.seed={seed}", f"name={run}", "finetune.seeds=1"]
        one = finetune_recipe(name, given)
        if number == 0:
            report_reading(one)
        train(one, ["finetune", name, *given])
        if one.train is not None and one.train.data.dev is not None:  # type: ignore[attr-defined]
            measured.append(evaluate(RUNS / run, [], None))
    if measured:
        path = RUNS / (f"{recipe.name}-seeds.json" if len(measured) > 1 else f"{recipe.name}/scores.json")
        write_atomically(path, json.dumps(measured, indent=1).encode())
        Console().print(score_table(measured, recipe.finetune.published))


def finetune_recipe(name: str, overrides: list[str]) -> Recipe:
    """The recipe with all that follows from `train.init` and the examples: model, tokenizer, labels, steps, warm-up.

    Raises `UserError` for a recipe without a task, examples that are wrong, and a label that the training examples
    lack.
    """
    values = recipe_values(name, overrides, "train")
    chosen = Recipe.parse({key: value for key, value in values.items() if key != "train"}, f"recipe {name}")
    train, finetuning = dict(values.get("train", {})), chosen.finetune
    task = dict(train.get("data", {}))
    kinds = [kind for kind, row in KINDS.items() if issubclass(row.settings, TaskSettings)]
    if finetuning is None or task.get("kind") not in kinds:
        raise UserError(
            f"recipe {name}: `reread finetune` needs a section `finetune` and a `task` whose kind is "
            f"{nearest(str(task.get('kind')), kinds, 'one of')}"
        )
    for key in ("train",):
        if key not in task:
            raise UserError(f"recipe {name}: task.{key}: the file of training examples; give task.{key}=FILE")
    start = _start(train, RUNS / chosen.name)
    kind = _model_type(start)
    model = kind.removeprefix("reread_")
    if model not in MODELS:
        raise UserError(f"init: {start} holds a model of type {kind}; {nearest(model, MODELS)}")
    spec = model_spec(model)
    task |= {"tokenizer": str(start), "frame": spec.frame}
    settings = KINDS[task["kind"]].settings.parse(task, f"recipe {name}: task")
    data = KINDS[task["kind"]].open(settings, 0, "train")
    held_out = KINDS[task["kind"]].open(settings, 0, "validation")
    assert isinstance(data, TaskDataset) and isinstance(held_out, TaskDataset)
    if not len(data):
        raise UserError(f"{data.settings.train}: holds no example to learn from")
    task["labels"] = task.get("labels") or labels_of(data.examples)
    check_labels(data.examples, held_out.examples)
    batch = train.get("global_batch", 32)
    an_epoch = len(data) / batch
    steps = math.ceil(finetuning.epochs * an_epoch)
    every = max(1, round(an_epoch / finetuning.evaluations))
    schedule = {"warmup_steps": round(finetuning.warmup_share * steps), **train.get("schedule", {})}
    filled = {
        "steps": steps,
        "global_batch": batch,
        "micro_batch": batch,
        "validate_every": every,
        "checkpoint": {"every_steps": every, "keep": 1},
        "best_by": _SCORE[_variant(settings)] if held_out.examples else None,
        **train,
        "init": str(train["init"]),
        "model": {**train.get("model", {}), "type": model},
        "schedule": schedule,
        "data": task,
    }
    return Recipe.parse({**values, "train": filled}, f"recipe {name}")


def report_reading(recipe: Recipe) -> None:
    """Log how much of the text the windows read, and how many held-out texts are among the training texts."""
    assert recipe.train is not None
    settings = recipe.train.data
    splits = {split: KINDS[settings.kind].open(settings, 0, split) for split in ("train", "validation")}
    for split, data in splits.items():
        assert isinstance(data, TaskDataset)
        if len(data):
            log.info(
                "%s: %s",
                "task.train" if split == "train" else "task.dev",
                ", ".join(
                    f"{value} {name}" if name == "examples" else f"{name} {value}" for name, value in data.reading()
                ),
            )
    known = duplicates(splits["train"].examples, splits["validation"].examples)  # type: ignore[attr-defined]
    if known:
        log.info("task.dev: %d of %d texts are in task.train, too", known, len(splits["validation"]))


def score_table(measured: list[dict[str, float]], published: list[Published]) -> Table:
    """Our scores, with more than one seed as mean and standard deviation, beside the papers'."""
    result = Table()
    names = list(measured[0])
    for column in ("", *names, "what differs"):
        result.add_column(column)
    ours = []
    for name in names:
        found = [scores[name] for scores in measured]
        spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
        ours.append(f"{statistics.fmean(found):.2f}{spread}")
    result.add_row("ours" if len(measured) == 1 else f"ours, {len(measured)} seeds", *ours, "")
    for row in published:
        theirs = [f"{row.scores[name]:g}" if name in row.scores else "-" for name in names]
        result.add_row(row.model, *theirs, row.differs)
    return result


_SCORE = {
    "classify-one": "accuracy",
    "classify-set": "micro-f1",
    "classify-number": "spearman",
    "tag": "entity-f1",
    "answer": "f1",
    "choose": "accuracy",
}


def _variant(settings: Any) -> str:
    return f"classify-{settings.answer}" if settings.kind == "classify" else str(settings.kind)


def _model_type(folder: Path) -> str:
    path = folder / "config.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"init: {path}: not the configuration of a model ({error!r})") from None


def _start(train: dict[str, Any], run: Path) -> Path:
    """The folder with config.json and tokenizer of the model to fine-tune; sets train["init"] to its weights.

    A run that has begun has them itself. A pretraining run is exported. Raises `UserError` if there is no model.
    """
    if "init" not in train or train["init"] is None:
        raise UserError("init: the model to fine-tune; give init=FOLDER, a run, an export or a converted model")
    init = Path(train["init"])
    if (init / "checkpoints").exists():
        exported = init / "export"
        if not (exported / "config.json").exists() and not has_checkpoints(run):
            export(init, None)
        log.info("init: %s, the export of run %s", exported, init)
        init = exported
    train["init"] = str(init)
    if has_checkpoints(run) and (run / "model" / "config.json").exists():
        return run / "model"
    if not (init / "config.json").exists():
        raise UserError(f"init: {init} holds no config.json; give a run, an export, or a folder of `reread convert`")
    return init
