"""`reread run RECIPE --slurm`: the scripts of slurm/ filled in for this run and this cluster, and submitted."""

import logging
import math
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from pipeline.values import read_values
from preprocessing.corpus import write_atomically
from preprocessing.errors import CONTROL, UserError
from preprocessing.settings import Line, Settings

if TYPE_CHECKING:
    from preprocessing.execution.stages import Stage

log = logging.getLogger("reread")

SCRIPTS = Path(__file__).resolve().parents[2] / "slurm"
SITE = Path("slurm/site.yaml")


class PreprocessJobs(Settings):
    """The job arrays of preprocessing; a stage has one, and its tasks share the parts."""

    array: int = Field(default=16, ge=1, le=1_000_000)
    """Array tasks a stage."""
    cpus_per_task: int = Field(default=16, ge=1, le=10_000)
    hours: float = Field(default=12, gt=0, le=100_000)
    partition: Line | None = None
    """Of these jobs, the merge and the export; null: as the others'."""


class SlurmSettings(Settings):
    """What `sbatch` is told: slurm/site.yaml has what belongs to the cluster, a recipe what belongs to it."""

    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    options: list[Line] = []
    """Any other options of sbatch, e.g. --constraint=v100."""
    modules: list[Line] = []
    setup: list[str] = []
    """Shell lines that each job begins with."""
    container: Line = ""
    """Put before `reread` in the jobs: apptainer exec --nv image.sif."""
    environment: Path | None = None
    """A virtual environment; null: the one that submits, unless there is a container."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    minimum_nodes: int | None = Field(default=None, ge=1, le=100_000)
    """The job also starts, and comes back after a node died, on so few; null: only on `nodes`."""
    gpus_per_node: int = Field(default=8, ge=0, le=1024)
    tasks_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Processes a node; null: one a GPU."""
    cpus_per_task: int = Field(default=8, ge=1, le=10_000)
    hours: float = Field(default=24, gt=0, le=100_000)
    """Time limit of one attempt; a run goes on in the next."""
    warning_seconds: int = Field(default=300, ge=0)
    """How long before the time limit the checkpoint is asked for."""
    preprocess: PreprocessJobs = PreprocessJobs()

    @model_validator(mode="after")
    def _fewer(self) -> "SlurmSettings":
        if self.minimum_nodes is not None and self.minimum_nodes > self.nodes:
            raise ValueError(f"minimum_nodes is {self.minimum_nodes}, above nodes, which is {self.nodes}")
        return self

    @model_validator(mode="after")
    def _time_between(self) -> "SlurmSettings":
        if self.warning_seconds >= self.hours * 3600:
            raise ValueError(
                f"warning_seconds is {self.warning_seconds}, not below the {self.hours * 3600:g} s of hours: each "
                "attempt would be asked to stop as it begins"
            )
        return self

    @property
    def tasks(self) -> int:
        """Processes on a node."""
        return self.tasks_per_node or self.gpus_per_node or 1


@dataclass(frozen=True)
class Job:
    """One rendered script."""

    run: str
    """Whose job it is: runs/<run>."""
    name: str
    script: str
    """Its template: slurm/<script>.sbatch."""
    arguments: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    """Of sbatch, over those of the template; None takes one out."""


def site_settings(path: Path | None) -> dict[str, Any]:
    """The values of `path`, or of slurm/site.yaml where it is; a recipe's own stand over them."""
    file = path or SITE
    if path is None and not file.exists():
        log.info("site: no %s here, so the cluster's own defaults; `--site FILE` names another", SITE)
        return {}
    try:
        values = read_values(file.read_text(encoding="utf-8"), str(file)) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise UserError(f"{file}: holds no keys; slurm/site.yaml of the project lists them")
    SlurmSettings.parse(values, str(file))  # a mistake is told with this file's name
    return values


