"""`reread run RECIPE --slurm` and `reread finetune RECIPE --slurm`: the jobs of a recipe, checked and submitted."""

import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.check import check_model, check_same_run, check_train
from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.repeats import first_runs, folds_of, of_recipe
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.recipe.slurm import SlurmSettings, finetuning_settings, site_settings
from reread.pipeline.recipe.start import missing_start, start_recipe, start_weights
from reread.pipeline.recipe.suite import suite_of
from reread.pipeline.recipe.task import export_missing, fetch_init, finetune_recipe
from reread.pipeline.recipe.then import FollowingRecipe, following
from reread.pipeline.slurm.jobs import (
    Element,
    Job,
    convert_job,
    evaluation_job,
    export_job,
    finetuning_arrays,
    preprocess_jobs,
    report_job,
    score_arrays,
    scores_job,
    training_jobs,
)
from reread.pipeline.slurm.scripts import SCRIPTS, in_order, render, submit_script
from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.execution.build import missing_stages
from reread.preprocessing.execution.stages import Stage, stages_of
from reread.preprocessing.files import write_atomically
from reread.training.data.tasks.settings import check_groups
from reread.training.exchange.hub import HubName, fetch
from reread.training.run.files import RUNS, RunFile

log = logging.getLogger("reread")

ONE_PROCESS = "slurm: fine-tuning takes one process, unless `slurm` of its own recipe or command sets more"


def submit_recipe(name: str, overrides: list[str], site: Path | None, dry_run: bool) -> None:
    """Submit preprocessing, training, export and the fine-tunings of `then` to Slurm and print how to follow them; or
    only print the scripts.

    Raises `UserError` for every mistake that can be found without waiting in the queue.
    """
    if (suite := suite_of(name, overrides)) is not None:
        _submit_suite(suite, site, dry_run)
        return
    recipe = load_recipe(name, overrides, "train", beneath={"slurm": site_settings(site)})
    jobs = _jobs(recipe, recipe.slurm or SlurmSettings(), [name, *overrides], dry_run)
    if not jobs:
        log.info("%s: nothing to do, the corpus is whole and the recipe trains nothing", recipe.name)
        return
    _submit_or_print(jobs, RunFile.SLURM.of(RUNS / recipe.name), dry_run)


def _submit_suite(suite: Recipe, site: Path | None, dry_run: bool) -> None:
    """Submit an array with a task for each run of a suite whose data exist, and a job for the table."""
    given = suite.slurm.model_dump(exclude_unset=True) if suite.slurm else {}
    values = {**site_settings(site), **given}
    settings = SlurmSettings.parse(values, "slurm")
    log.info(ONE_PROCESS)
    scored = _finetunings(suite, values, following(suite), {})
    if not dry_run:
        with writing(RUNS / suite.name):
            (RUNS / suite.name).mkdir(parents=True, exist_ok=True)
            write_recipe(suite, RunFile.RECIPE.of(RUNS / suite.name))
    _submit_or_print(
        [*scored, report_job(settings, suite.name, scored, {})], RunFile.SLURM.of(RUNS / suite.name), dry_run
    )


def _finetunings(
    recipe: Recipe, values: dict[str, Any], finetunings: list[FollowingRecipe], after: dict[str, str]
) -> list[Job]:
    """The arrays of fine-tunings that follow a recipe, and those of their scores. `values` are the recipe's settings of
    Slurm; the arrays wait for the jobs `after`."""
    elements = []
    for one in finetunings:
        own = finetuning_settings(values, one.recipe.slurm)
        if of_recipe(one.recipe).grid:
            log.info("%s: all points of its grid are trained in one task of the array", one.recipe.name)
        elements += _elements(one.recipe, own, one.name, one.overrides, of_grid_together=True)
    arrays = finetuning_arrays(recipe.name, elements, after)
    return [*arrays, *score_arrays(arrays)]


