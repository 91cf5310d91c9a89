"""The jobs of a recipe, and the options of sbatch that each needs."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from reread.pipeline.recipe.slurm import SlurmSettings
from reread.preprocessing.execution.stages import Stage


class Element(NamedTuple):
    """One task of an array of fine-tunings."""

    run: str
    """Name of its run: runs/<run>."""
    arguments: list[str]
    """Recipe and overrides."""


@dataclass(frozen=True)
class Job:
    """A job: one script that is written and submitted."""

    run: str
    """Name of the run that it belongs to: runs/<run>."""
    name: str
    script: str
    """Name of its template: slurm/<script>.sbatch."""
    arguments: list[str]
    settings: SlurmSettings
    options: dict[str, Any] = field(default_factory=dict)
    """Options of sbatch that replace those of the template; None removes one."""
    after: dict[str, str] | None = None
    """Job that this one waits for -> kind of dependency for sbatch (afterok, ...); None: it waits until the job before
    it in the list has succeeded."""
    elements: list[Element] = field(default_factory=list)
    """The tasks of an array of fine-tunings."""


def preprocess_jobs(settings: SlurmSettings, run: str, stages: list[Stage], arguments: list[str]) -> list[Job]:
    """The jobs that make a corpus: one for each of the `stages`, and the merge. `arguments`: recipe and overrides."""
    array = settings.preprocess
    options = {**_small(settings), "time": _clock(array.hours)}
    jobs = []
    for stage in stages:
        shares = {"array": f"0-{0 if stage.is_one_task else array.array - 1}"}
        jobs.append(Job(run, stage.name, "preprocess", [stage.name, *arguments], settings, options | shares))
    return [*jobs, Job(run, "merge", "merge", arguments, settings, options)] if stages else []


def training_jobs(settings: SlurmSettings, run: str, arguments: list[str], prefix: str = "") -> list[Job]:
    """The jobs that pretrain and export a run."""
    return [
        Job(run, f"{prefix}pretrain", "pretrain", arguments, settings, _training(settings)),
        export_job(settings, run, prefix),
    ]


def export_job(settings: SlurmSettings, run: str, prefix: str = "") -> Job:
    return Job(run, f"{prefix}export", "export", [f"runs/{run}"], settings, _small(settings))


def finetuning_arrays(
    run: str, elements: Iterable[tuple[SlurmSettings, Element]], after: dict[str, str] | None
) -> list[Job]:
    """The arrays that fine-tune: one, or one for each of the different settings, since all tasks of an array get the
    same resources. `run` is the one in whose folder the scripts lie."""
    groups: dict[str, tuple[SlurmSettings, list[Element]]] = {}
    for settings, element in elements:
        groups.setdefault(settings.model_dump_json(), (settings, []))[1].append(element)
    jobs = []
    for number, (settings, tasks) in enumerate(groups.values(), 1):
        at_once = f"%{settings.at_once}" if settings.at_once else ""
        options = {**_training(settings), "array": f"0-{len(tasks) - 1}{at_once}"}
        name = "finetune" if number == 1 else f"finetune-{number}"
        jobs.append(Job(run, name, "finetune", [], settings, options, after, tasks))
    return jobs


def score_arrays(finetunings: Iterable[Job]) -> list[Job]:
    """For each array of fine-tunings on several processes, an array that computes their scores, each in one process. A
    fine-tuning on one process computes its scores itself."""
    return [
        replace(
            job,
            name=job.name.replace("finetune", "scores"),
            script="scores",
            options={**_one_gpu(job.settings), "array": job.options["array"]},
            after={job.name: "aftercorr"},
        )
        for job in finetunings
        if job.settings.nodes * job.settings.tasks > 1
    ]


def scores_job(settings: SlurmSettings, run: str, arguments: list[str], after: dict[str, str]) -> Job:
    """The job that prints the scores of all seeds of a fine-tuning, by its recipe and overrides."""
    return Job(run, "scores", "scores", arguments, settings, _one_gpu(settings), after)


def evaluation_job(settings: SlurmSettings, run: str) -> Job:
    """The job that computes the figures of all held-out text while the fine-tunings run."""
    return Job(run, "evaluate", "evaluate", [f"runs/{run}"], settings, _one_gpu(settings), {"export": "afterok"})


def report_job(settings: SlurmSettings, run: str, scored: list[Job], after: dict[str, str]) -> Job:
    """The job that writes the report after those of `after`, and after the jobs that compute scores have ended, even if
    some of them failed."""
    after = {**after, **{job.name: "afterany" for job in scored}}
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
