"""`reread finetune`: a recipe of a task and a pretrained model become a training run, or one run a seed."""

import json
import logging
import math
from pathlib import Path
from typing import Any

from pipeline.commands import check_model, export, figures_of, train
from pipeline.recipe import Recipe, fine_tunes, override, recipe_values, train_section
from pipeline.run_folder import RUNS, has_checkpoints
from pipeline.scores import Scores, print_scores, write_scores
from preprocessing.errors import UserError, nearest
from preprocessing.labelled.splits import check_labels, duplicates, labels_of
from training.data.kinds import KINDS
from training.data.tasks.dataset import TaskDataset, examples_of
from training.data.tasks.settings import TaskSettings
from training.models import MODELS, model_spec
from training.parallel.place import place
from training.scoring.task_scores import chosen_score

log = logging.getLogger("reread")


def finetune(name: str, overrides: list[str]) -> None:
    """Train a task from a pretrained model, once for each seed, and print the scores of the best checkpoints.

    Raises `UserError` for what cannot work, before any training.
    """
    recipe = finetune_recipe(name, overrides)
    if place().launcher:
        train(recipe, [])
        return
    check_model(recipe)
    measured = train_seeds(recipe, name, overrides)
    if measured:
        print_scores(recipe, measured)


def train_seeds(recipe: Recipe, name: str, overrides: list[str]) -> dict[str, list[Scores]]:
    """Train each seed of a recipe from `finetune_recipe`; split (dev, test) -> the scores of each seed, which are kept
    in its run, too."""
    make_export(recipe)
    report_reading(recipe)
    data = train_section(recipe).data
    assert isinstance(data, TaskSettings)
    splits = {
        split: [] if split == "dev" else [override("task.dev", one.held_out)] for split, one in data.splits.items()
    }
    measured: dict[str, list[Scores]] = {split: [] for split in splits}
    for run, given in seed_runs(recipe, overrides):
        train(finetune_recipe(name, given), ["finetune", name, *given])
        # Dev, too, on which training scored in its own precision: as `reread evaluate` would, in float32.
        scores = {split: figures_of(RUNS / run, others, None)[1] for split, others in splits.items()}
        if scores:
            write_scores(RUNS / run, scores)
        for split, one in scores.items():
            measured[split].append(one)
    return measured


def seed_runs(recipe: Recipe, overrides: list[str]) -> list[tuple[str, list[str]]]:
    """The name of each seed's run, and its overrides."""
    assert recipe.finetune is not None
    seeds, first = recipe.finetune.seeds, train_section(recipe).seed
    runs = [recipe.name] if seeds == 1 else [f"{recipe.name}-seed{first + number}" for number in range(seeds)]
    return [
        (run, [*overrides, f"train.seed={first + number}", f"name={run}", "finetune.seeds=1"])
        for number, run in enumerate(runs)
    ]


def finetune_recipe(name: str, overrides: list[str], pretraining: Recipe | None = None) -> Recipe:
    """The recipe with all that follows from `train.init` and the examples: model, tokenizer, labels, steps, warm-up.

    `pretraining` makes the model of `train.init`: while that is not begun, the tokenizer is not known. Raises
    `UserError` for a recipe without a task, examples that are wrong, and a label that the training examples lack.
    """
    values = recipe_values(name, overrides, "train")
    chosen = Recipe.parse({key: value for key, value in values.items() if key != "train"}, f"recipe {name}")
    finetuning = chosen.finetune
    if finetuning is None or not fine_tunes(values):
        kinds = [kind for kind, row in KINDS.items() if issubclass(row.settings, TaskSettings)]
        raise UserError(
            f"recipe {name}: `reread finetune` needs a section `finetune` and a `task` whose kind is "
            f"one of {', '.join(kinds)}"
        )
    train, task = values["train"], values["train"]["data"]
    if "train" not in task:
        raise UserError(f"recipe {name}: task.train: the file of training examples; give task.train=FILE")
    init, folder = _start(train, RUNS / chosen.name, pretraining)
    if folder is None and pretraining is not None:
        model = str(train_section(pretraining).model.get("type", ""))
    else:
        assert folder is not None
        model = _type_of(folder)
    filled = {
        "steps": 0,
        "global_batch": 32,
        "activation_checkpointing": "auto",
        **train,
        "init": str(init),
        "model": {**train.get("model", {}), "type": model},
        "data": {**task, "tokenizer": folder and str(folder), "frame": model_spec(model).frame},
    }
    settings = train_section(Recipe.parse({**values, "train": filled}, f"recipe {name}"))
    assert isinstance(settings.data, TaskSettings)
    examples, held_out = (examples_of(settings.data, split) for split in ("train", "validation"))
    filled["data"]["labels"] = settings.data.labels or labels_of(examples)
    for one in settings.data.splits.values():
        check_labels(examples, examples_of(one, "validation"))
    an_epoch = len(examples) / settings.global_batch
    steps = settings.steps if "steps" in train else math.ceil(finetuning.epochs * an_epoch)
    every = max(1, round(an_epoch / finetuning.evaluations))
    filled = {
        "validate_every": every,
        "checkpoint": {"every_steps": every, "keep": 1},
        **filled,
        "best_by": chosen_score(settings.data.scored_as, settings.best_by)[0] if held_out else None,
        "steps": steps,
        "schedule": {"warmup_steps": round(finetuning.warmup_share * steps), **train.get("schedule", {})},
    }
    return Recipe.parse({**values, "train": filled}, f"recipe {name}")