def submit_finetuning(name: str, overrides: list[str], site: Path | None, dry_run: bool) -> None:
    """Submit an array of the seeds of a fine-tuning, and a job for the scores of all; or only print the scripts.

    Raises `UserError` for whatever is known to fail before a job has waited in the queue.
    """
    fetch_init(name, overrides)
    recipe = finetune_recipe(name, overrides)
    check_model(recipe)
    settings = finetuning_settings(site_settings(site), recipe.slurm)
    log.info(ONE_PROCESS)
    init = train_section(recipe).init
    jobs = [export_job(settings, init.parent.name)] if init is not None and export_missing(recipe) else []
    elements = _elements(recipe, settings, name, overrides)
    arrays = finetuning_arrays(recipe.name, elements, {job.name: "afterok" for job in jobs})
    jobs += arrays
    if len(elements) > 1 or score_arrays(arrays):
        after = {job.name: "afterok" for job in arrays}
        jobs.append(scores_job(settings, recipe.name, [name, *overrides], after))
    _submit_or_print(jobs, RunFile.SLURM.of(RUNS / recipe.name), dry_run)


def _submit_or_print(jobs: list[Job], folder: Path, dry_run: bool) -> None:
    if dry_run:
        for job in jobs:
            print(f"==> {folder / job.name}.sbatch\n{render(job, folder)}")
        print(f"==> {folder / 'submit.sh'}\n{submit_script(jobs, folder)}", end="")
        return
    submitted = submit(jobs, folder)
    print("submitted: " + in_order(jobs, submitted))
    for job in jobs:
        if job.elements:
            print(f"tasks:     {submitted[job.name]}_[{job.options['array']}] are listed in {folder / job.name}.sbatch")
    print(f"follow:    squeue --job {','.join(submitted.values())}; tail -F {folder}/*.log")
    print(f"stop:      scancel {' '.join(submitted.values())}   (training saves a checkpoint first)")
    print("the same command again continues from whatever is done by then")


def _jobs(recipe: Recipe, settings: SlurmSettings, arguments: list[str], dry_run: bool) -> list[Job]:
    """The jobs of a recipe: a chain, then an array of fine-tunings over tasks and seeds, and after it the report."""
    jobs = []
    if recipe.train is not None:
        _check(recipe, settings)
    finetunings = following(recipe)
    if recipe.preprocess is not None:
        jobs = preprocess_jobs(settings, recipe.name, _stages(recipe.preprocess, dry_run), arguments)
    if recipe.train is None:
        return jobs
    if recipe.train.data.is_task:
        raise UserError(f"recipe {recipe.name}: fine-tunes a model; submit it by `reread finetune RECIPE --slurm`")
    made = recipe.preprocess.output.resolve() if jobs and recipe.preprocess is not None else None
    phases = phases_of(recipe)
    for part in dict.fromkeys(part for phase in phases for part in phase.data.parts):
        if isinstance(part.corpus, Path) and part.corpus.resolve() != made:  # an address is for the nodes' caches
            Manifest.read(part.corpus)
    if recipe.phases:
        ends = ", ".join(f"{phase.steps:,}" for phase in phases)
        log.info("one job trains the %d phases, up to steps %s", len(phases), ends)
    if automatic := recipe.train.automatic:
        log.info(
            "train.%s: auto: chosen when the job starts, for its GPUs; `reread plan %s --gpus %d --gpu NAME "
            "--gpus-per-node %d` shows it for a GPU by name",
            *(" and ".join(automatic), arguments[0], settings.nodes * settings.tasks, settings.tasks),
        )
    jobs += _start_jobs(recipe, settings)
    jobs += training_jobs(settings, recipe.name, arguments)
    if finetunings:
        log.info(ONE_PROCESS)
    if any(one.random for one in finetunings):
        log.info("then: random: with --slurm nothing is trained from random weights; `reread run` without it does so")
    scored = _finetunings(recipe, settings.model_dump(exclude_unset=True), finetunings, {"export": "afterok"})
    if recipe.published:
        scored.append(evaluation_job(settings, recipe.name))
    return [*jobs, *scored, report_job(settings, recipe.name, scored, {"export": "afterok"})] if scored else jobs


