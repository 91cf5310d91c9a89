"""The stages behind the commands: each takes a checked recipe and leaves its result on disk."""

import json
import logging
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.launch import launch, stop_at_once
from pipeline.recipe import (
    SAMPLES,
    Recipe,
    apply_overrides,
    check_same_run,
    has_checkpoints,
    load_recipe,
    override,
    write_recipe,
    written_recipe,
)
from pipeline.run_lock import only_job
from preprocessing.corpus import write_atomically
from preprocessing.errors import UserError, nearest, writing
from training.config import TrainSettings
from training.data.kinds import KINDS
from training.data.samples import RowSettings
from training.data.settings import DataSettings
from training.parallel.place import place

log = logging.getLogger("reread")

RUNS = Path("runs")


def preprocess_stage(recipe: Recipe, materialize: Path | None = None) -> None:
    from preprocessing.execution.build import build

    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    for path in recipe.preprocess.input.paths:
        if Path(path).is_relative_to(SAMPLES):
            log.info("input: %s, of the package: this folder has none", path)
    build(recipe.preprocess)
    if materialize is not None:
        from training.data.materialize import materialize as write_copies

        train = train_section(recipe)
        if not isinstance(train.data, RowSettings):
            raise UserError(f"recipe {recipe.name}: train.data.kind is {train.data.kind}; --materialize writes rows")
        write_copies(recipe.preprocess.output, materialize, train.data, train.seed, recipe.preprocess.workers)


def preprocess_share_stage(recipe: Recipe, stage: str, share: str) -> None:
    """One machine's share of one stage; the plain command merges when all are done."""
    from preprocessing.execution.build import build_share
    from preprocessing.execution.executor import Share

    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    build_share(recipe.preprocess, stage, Share.parse(share))


def inspect_stage(corpus: Path, overrides: list[str], recipe: str | None, samples: int, verify: bool) -> None:
    from pipeline.inspect import inspect

    data: DataSettings
    if recipe is None:
        values: dict[str, Any] = {"corpus": corpus}
        apply_overrides(values, overrides)
        kind = str(values.get("kind", "rows"))
        if kind not in KINDS:
            raise UserError(f"inspect: kind: {nearest(kind, KINDS, 'is one of')} (got {kind})")
        data, seed = KINDS[kind].settings.parse(values, "inspect"), 0
    else:
        given = [f"train.data.{one}" for one in [*overrides, override("corpus", corpus)]]
        train = train_section(load_recipe(recipe, given))
        data, seed = train.data, train.seed
    inspect(data, samples=samples, seed=seed, verify=verify)


def train_stage(recipe: Recipe, arguments: list[str]) -> None:
    """Train in this process, or in `parallel.processes` processes started here; exits with their status."""
    stop_at_once()
    train = train_section(recipe)
    run = RUNS / recipe.name
    if place().launcher:
        _train_here(recipe, train, run)
        return
    check_same_run(run, recipe)
    start_stage(recipe)
    processes = train.parallel.processes or _devices()
    if processes == 1:
        _train_here(recipe, train, run)
        return
    log.info("starting %d processes on this machine", processes)
    status = launch(arguments, processes)
    if status == 128 + signal.SIGBUS:
        from training.data.kinds import open_dataset

        open_dataset(train.data, train.seed, "train")  # tells which shard was cut short under its memory map
    if status:
        sys.exit(status)


def start_stage(recipe: Recipe) -> None:
    """Make `train.init` as the recipe's `start` says: what is there is not made again."""
    missing = missing_start(recipe)
    if recipe.start is None or missing is None:
        return
    from training.exchange.convert import convert

    other, arguments, model = start_recipe(recipe)
    log.info("%s is not there: recipe %s is trained and converted", missing, other.name)
    train_stage(other, ["train", *arguments])
    convert(export_stage(RUNS / other.name, None), missing, model, **recipe.start.convert.given())


def start_recipe(recipe: Recipe) -> tuple[Recipe, list[str], str]:
    """The recipe whose model `recipe.start` converts, its arguments on the command line, and what it is converted to.

    Raises `UserError` for what cannot work: a mistake is told before hours of work.
    """
    from training.exchange.convert import forms_of
    from training.models import model_spec

    train, start = train_section(recipe), recipe.start
    assert start is not None
    overrides = [override("data.corpus", train.data.corpus), *start.overrides]
    other = load_recipe(start.recipe, overrides, "train")
    if other.name == recipe.name:
        raise UserError(f"recipe {recipe.name}: start.recipe has this name, too, and so the same run folder; change it")
    model = model_spec(train.model.get("type", "")).name
    forms_of(model, start.convert.given())
    return other, [start.recipe, *overrides], model


