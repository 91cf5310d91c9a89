"""The stages behind the commands: each takes a checked recipe and leaves its result on disk."""

import fcntl
import json
import logging
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from pipeline.launch import inside_distributed_run, launch, own_rank
from pipeline.recipe import Recipe, apply_overrides, check_same_run, load_recipe, write_recipe
from pipeline.slurm import SlurmSettings, chain, render, site_settings, submit, submit_script
from preprocessing.corpus import Manifest, write_atomically
from preprocessing.errors import UserError
from training.config import AnyData, DataSettings, PackedSettings, SegmentSettings, StreamSettings, TrainSettings

log = logging.getLogger("reread")

RUNS = Path("runs")


def preprocess_stage(recipe: Recipe, materialize: Path | None = None) -> None:
    from preprocessing.build import build

    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    build(recipe.preprocess)
    if materialize is not None:
        from training.data.materialize import materialize as write_copies

        train = _train_section(recipe)
        if not isinstance(train.data, DataSettings):
            raise UserError(f"recipe {recipe.name}: train.data.kind is {train.data.kind}; --materialize writes rows")
        write_copies(recipe.preprocess.output, materialize, train.data, train.seed, recipe.preprocess.workers)


def preprocess_share_stage(recipe: Recipe, stage: str, share: str) -> None:
    """One machine's share of one stage; the plain command merges when all are done."""
    from preprocessing.build import build_share
    from preprocessing.executor import Share

    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    build_share(recipe.preprocess, stage, Share.parse(share))


def inspect_stage(corpus: Path, overrides: list[str], recipe: str | None, samples: int, verify: bool) -> None:
    from pipeline.inspect import inspect

    data: AnyData
    if recipe is None:
        values = {"corpus": corpus}
        apply_overrides(values, overrides)
        forms: dict[Any, type[AnyData]] = {
            "packed": PackedSettings,
            "segments": SegmentSettings,
            "stream": StreamSettings,
        }
        data, seed = forms.get(values.get("kind"), DataSettings).parse(values, "inspect"), 0
    else:
        overrides = [f"train.data.{override}" for override in [*overrides, f"corpus={corpus}"]]
        train = _train_section(load_recipe(recipe, overrides))
        data, seed = train.data, train.seed
    inspect(data, samples=samples, seed=seed, verify=verify)


def train_stage(recipe: Recipe, arguments: list[str]) -> None:
    """Train in this process, or in `parallel.processes` processes started here; exits with their status."""
    train = _train_section(recipe)
    run = RUNS / recipe.name
    if inside_distributed_run():
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
    if status:
        sys.exit(status)


def start_stage(recipe: Recipe) -> None:
    """Make `train.init` as the recipe's `start` says: what is there is not made again."""
    missing = _missing_start(recipe)
    if recipe.start is None or missing is None:
        return
    from training.checkpoint.convert import convert, forms_of
    from training.models import model_spec

    train, options = _train_section(recipe), recipe.start.convert.given()
    overrides = [f"data.corpus={train.data.corpus}", *recipe.start.overrides]
    other = load_recipe(recipe.start.recipe, overrides, "train")
    if other.name == recipe.name:
        raise UserError(f"recipe {recipe.name}: start.recipe has this name, too, and so the same run folder; change it")
    model = model_spec(train.model.get("type", "")).name
    forms_of(model, options)  # a mistake is told before hours of work
    log.info("%s is not there: recipe %s is trained and converted", missing, other.name)
    train_stage(other, ["train", recipe.start.recipe, *overrides])
    convert(export_stage(RUNS / other.name, None), missing, model, **options)


def _missing_start(recipe: Recipe) -> Path | None:
    """The folder that `start` is to make, unless it is there."""
    if recipe.start is None:
        return None
    init = _train_section(recipe).init
    if init is None:
        raise UserError(f"recipe {recipe.name}: `start` makes train.init, which is null; name it, or set start=null")
    return None if (init / "config.json").exists() else init


def export_stage(run: Path, output: Path | None, step: int | None = None) -> Path:
    from training.checkpoint.run_export import export_run

    recipe = _recipe_of(run)
    folder = output or run / "export"
    export_run(run, folder, _train_section(recipe), recipe.examples, step)
    log.info("exported to %s", folder)
    return folder


def evaluate_stage(run: Path, overrides: list[str], step: int | None) -> dict[str, float]:
    """Print the figures of all held-out text; `overrides` may name another corpus, or another way to read it."""
    from training.evaluation import evaluate_run

    values = _recipe_of(run).model_dump(mode="json")
    apply_overrides(values, overrides, "train")
    figures = evaluate_run(run, _train_section(Recipe.parse(values, str(run / "recipe.yaml"))), step)
    for name, value in figures.items():
        print(f"{name:24} {value:.4f}")
    return figures