def _elements(
    recipe: Recipe, settings: SlurmSettings, name: str, overrides: list[str], of_grid_together: bool = False
) -> list[tuple[SlurmSettings, Element]]:
    """The runs of a recipe from `finetune_recipe`, whose name on the command line and overrides are given; the runs of
    a grid, of which some depend on others, are one element if they are `of_grid_together`."""
    _check_split(recipe, settings)
    train = train_section(recipe)
    micro_batch = 1 if "micro_batch" in train.automatic else train.micro_batch
    check_groups(train.global_batch, micro_batch, settings.nodes * settings.tasks // train.parallel.tensor)
    together = of_grid_together and of_recipe(recipe).grid
    if together and settings.nodes * settings.tasks > 1:
        raise UserError(
            f"recipe {recipe.name}: finetune.grid: its points are trained one after the other by one process, and "
            f"slurm has {settings.nodes * settings.tasks}; set slurm.nodes and slurm.tasks_per_node to 1"
        )
    runs = folds_of(recipe, overrides) if together else first_runs(recipe, overrides)
    return [(settings, Element(run.name, [name, *run.overrides])) for run in runs]


def _stages(settings: PreprocessSettings, dry_run: bool) -> list[Stage]:
    """The stages of preprocessing that are not finished. For a dry run these are all, unless the corpus
    exists: to look for them would write a work plan."""
    if not dry_run:
        return missing_stages(settings)
    return [] if (settings.output / "manifest.json").exists() else stages_of(settings)


def _start_jobs(recipe: Recipe, settings: SlurmSettings) -> list[Job]:
    """The jobs that make `train.init` if it has to be made: another recipe's run, and the conversion."""
    init = missing_start(recipe)
    if recipe.start is None or init is None:
        return []
    options = recipe.start.convert.given()
    if recipe.start.weights is not None:
        weights, model = start_weights(recipe)
        folder = fetch(weights) if isinstance(weights, HubName) else weights  # nodes may not reach the Hub
        return [convert_job(settings, recipe.name, str(folder), init, {"model": model, **options})]
    other, arguments, model = start_recipe(recipe)
    if missing_start(other):
        raise UserError(
            f"recipe {other.name}: has a `start` of its own; make it first: reread run {arguments[0]} --slurm"
        )
    _check(other, settings)
    return [
        *training_jobs(settings, other.name, arguments, prefix="start-"),
        convert_job(settings, recipe.name, f"runs/{other.name}/export", init, {"model": model, **options}),
    ]


def _check(recipe: Recipe, settings: SlurmSettings) -> None:
    check_same_run(RUNS / recipe.name, recipe)
    check_train(recipe)
    _check_split(recipe, settings)


def _check_split(recipe: Recipe, settings: SlurmSettings) -> None:
    tensor = train_section(recipe).parallel.tensor
    if settings.tasks % tensor:
        raise UserError(
            f"recipe {recipe.name}: the {settings.tasks} processes of a node cannot be split into tensor groups of "
            f"{tensor}; change slurm.tasks_per_node or train.parallel.tensor"
        )
    ranks, rows = settings.nodes * settings.tasks // tensor, min(phase.smallest_batch for phase in phases_of(recipe))
    if rows < ranks:
        raise UserError(
            f"recipe {recipe.name}: the smallest batch of train has {rows} rows, fewer than the {ranks} "
            f"data-parallel ranks of {settings.nodes} nodes; take fewer nodes or processes, or a larger batch"
        )


def submit(jobs: list[Job], folder: Path) -> dict[str, str]:
    """Write the scripts to `folder` and submit them; returns the job numbers by name.

    Raises `UserError` if sbatch is missing or refuses a job, with its reason.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "no sbatch on this machine; run it on a login node of the cluster, or see the scripts with --dry-run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        write_atomically(folder / f"{job.name}.sbatch", render(job, folder).encode())
    shutil.copyfile(SCRIPTS / "supervise.py", folder / "supervise.py")
    path = folder / "submit.sh"
    write_atomically(path, submit_script(jobs, folder).encode())
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=False)
    submitted = dict(line.split() for line in done.stdout.splitlines())
    if done.returncode:
        refused = next(job.name for job in jobs if job.name not in submitted)
        raise UserError(
            f"{folder / refused}.sbatch: sbatch refused it: {_first_error(done.stderr)}{_way_out(done.stderr)}"
        )
    return submitted


def _first_error(errors: str) -> str:
    own = [line.removeprefix("sbatch: ") for line in errors.splitlines() if line.startswith("sbatch: ")]
    wrong = [line.removeprefix("error: ") for line in own if line.startswith("error: ")]  # sites add lines of their own
    return (wrong or own or errors.splitlines() or ["it gave no reason"])[0]


def _way_out(errors: str) -> str:
    partition = "invalid partition" in errors.lower()  # Slurm mentions partitions for a wrong account, too
    if not partition or shutil.which("sinfo") is None:
        return "; correct it in slurm/site.yaml or with slurm.KEY=VALUE"
    known = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, check=False).stdout.split()
    return f"; set slurm.partition to one of {', '.join(sorted(set(known)))}"
