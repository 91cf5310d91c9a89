"""What the commands do: each takes a checked recipe or a run folder and leaves its result on disk."""

import importlib.util
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.launch import launch, stop_at_once
from pipeline.recipe import (
    SAMPLES,
    Recipe,
    apply_overrides,
    fine_tunes,
    load_recipe,
    override,
    preprocess_section,
    train_section,
)
from pipeline.run_folder import RUNS, check_same_run, has_checkpoints, open_run_folder, recipe_of
from preprocessing.errors import UserError, nearest, writing
from preprocessing.labelled.splits import check_labels
from training.data.kinds import KINDS
from training.data.samples import RowSettings
from training.data.settings import CorpusSettings, DataSettings
from training.data.tasks.dataset import examples_of
from training.data.tasks.settings import TaskSettings
from training.models import config_of_start
from training.parallel.place import place
from training.writers import check_writers

log = logging.getLogger("reread")


def preprocess(recipe: Recipe, materialize: Path | None = None) -> None:
    """Make the corpus, and with `materialize` a folder of all masked copies of its rows."""
    from preprocessing.execution.build import build

    settings = preprocess_section(recipe)
    for path in (path for section in settings.inputs for path in section.paths):
        if Path(path).is_relative_to(SAMPLES):
            log.info("input: %s, of the package: this folder has none", path)
    build(settings)
    if materialize is not None:
        from training.data.materialize import materialize as write_copies

        train = train_section(recipe)
        if not isinstance(train.data, RowSettings):
            raise UserError(f"recipe {recipe.name}: train.data.kind is {train.data.kind}; --materialize writes rows")
        if train.data.corpora:
            raise UserError(f"recipe {recipe.name}: --materialize writes one corpus; give data.corpora such folders")
        write_copies(settings.output, materialize, train.data, train.seed, settings.workers)


def preprocess_share(recipe: Recipe, stage: str, share: str) -> None:
    """Do one machine's share of one stage; the plain command merges when all are done."""
    from preprocessing.execution.build import build_share
    from preprocessing.execution.executor import Share

    build_share(preprocess_section(recipe), stage, Share.parse(share))


def inspect(corpus: str, overrides: list[str], recipe: str | None, samples: int, verify: bool) -> None:
    """Show samples of a corpus, read as `overrides` or the `train.data` of a recipe define, or as a run reads them."""
    from pipeline.inspect import inspect as show

    data: DataSettings
    is_run, is_model = (os.path.exists(os.path.join(corpus, name)) for name in ("recipe.yaml", "config.json"))
    if is_model:
        raise UserError(
            f"{corpus}: a model, not a corpus; give a corpus or a run, or for what the model would be fine-tuned on "
            "--recipe RECIPE task.train=FILE with a recipe of `reread finetune`"
        )
    if is_run and recipe is not None:
        raise UserError(
            f"{corpus}: a run, which is shown as its own recipe reads; leave out --recipe {recipe}, or give a corpus"
        )
    if is_run:
        given = [f"train.data.{one.removeprefix('data.')}" for one in overrides]
        train = train_section(recipe_of(Path(corpus), given))
        data, seed = train.data, train.seed
    elif recipe is None:
        values: dict[str, Any] = {"corpus": corpus}
        apply_overrides(values, overrides)
        kind = str(values.get("kind", "rows"))
        kinds = [name for name, one in KINDS.items() if issubclass(one.settings, CorpusSettings)]
        if kind in KINDS and kind not in kinds:
            raise UserError(
                f"inspect: kind: {kind} is of labelled examples; give a model to fine-tune instead of a corpus, with "
                "--recipe RECIPE task.train=FILE"
            )
        if kind not in kinds:
            raise UserError(f"inspect: kind: {nearest(kind, kinds, 'is one of')} (got {kind})")
        data, seed = KINDS[kind].settings.parse(values, "inspect"), 0
    else:
        given = [f"train.data.{one}" for one in [*overrides, override("corpus", corpus)]]
        train = train_section(load_recipe(recipe, given))
        data, seed = train.data, train.seed
    show(data, samples=samples, seed=seed, verify=verify)