def make_export(recipe: Recipe) -> None:
    """Export the run that the recipe starts from, unless that is done, or the fine-tuning has begun."""
    init = train_section(recipe).init
    if init is not None and export_missing(recipe):
        log.info("init: %s, the export of run %s", init, init.parent)
        export(init.parent, None)


def export_missing(recipe: Recipe) -> bool:
    init = train_section(recipe).init
    begun = all(has_checkpoints(RUNS / run) for run, _ in seed_runs(recipe, []))
    return not begun and init is not None and not (init / "config.json").exists() and has_checkpoints(init.parent)


def report_reading(recipe: Recipe) -> None:
    """Log how much of the text the windows read, and how many held-out texts are among the training texts."""
    settings = train_section(recipe).data
    assert isinstance(settings, TaskSettings)
    kind, held_out = KINDS[settings.kind], settings.splits
    splits = {"train": kind.open(settings, 0, "train")}
    splits |= {split: kind.open(one, 0, "validation") for split, one in held_out.items()}
    for split, data in splits.items():
        assert isinstance(data, TaskDataset)
        if len(data):
            log.info(
                "task.%s: %s",
                split,
                ", ".join(
                    f"{value} {name}" if name == "examples" else f"{name} {value}" for name, value in data.reading()
                ),
            )
    if (settings.learns, settings.predict) == ("last", "mean"):
        log.info(
            "task.learns is last, but task.predict is mean: windows without a loss are averaged with the last one; "
            "set predict to last, or learns to all, if that is not what you want"
        )
    for split, one in held_out.items():
        if known := duplicates(examples_of(settings, "train"), examples_of(one, "validation")):
            log.info("task.%s: %d of %d texts are in task.train, too", split, known, len(splits[split]))


def _start(train: dict[str, Any], run: Path, pretraining: Recipe | None) -> tuple[Path, Path | None]:
    """`train.init`, and the folder with config.json and tokenizer of that model; None while `pretraining` is not begun.

    A run has them in RUN/model, and its weights in RUN/export, which `make_export` makes. A fine-tuning that has begun
    has its own. Raises `UserError` if there is no model.
    """
    if train.get("init") is None:
        raise UserError("init: the model to fine-tune; give init=FOLDER, a run, an export or a converted model")
    init = folder = Path(str(train["init"]))
    if pretraining is not None or (init / "checkpoints").exists():
        folder = next((one for one in (init / "model", init / "export") if one.exists()), init)
        init = init / "export"
    if has_checkpoints(run) and (run / "model" / "config.json").exists():
        folder = run / "model"
    if (folder / "config.json").exists():
        return init, folder
    if pretraining is None:
        raise UserError(f"init: {init} holds no config.json; give a run, an export, or a folder of `reread convert`")
    return init, None


def _type_of(folder: Path) -> str:
    """The name in `MODELS` of the model in `folder`. Raises `UserError` for any other model."""
    path = folder / "config.json"
    try:
        kind = str(json.loads(path.read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"init: {path}: not the configuration of a model ({error!r})") from None
    model = kind.removeprefix("reread_")
    if model not in MODELS:
        raise UserError(f"init: {folder} holds a model of type {kind}; {nearest(model, MODELS)}")
    return model