def run_stages(name: str, overrides: list[str]) -> None:
    """Preprocess, train, export and report; what is already done is not done again."""
    from pipeline.report import fill_masks, report

    recipe = load_recipe(name, overrides)
    if recipe.preprocess is not None and not inside_distributed_run():
        preprocess_stage(recipe)
    if recipe.train is None:
        return
    train_stage(recipe, ["train", name, *overrides])
    if own_rank() != "0":
        return
    run = RUNS / recipe.name
    folder = export_stage(run, None)
    report(run)
    for sentence, words in fill_masks(folder, recipe.examples):
        print(sentence, " ".join(f"{word} {probability:.2f}" for word, probability in words), sep="  ->  ")
    print(f"Hugging Face folder: {folder}")


def submit_stages(name: str, overrides: list[str], site: Path | None, dry_run: bool) -> None:
    """Submit preprocessing, training and export to Slurm, and print how to follow; or print the scripts alone.

    Raises `UserError` for whatever can be known to fail before a job has waited in the queue.
    """
    recipe = load_recipe(name, overrides, beneath={"slurm": site_settings(site)})
    settings, folder = recipe.slurm or SlurmSettings(), RUNS / recipe.name / "slurm"
    stages = []
    if recipe.preprocess is not None:
        from preprocessing.build import missing_stages

        stages = missing_stages(recipe.preprocess)
    if recipe.train is not None:
        _check_before_submitting(recipe, recipe.train, settings, corpus_comes=bool(stages))
    jobs = chain(settings, recipe.name, stages, recipe.train is not None, [name, *overrides])
    if not jobs:
        log.info("%s: nothing to do, the corpus is whole and the recipe trains nothing", recipe.name)
    elif dry_run:
        for job in jobs:
            print(f"==> {folder / job.name}.sbatch\n{render(job, settings, recipe.name, folder)}")
        print(f"==> {folder / 'submit.sh'}\n{submit_script(jobs, recipe.name, folder)}", end="")
    else:
        submitted = submit(jobs, settings, recipe.name, folder)
        print("submitted: " + " -> ".join(f"{job} ({number})" for job, number in submitted.items()))
        print(f"follow:    squeue --job {','.join(submitted.values())}; tail -F {folder}/*.log")
        print(f"stop:      scancel {' '.join(submitted.values())}   (training saves a checkpoint first)")
        print("the same command again goes on from whatever is done by then")


def _check_before_submitting(recipe: Recipe, train: TrainSettings, settings: SlurmSettings, corpus_comes: bool) -> None:
    check_same_run(RUNS / recipe.name, recipe)
    if missing := _missing_start(recipe):
        raise UserError(
            f"{missing}: not there, and jobs do not make it; `reread train` here, or `reread convert`, does"
        )
    if settings.tasks % train.parallel.tensor:
        raise UserError(
            f"recipe {recipe.name}: the {settings.tasks} processes of a node cannot be split into tensor groups of "
            f"{train.parallel.tensor}; change slurm.tasks_per_node or train.parallel.tensor"
        )
    if not corpus_comes:
        Manifest.read(train.data.corpus)


def _train_here(recipe: Recipe, train: TrainSettings, run: Path) -> None:
    from training.trainer import train as run_training

    run_training(train, run, _run_folder(recipe, run))


@contextmanager
def _run_folder(recipe: Recipe, run: Path) -> Iterator[None]:
    """Hold the run folder and say in it what runs; the first process does, the others only log there."""
    with ExitStack() as stack:
        try:
            if own_rank() == "0":
                check_same_run(run, recipe)
                if missing := _missing_start(recipe):
                    raise UserError(
                        f"{missing}: not there, and below torchrun or srun `start` does not make it; make it by "
                        "starting this recipe once by itself, or by `reread convert`"
                    )
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_only_job(run))
                write_recipe(recipe, run / "recipe.yaml")
                write_atomically(run / "environment.json", json.dumps(_environment(), indent=1).encode())
            stack.enter_context(_log_file(run))
        except OSError as error:
            raise UserError(f"{run}: cannot write the run folder ({error.strerror}: {error.filename})") from None
        yield


def _train_section(recipe: Recipe) -> TrainSettings:
    if recipe.train is None:
        raise UserError(f"recipe {recipe.name}: has no `train` section")
    return recipe.train


def _recipe_of(run: Path) -> Recipe:
    path = run / "recipe.yaml"
    if not path.exists():
        raise UserError(f"{path}: not there; is `{run}` a run folder made by `reread train`?")
    return Recipe.parse(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


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
    handler = logging.FileHandler(run / "logs" / f"rank-{own_rank()}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


@contextmanager
def _only_job(run: Path) -> Iterator[None]:
    """Hold the run folder; raises `UserError` if another job does. The lock goes with the process, however it ends."""
    with (run / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run}: another job is training in this folder; stop it, or choose another name") from None
        yield