def train(recipe: Recipe, arguments: list[str]) -> None:
    """Train in this process, or in `parallel.processes` processes started here; exits with their status."""
    stop_at_once()
    settings = train_section(recipe)
    if place().launcher:
        _train_here(recipe)
        return
    check_same_run(RUNS / recipe.name, recipe)
    check_train(recipe)
    make_start(recipe)
    processes = settings.parallel.processes or _devices()
    if processes == 1:
        _train_here(recipe)
        return
    log.info("starting %d processes on this machine", processes)
    status = launch(arguments, processes)
    if status == 128 + signal.SIGBUS:
        from training.data.kinds import open_dataset

        open_dataset(settings.data, settings.seed, "train")  # names the shard that was cut short under its memory map
    if status:
        sys.exit(status)


def export(run: Path, output: Path | None, step: int | None = None) -> Path:
    """Write the Hugging Face folder of a run's checkpoint, by default RUN/export, and return it."""
    recipe = recipe_of(run)  # before torch and transformers are imported, which takes seconds
    from training.exchange.run_export import export_run

    folder = output or run / "export"
    with writing(folder):
        export_run(run, folder, train_section(recipe), recipe.examples, step)
    log.info("exported to %s", folder)
    return folder


def evaluate(run: Path, overrides: list[str], step: int | None) -> dict[str, float]:
    """Print the figures of all held-out text or examples, and of a task the baselines' and the papers' beside them."""
    data = train_section(recipe_of(run, overrides)).data
    if isinstance(data, TaskSettings) and data.train.exists():
        check_labels(examples_of(data, "train"), examples_of(data, "validation"))
    recipe, figures = figures_of(run, overrides, step)
    if isinstance(data, TaskSettings):
        from pipeline.scores import print_scores

        print_scores(recipe, {"dev": [figures]})
    return figures


def figures_of(run: Path, overrides: list[str], step: int | None) -> tuple[Recipe, dict[str, float]]:
    """Print the figures of all held-out text or examples; `overrides` may name others, or another way to read them.

    Returns the recipe that they were computed by, too.
    """
    from training.evaluation import evaluate_run

    recipe = recipe_of(run, overrides)
    figures = evaluate_run(run, train_section(recipe), step, overrides)
    for name, value in figures.items():
        print(f"{name:24} {value:.4f}")
    return recipe, figures


def predict(model: Path, file: Path, overrides: list[str], output: Path | None, step: int | None) -> None:
    """Write the predictions for the examples of `file` as JSON lines; `overrides` are as `task.format=tsv`.

    In `parallel.processes` processes started here, or in this one.
    """
    from training.prediction import predict as predict_examples
    from training.prediction import task_of_export

    if (model / "recipe.yaml").exists():
        values = recipe_of(model).model_dump(mode="json")
        if not fine_tunes(values):
            raise UserError(
                f"{model}: a run that pretrains, without a head of a task; fine-tune it with `reread finetune`"
            )
    else:
        values = {"name": "export", "train": task_of_export(model)}
    apply_overrides(values, overrides, "train")
    values["train"]["data"]["train"] = str(file)
    settings = train_section(Recipe.parse(values, str(model)))
    processes = settings.parallel.processes or 1
    if processes > 1 and not place().launcher:
        status = launch(sys.argv[1:], processes)
        if status:
            sys.exit(status)
        return
    predict_examples(model, settings, output, step)


def check_train(recipe: Recipe) -> None:
    """Raises `UserError` for what training would refuse whatever the corpus, and for a `start` that cannot be made.

    Call it before any work.
    """
    check_model(recipe)
    check_writers(train_section(recipe))
    if missing_start(recipe):
        if recipe.start and recipe.start.weights is not None:
            start_weights(recipe)
        elif _has_torch():
            check_train(start_recipe(recipe)[0])
        return
    init = train_section(recipe).init
    if init is not None and not has_checkpoints(RUNS / recipe.name):
        config_of_start(init)


def check_model(recipe: Recipe) -> None:
    """Raises `UserError` for a wrong `train.model`; logs one line where that cannot be found out."""
    if not _has_torch():
        log.info("train.model is not checked yet: torch or transformers is not installed here")
        return
    from training.assembly import check_model as check

    check(train_section(recipe))