def preprocess_jobs(settings: SlurmSettings, run: str, stages: list["Stage"], arguments: list[str]) -> list[Job]:
    """The jobs that make a corpus, one for each of the `stages` and the merge; `arguments`: recipe and overrides."""
    array = settings.preprocess
    options = {**_small(settings), "time": _clock(array.hours)}
    parts = {**options, "array": f"0-{array.array - 1}"}
    jobs = [
        Job(run, stage.name, "vocabulary", arguments, options)
        if stage.is_one_task
        else Job(run, stage.name, "preprocess", [stage.name, *arguments], parts)
        for stage in stages
    ]
    return [*jobs, Job(run, "merge", "merge", arguments, options)] if stages else []


def training_jobs(settings: SlurmSettings, run: str, arguments: list[str], prefix: str = "") -> list[Job]:
    """Pretraining and export of a run."""
    options = {
        **_nodes(settings),
        "gpus-per-node": settings.gpus_per_node or None,
        "time": _clock(settings.hours),
        "signal": f"B:USR1@{settings.warning_seconds}",
        "dependency": "singleton",  # the same run submitted twice waits for itself
    }
    return [
        Job(run, f"{prefix}pretrain", "pretrain", arguments, options),
        Job(run, f"{prefix}export", "export", [f"runs/{run}"], _small(settings)),
    ]


def convert_job(settings: SlurmSettings, run: str, source: str, output: Path, options: dict[str, Any]) -> Job:
    """Another run's exported model -> the folder that this run starts from."""
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return Job(run, "convert", "convert", [source, str(output), *flags], _small(settings))


def render(job: Job, settings: SlurmSettings, folder: Path) -> str:
    """The script of `job`, whole: it can be submitted by itself again. `folder` is where it will lie.

    Raises `UserError` for a working folder whose name would end a line of it.
    """
    if CONTROL.search(str(Path.cwd())):
        raise UserError(f"{Path.cwd()}: a job's folder has no control characters in its name; rename it")
    arrays = job.script == "preprocess"
    options = {
        "job-name": job.run if job.script == "pretrain" else f"{job.run}-{job.name}",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "chdir": Path.cwd(),
        "output": folder / f"{job.name}-{'%A_%a' if arrays else '%j'}.log",
        **job.options,
    }
    # `set -eu` stands below these lines: what sites run here seldom bears it
    lines = [f"module load {module} || exit 1" for module in settings.modules]
    lines += [*_environment(settings), *settings.setup]
    lines.append(f"export SLURM_FOLDER={shlex.quote(str(folder))} RUN={shlex.quote(f'runs/{job.run}')}")
    lines.append(f"export TASKS_PER_NODE={settings.tasks} CPUS_PER_TASK={settings.cpus_per_task}")
    if settings.container:
        lines.append(f"export CONTAINER={shlex.quote(settings.container)}")
    lines.append(f"set -- {shlex.join(job.arguments)}")
    text = (SCRIPTS / f"{job.script}.sbatch").read_text(encoding="utf-8")
    return _with_options(text, options, settings.options).replace("#SITE\n", "\n".join(lines) + "\n")


def submit_script(jobs: list[Job], folder: Path) -> str:
    """submit.sh: the chain; where one job is refused, those before it are taken back."""
    lines = ["submit " + shlex.quote(jobs[0].name)]
    for job in jobs[1:]:
        singleton = ",singleton" if job.options.get("dependency") == "singleton" else ""
        lines.append(f'submit {shlex.quote(job.name)} --dependency="afterok:$job{singleton}"')
    return f"""#!/bin/bash
# Submits {jobs[-1].run}: {" -> ".join(job.name for job in jobs)}. What is done already is not done again.
set -euo pipefail
cd {shlex.quote(str(Path.cwd()))}
# Of the job that this may run in; sbatch would hand them on
unset ${{!SLURM_JOB@}} ${{!SLURM_ARRAY@}} ${{!SLURM_STEP@}} ${{!SLURM_NTASKS@}} ${{!SLURM_MEM@}} SLURM_RESTART_COUNT
jobs=()
trap 'status=$?; if [ $status -ne 0 ] && [ ${{#jobs[@]}} -gt 0 ]; then scancel "${{jobs[@]}}"; fi' EXIT
submit() {{
    job=$(sbatch --parsable --kill-on-invalid-dep=yes "${{@:2}}" {shlex.quote(str(folder))}/"$1.sbatch")
    job=${{job%%;*}}
    jobs+=("$job")
    echo "$1 $job"
}}
{chr(10).join(lines)}
"""


