"""The options of `sbatch`: from slurm/site.yaml for the cluster, and from the `slurm` section of the recipe."""

import logging
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from reread.pipeline.recipe.values import read_values
from reread.preprocessing.errors import UserError
from reread.preprocessing.redaction import find_secret
from reread.preprocessing.settings import Line, Settings

log = logging.getLogger("reread")

SITE = Path("slurm/site.yaml")


def _without_secrets(line: str) -> str:
    if found := find_secret(f"pipe:{line}"):
        raise ValueError(
            f"holds {found}, which the scripts and the run folder would show; put it into a file that only you can "
            "read, and let the line read that: `. ~/.secrets`"
        )
    return line


class PreprocessJobs(Settings):
    """The job arrays of preprocessing: one for each stage, whose tasks share the parts."""

    array: int = Field(default=16, ge=1, le=1_000_000)
    """Array tasks of a stage."""
    cpus_per_task: int = Field(default=16, ge=1, le=10_000)
    """CPU cores of an array task, which works on as many parts at once."""
    hours: float = Field(default=12, gt=0, le=100_000)
    """Time limit of an array task, in hours."""
    partition: Line | None = None
    """Partition of these jobs, the merge and the export; null: that of the other jobs."""


class SlurmSettings(Settings):
    """Options of the jobs. Those in slurm/site.yaml are the cluster's; a recipe's own replace them."""

    partition: Line | None = None
    """Partition of the jobs (sbatch --partition); null: the default of the cluster."""
    account: Line | None = None
    """Account that pays for the jobs (sbatch --account)."""
    qos: Line | None = None
    """Quality of service of the jobs (sbatch --qos)."""
    options: list[Line] = []
    """Any other options of sbatch, e.g. --constraint=v100."""
    modules: list[Line] = []
    """Environment modules that each job loads."""
    setup: list[Annotated[str, AfterValidator(_without_secrets)]] = []
    """Shell lines that each job runs first."""
    container: Line = ""
    """Command in front of `reread` in the jobs: apptainer exec --nv image.sif."""
    environment: Path | None = None
    """Virtual environment of the jobs; null: the one from which they are submitted, unless there is a container."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    """Nodes of the training job."""
    minimum_nodes: int | None = Field(default=None, ge=1, le=100_000)
    """Smallest number of nodes to start on, and to restart on after a node has failed; null: always `nodes`."""
    gpus_per_node: int = Field(default=8, ge=0, le=1024)
    """GPUs of each node; 0 trains on CPU."""
    tasks_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Processes on a node; null: one for each GPU."""
    cpus_per_task: int = Field(default=8, ge=1, le=10_000)
    """CPU cores of each process."""
    hours: float = Field(default=24, gt=0, le=100_000)
    """Time limit of one attempt; the run continues in the next."""
    warning_seconds: int = Field(default=300, ge=0)
    """Seconds before the time limit at which the job is told to save a checkpoint."""
    at_once: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of fine-tunings of the array that run at the same time (sbatch --array=0-N%AT_ONCE); null: no limit."""
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


def finetuning_settings(site: dict[str, Any], own: SlurmSettings | None) -> SlurmSettings:
    """Settings of fine-tuning: one process on one GPU unless its recipe asks for more, since its batches are small."""
    known = SlurmSettings.parse(site, "slurm")
    one = {**site, "nodes": 1, "minimum_nodes": None, "gpus_per_node": min(known.gpus_per_node, 1), "tasks_per_node": 1}
    return SlurmSettings.parse({**one, **(own.model_dump(exclude_unset=True) if own else {})}, "slurm")


def site_settings(path: Path | None) -> dict[str, Any]:
    """The values in `path`, by default in slurm/site.yaml if it exists."""
    file = path or SITE
    if path is None and not file.exists():
        log.info("site: no %s here, so the cluster's own defaults hold; `--site FILE` names another", SITE)
        return {}
    try:
        values = read_values(file.read_text(encoding="utf-8"), str(file)) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise UserError(f"{file}: holds no keys; slurm/site.yaml of the project lists them")
    SlurmSettings.parse(values, str(file))  # an error names this file
    return values
