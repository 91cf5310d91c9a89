"""The jobs of a recipe, and the options of sbatch that each needs."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.slurm.settings import SlurmSettings
from preprocessing.execution.stages import Stage


@dataclass(frozen=True)
class Job:
    """One script to render and submit."""

    run: str
    """Name of the run that it belongs to: runs/<run>."""
    name: str
    script: str
    """Name of its template: slurm/<script>.sbatch."""
    arguments: list[str]
    settings: SlurmSettings
    options: dict[str, Any] = field(default_factory=dict)
    """Options of sbatch that replace those of the template; None removes one."""
    after: tuple[str, ...] | None = None
    """Names of the jobs that must have succeeded before it begins; None is the one before it in the list."""


def preprocess_jobs(settings: SlurmSettings, run: str, stages: list[Stage], arguments: list[str]) -> list[Job]:
    """The jobs that make a corpus: one for each of the `stages`, and the merge. `arguments`: recipe and overrides."""
    array = settings.preprocess
    options = {**_small(settings), "time": _clock(array.hours)}
    parts = {**options, "array": f"0-{array.array - 1}"}
    jobs = [
        Job(run, stage.name, "vocabulary", arguments, settings, options)
        if stage.is_one_task
        else Job(run, stage.name, "preprocess", [stage.name, *arguments], settings, parts)
        for stage in stages
    ]
    return [*jobs, Job(run, "merge", "merge", arguments, settings, options)] if stages else []


def training_jobs(settings: SlurmSettings, run: str, arguments: list[str], prefix: str = "") -> list[Job]:
    """The jobs that pretrain and export a run."""
    return [
        Job(run, f"{prefix}pretrain", "pretrain", arguments, settings, _training(settings)),
        export_job(settings, run, prefix),
    ]


def export_job(settings: SlurmSettings, run: str, prefix: str = "") -> Job:
    return Job(run, f"{prefix}export", "export", [f"runs/{run}"], settings, _small(settings))


def finetuning_jobs(
    settings: SlurmSettings,
    name: str,
    runs: list[tuple[str, list[str]]],
    recipe: str,
    overrides: list[str],
    prefix: str = "",
    after: tuple[str, ...] = (),
) -> list[Job]:
    """The jobs that fine-tune: one for each of `runs` (name of a seed's run, its overrides), which all begin once those
    of `after` are done, then the scores of all.

    `name` is that of `recipe` with the `overrides`, which the scores are printed by.
    """
    jobs = [
        Job(
            run,
            f"{prefix}finetune{run.removeprefix(name)}",
            "finetune",
            [recipe, *given],
            settings,
            _training(settings),
            after,
        )
        for run, given in runs
    ]
    seeds = tuple(job.name for job in jobs)
    return [*jobs, Job(name, f"{prefix}scores", "scores", [recipe, *overrides], settings, _one_gpu(settings), seeds)]


def evaluation_job(settings: SlurmSettings, run: str) -> Job:
    """The job that computes the figures of all held-out text, beside the fine-tunings."""
    return Job(run, "evaluate", "evaluate", [f"runs/{run}"], settings, _one_gpu(settings), after=("export",))


def report_job(settings: SlurmSettings, run: str, after: tuple[str, ...]) -> Job:
    """The job that writes the report once all others are done."""
    return Job(run, "report", "report", [f"runs/{run}"], settings, _small(settings), after)


def convert_job(settings: SlurmSettings, run: str, source: str, output: Path, options: dict[str, Any]) -> Job:
    """The job that converts another run's exported model to the folder that this run starts from."""
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return Job(run, "convert", "convert", [source, str(output), *flags], settings, _small(settings))


def _training(settings: SlurmSettings) -> dict[str, Any]:
    """Options of a job that trains."""
    return {
        **_nodes(settings),
        "gpus-per-node": settings.gpus_per_node or None,
        "time": _clock(settings.hours),
        "signal": f"B:USR1@{settings.warning_seconds}",
        "dependency": "singleton",  # the same run submitted twice waits for itself
    }


def _small(settings: SlurmSettings) -> dict[str, Any]:
    """Options of a job that needs no GPU."""
    own = settings.preprocess
    return {"partition": own.partition or settings.partition, "cpus-per-task": own.cpus_per_task}


def _one_gpu(settings: SlurmSettings) -> dict[str, Any]:
    """Options of a job that evaluates in one process."""
    options = {**_small(settings), "gpus-per-node": 1 if settings.gpus_per_node else None}
    return {**options, "partition": settings.partition} if settings.gpus_per_node else options


def _nodes(settings: SlurmSettings) -> dict[str, Any]:
    """Options for the nodes of training.

    Given a range of nodes and the processes of a node, Slurm allocates no more nodes than the fewest need for their
    processes. So a range goes with the CPUs of a node instead, and srun gets the processes.
    """
    fewest = settings.minimum_nodes or settings.nodes
    if fewest == settings.nodes:
        tasks = {"ntasks-per-node": settings.tasks, "cpus-per-task": settings.cpus_per_task}
        return {"nodes": settings.nodes, **tasks}
    no_tasks = {"ntasks-per-node": None, "cpus-per-task": None}
    return {"nodes": f"{fewest}-{settings.nodes}", **no_tasks, "mincpus": settings.tasks * settings.cpus_per_task}


def _clock(hours: float) -> str:
    """Hours in sbatch's format, rounded up to whole minutes."""
    minutes = math.ceil(hours * 60 - 1e-6)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