def submit(jobs: list[Job], settings: SlurmSettings, folder: Path) -> dict[str, str]:
    """Write the scripts to `folder` and hand them to sbatch; the job numbers by name.

    Raises `UserError` where sbatch is not there or refuses, with what it said.
    """
    if shutil.which("sbatch") is None:
        raise UserError("no sbatch on this machine; run it on a login node of the cluster, or look with --dry-run")
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        write_atomically(folder / f"{job.name}.sbatch", render(job, settings, folder).encode())
    shutil.copyfile(SCRIPTS / "supervise.py", folder / "supervise.py")
    path = folder / "submit.sh"
    write_atomically(path, submit_script(jobs, folder).encode())
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=False)
    submitted = dict(line.split() for line in done.stdout.splitlines())
    if done.returncode:
        refused = next(job.name for job in jobs if job.name not in submitted)
        raise UserError(f"{folder / refused}.sbatch: sbatch refused it: {_said(done.stderr)}{_way_out(done.stderr)}")
    return submitted


def _small(settings: SlurmSettings) -> dict[str, Any]:
    """What needs no GPU."""
    own = settings.preprocess
    return {"partition": own.partition or settings.partition, "cpus-per-task": own.cpus_per_task}


def _nodes(settings: SlurmSettings) -> dict[str, Any]:
    """With a range of nodes, Slurm gives no more of them than the fewest would have processes if it is told how many
    processes run on a node; so it is told the CPUs of a node, and srun the processes."""
    fewest = settings.minimum_nodes or settings.nodes
    if fewest == settings.nodes:
        tasks = {"ntasks-per-node": settings.tasks, "cpus-per-task": settings.cpus_per_task}
        return {"nodes": settings.nodes, **tasks}
    no_tasks = {"ntasks-per-node": None, "cpus-per-task": None}
    return {"nodes": f"{fewest}-{settings.nodes}", **no_tasks, "mincpus": settings.tasks * settings.cpus_per_task}


def _clock(hours: float) -> str:
    """As sbatch reads it; it counts whole minutes."""
    minutes = math.ceil(hours * 60 - 1e-6)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _environment(settings: SlurmSettings) -> list[str]:
    if settings.container and settings.environment is None:
        return []
    folder = settings.environment / "bin" if settings.environment else Path(sys.executable).parent
    return [f"export PATH={shlex.quote(str(folder.absolute()))}:$PATH"]


def _with_options(text: str, options: dict[str, Any], others: list[str]) -> str:
    """`text` with these #SBATCH lines in place of its own, or after them."""
    lines = text.split("\n")
    for name, value in options.items():
        new = [] if value is None else [f"#SBATCH --{name}={shlex.quote(str(value))}"]
        at = [number for number, line in enumerate(lines) if line.startswith(f"#SBATCH --{name}=")]
        if at:
            lines[at[0] : at[0] + 1] = new
        else:
            end = lines.index("#SITE")
            lines[end:end] = new
    end = lines.index("#SITE")
    lines[end:end] = [f"#SBATCH {option}" for option in others]
    return "\n".join(lines)


def _said(errors: str) -> str:
    own = [line.removeprefix("sbatch: ") for line in errors.splitlines() if line.startswith("sbatch: ")]
    wrong = [line.removeprefix("error: ") for line in own if line.startswith("error: ")]  # a site may print more
    return (wrong or own or errors.splitlines() or ["no word of it"])[0]


def _way_out(errors: str) -> str:
    partition = "invalid partition" in errors.lower()  # with a wrong account, too, Slurm speaks of partitions
    if not partition or shutil.which("sinfo") is None:
        return "; correct it in slurm/site.yaml or with slurm.KEY=VALUE"
    known = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, check=False).stdout.split()
    return f"; set slurm.partition to one of {', '.join(sorted(set(known)))}"
