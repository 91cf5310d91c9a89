"""`reread run RECIPE --slurm`: which jobs a recipe needs, checked before they wait in a queue."""

import importlib.util
import logging
from pathlib import Path

from pipeline.commands import RUNS, missing_start, start_recipe, train_section
from pipeline.recipe import Recipe, check_same_run, load_recipe
from pipeline.slurm.scripts import (
    Job,
    SlurmSettings,
    convert_job,
    preprocess_jobs,
    render,
    site_settings,
    submit,
    submit_script,
    training_jobs,
)
from preprocessing.config import PreprocessSettings
from preprocessing.corpus import Manifest
from preprocessing.errors import UserError
from preprocessing.execution.build import missing_stages
from preprocessing.execution.stages import Stage, stages_of

log = logging.getLogger("reread")


def submit_stages(name: str, overrides: list[str], site: Path | None, dry_run: bool) -> None:
    """Submit preprocessing, training and export to Slurm, and print how to follow; or print the scripts alone.

    Raises `UserError` for whatever can be known to fail before a job has waited in the queue.
    """
    recipe = load_recipe(name, overrides, beneath={"slurm": site_settings(site)})
    settings, folder = recipe.slurm or SlurmSettings(), RUNS / recipe.name / "slurm"
    jobs = _jobs(recipe, settings, [name, *overrides], dry_run)
    if not jobs:
        log.info("%s: nothing to do, the corpus is whole and the recipe trains nothing", recipe.name)
    elif dry_run:
        for job in jobs:
            print(f"==> {folder / job.name}.sbatch\n{render(job, settings, folder)}")
        print(f"==> {folder / 'submit.sh'}\n{submit_script(jobs, folder)}", end="")
    else:
        submitted = submit(jobs, settings, folder)
        print("submitted: " + " -> ".join(f"{job} ({number})" for job, number in submitted.items()))
        print(f"follow:    squeue --job {','.join(submitted.values())}; tail -F {folder}/*.log")
        print(f"stop:      scancel {' '.join(submitted.values())}   (training saves a checkpoint first)")
        print("the same command again goes on from whatever is done by then")


def _jobs(recipe: Recipe, settings: SlurmSettings, arguments: list[str], dry_run: bool) -> list[Job]:
    """In order, each to begin when the one before has done well."""
    jobs = []
    if recipe.preprocess is not None:
        jobs = preprocess_jobs(settings, recipe.name, _stages(recipe.preprocess, dry_run), arguments)
    if recipe.train is None:
        return jobs
    corpus = recipe.train.data.corpus
    if not jobs or recipe.preprocess is None or corpus.resolve() != recipe.preprocess.output.resolve():
        Manifest.read(corpus)
    _check(recipe, settings)
    jobs += _start_jobs(recipe, settings)
    return jobs + training_jobs(settings, recipe.name, arguments)


def _stages(settings: PreprocessSettings, dry_run: bool) -> list[Stage]:
    """The stages of preprocessing that are not done; a dry run does not look, since that writes the work plan."""
    if not dry_run:
        return missing_stages(settings)
    return [] if (settings.output / "manifest.json").exists() else stages_of(settings)


def _start_jobs(recipe: Recipe, settings: SlurmSettings) -> list[Job]:
    """The run of another recipe that makes `train.init`, if it is to be made."""
    init = missing_start(recipe)
    if recipe.start is None or init is None:
        return []
    other, arguments, model = start_recipe(recipe)
    if missing_start(other):
        raise UserError(
            f"recipe {other.name}: has a `start` of its own; make it first: reread run {arguments[0]} --slurm"
        )
    _check(other, settings)
    options = {"model": model, **recipe.start.convert.given()}
    return [
        *training_jobs(settings, other.name, arguments, prefix="start-"),
        convert_job(settings, recipe.name, f"runs/{other.name}/export", init, options),
    ]


def _check(recipe: Recipe, settings: SlurmSettings) -> None:
    check_same_run(RUNS / recipe.name, recipe)
    train = train_section(recipe)
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        from training.assembly import check_model

        check_model(train)
    else:
        log.info("train.model is not checked before the jobs run: torch or transformers is not installed here")
    tensor = train.parallel.tensor
    if settings.tasks % tensor:
        raise UserError(
            f"recipe {recipe.name}: the {settings.tasks} processes of a node cannot be split into tensor groups of "
            f"{tensor}; change slurm.tasks_per_node or train.parallel.tensor"
        )
    ranks = settings.nodes * settings.tasks // tensor
    if train.global_batch < ranks:
        raise UserError(
            f"recipe {recipe.name}: train.global_batch is {train.global_batch}, fewer rows than the {ranks} "
            f"data-parallel ranks of {settings.nodes} nodes; take fewer nodes or processes, or a larger batch"
        )