def _has_torch() -> bool:
    return bool(importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"))


def make_start(recipe: Recipe) -> None:
    """Make `train.init` by the recipe's `start`; what is there is not made again."""
    missing = missing_start(recipe)
    if recipe.start is None or missing is None:
        return
    from training.exchange.convert import convert

    options = recipe.start.convert.given()
    if recipe.start.weights is not None:
        weights, model = start_weights(recipe)
        log.info("%s is not there: %s is converted", missing, weights)
        convert(weights, missing, model, **options)
        return
    other, arguments, model = start_recipe(recipe)
    log.info("%s is not there: recipe %s is trained and converted", missing, other.name)
    train(other, ["train", *arguments])
    convert(export(RUNS / other.name, None), missing, model, **options)


def start_weights(recipe: Recipe) -> tuple[Path, str]:
    """The released weights that `recipe.start` converts, and the type of model to make.

    Raises `UserError` if they are not there, and for what the conversion would refuse.
    """
    start, model = recipe.start, _convertible(recipe)
    assert start is not None and start.weights is not None
    if not start.weights.exists():
        raise UserError(
            f"start.weights: {start.weights} is not there, and nothing is downloaded; get it from its owners, and give "
            "its place by start.weights=FOLDER"
        )
    return start.weights, model


def _convertible(recipe: Recipe) -> str:
    """The type of model that `recipe.start` makes; raises `UserError` for options that are not for it."""
    from training.models import model_spec
    from training.models.forms import forms_of

    model = model_spec(train_section(recipe).model.get("type", "")).name
    forms_of(model, recipe.start.convert.given() if recipe.start else {})
    return model


def start_recipe(recipe: Recipe) -> tuple[Recipe, list[str], str]:
    """The recipe whose model `recipe.start` converts, its arguments on the command line, and the type of model to make.

    Raises `UserError` for what cannot work, before hours of work.
    """
    settings, start = train_section(recipe), recipe.start
    assert start is not None and start.recipe is not None
    if not isinstance(settings.data, CorpusSettings):
        raise UserError(f"recipe {recipe.name}: `start` is for pretraining; set start=null and name the model by init")
    overrides = [*corpus_overrides(settings.data), *start.overrides]
    other = load_recipe(start.recipe, overrides, "train")
    if other.name == recipe.name:
        raise UserError(f"recipe {recipe.name}: start.recipe has this name, too, and so the same run folder; change it")
    return other, [start.recipe, *overrides], _convertible(recipe)


def corpus_overrides(data: CorpusSettings) -> list[str]:
    """The overrides with which another recipe reads the same corpus."""
    cache = [] if data.cache is None else [f"data.cache={data.cache.model_dump_json()}"]
    if data.corpora:
        mixed = json.dumps([one.model_dump(mode="json", exclude_defaults=True) for one in data.corpora])
        return ["data.corpus=null", f"data.corpora={mixed}", *cache]
    return [override("data.corpus", data.place), *cache]


def missing_start(recipe: Recipe) -> Path | None:
    """The folder that `start` has to make; None if it is there, or if the run has a checkpoint with every weight."""
    if recipe.start is None:
        return None
    init = train_section(recipe).init
    if init is None:
        raise UserError(f"recipe {recipe.name}: `start` makes train.init, which is null; name it, or set start=null")
    return None if (init / "config.json").exists() or has_checkpoints(RUNS / recipe.name) else init


def _train_here(recipe: Recipe) -> None:
    from pipeline.estimate.fitting import fit
    from training.trainer import train as run_training

    folder = RUNS / recipe.name
    run_training(train_section(recipe), folder, _prepared(recipe, folder), fit)


@contextmanager
def _prepared(recipe: Recipe, folder: Path) -> Iterator[None]:
    """The run folder, opened when all processes have met; below a launcher its `start` must be there."""
    if place().rank == 0 and (missing := missing_start(recipe)):
        raise UserError(
            f"{missing}: not there, and `start` does not make it below torchrun or srun; make it by "
            "starting this recipe once by itself, or by `reread convert`"
        )
    with open_run_folder(recipe, folder):
        yield


def _devices() -> int:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    log.info("one process on CPU: no GPU here, and parallel.processes is not set")
    return 1