def missing_start(recipe: Recipe) -> Path | None:
    """The folder that `start` is to make, unless it is there or a checkpoint of the run holds every weight already."""
    if recipe.start is None:
        return None
    init = train_section(recipe).init
    if init is None:
        raise UserError(f"recipe {recipe.name}: `start` makes train.init, which is null; name it, or set start=null")
    return None if (init / "config.json").exists() or has_checkpoints(RUNS / recipe.name) else init


def export_stage(run: Path, output: Path | None, step: int | None = None) -> Path:
    from training.exchange.run_export import export_run

    recipe = _recipe_of(run)
    folder = output or run / "export"
    with writing(folder):
        export_run(run, folder, train_section(recipe), recipe.examples, step)
    log.info("exported to %s", folder)
    return folder


def evaluate_stage(run: Path, overrides: list[str], step: int | None) -> dict[str, float]:
    """Print the figures of all held-out text; `overrides` may name another corpus, or another way to read it."""
    from training.evaluation import evaluate_run

    values = _recipe_of(run).model_dump(mode="json")
    apply_overrides(values, overrides, "train")
    figures = evaluate_run(run, train_section(Recipe.parse(values, str(run / "recipe.yaml"))), step)
    for name, value in figures.items():
        print(f"{name:24} {value:.4f}")
    return figures


def run_stages(name: str, overrides: list[str]) -> None:
    """Preprocess, train, export and report; what is already done is not done again."""
    from pipeline.report import fill_masks, report
    from training.assembly import check_model

    recipe = load_recipe(name, overrides)
    if recipe.train is not None:
        check_model(recipe.train)  # before hours of preprocessing
    if recipe.preprocess is not None and not place().launcher:
        preprocess_stage(recipe)
    if recipe.train is None:
        return
    train_stage(recipe, ["train", name, *overrides])
    if place().rank != 0:
        return
    run = RUNS / recipe.name
    folder = export_stage(run, None)
    report(run)
    for sentence, words in fill_masks(folder, recipe.examples):
        print(sentence, " ".join(f"{word} {probability:.2f}" for word, probability in words), sep="  ->  ")
    print(f"Hugging Face folder: {folder}")


def _train_here(recipe: Recipe, train: TrainSettings, run: Path) -> None:
    from training.trainer import train as run_training

    run_training(train, run, _run_folder(recipe, run))


@contextmanager
def _run_folder(recipe: Recipe, run: Path) -> Iterator[None]:
    """Hold the run folder and say in it what runs; the first process does, the others only log there."""
    with ExitStack() as stack:
        try:
            if place().rank == 0:
                check_same_run(run, recipe)
                if missing := missing_start(recipe):
                    raise UserError(
                        f"{missing}: not there, and below torchrun or srun `start` does not make it; make it by "
                        "starting this recipe once by itself, or by `reread convert`"
                    )
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_job(run))
                write_recipe(recipe, run / "recipe.yaml")
                write_atomically(run / "environment.json", json.dumps(_environment(), indent=1).encode())
            stack.enter_context(_log_file(run))
        except OSError as error:
            raise UserError(f"{run}: cannot write the run folder ({error.strerror}: {error.filename})") from None
        yield


def train_section(recipe: Recipe) -> TrainSettings:
    if recipe.train is None:
        raise UserError(f"recipe {recipe.name}: has no `train` section")
    return recipe.train


def _recipe_of(run: Path) -> Recipe:
    path = run / "recipe.yaml"
    if not path.exists():
        raise UserError(f"{path}: not there; is `{run}` a run folder made by `reread train`?")
    return written_recipe(path)


def _devices() -> int:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    log.info("one process on CPU: no GPU here, and parallel.processes is not set")
    return 1


def _environment() -> dict[str, str]:
    """What ran: versions only, never variables (they may hold secrets)."""
    packages = ["reread", "torch", "numpy", "transformers", "megatron-core", "jieba", "tokenizers"]
    return {"python": platform.python_version(), "machine": platform.platform()} | {
        name: version(name) for name in packages
    }


@contextmanager
def _log_file(run: Path) -> Iterator[None]:
    """Repeat the log in RUN/logs/, one file a process."""
    (run / "logs").mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(run / "logs" / f"rank-{place().rank}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
