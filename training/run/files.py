"""The table of the files of a run, from which docs/run-folder.md is made, and functions that find and read them.

    python -m reread.training.run.files > docs/run-folder.md

Imports no torch.
"""

import json
import os
import re
from enum import Enum
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError

RUNS = Path("runs")

TITLE = """# The run folder

A run is a folder, `runs/NAME`. This page lists all files in it. It is made from `training/run/files.py`; a test keeps
it up to date, and another test looks for files of real runs that it does not list. `reread ablate` keeps its figures
beside the runs, in `runs/NAME-ablation.json`; `runs/.labelled` has what was read of large labelled files, which all
runs share and which may be removed while none of them is running; `runs/.starts` has the models of words that
fine-tunings began with (`finetune.words`), which may be removed once these have a checkpoint. `runs/.folds` has the
files of folds (`finetune.folds`), which are written again where they are missing, and `runs/NAME-grid.json` the points
of a grid (`finetune.grid`) with their scores on dev.

| file | holds | written by, when | read by |
|---|---|---|---|
"""


class RunFile(Enum):
    """A file or a folder in the folder of a run: its name there, what it holds, who writes it and when, who reads it.

    `{}` in a name stands for the rank of a process.
    """

    RECIPE = (
        "recipe.yaml",
        "The resolved recipe that the run was last started with.",
        "process 0, at each start",
        "every command that is given the run",
    )
    ENVIRONMENT = (
        "environment.json",
        "Versions of Python and of the packages, and the machine.",
        "process 0, at each start",
        "`reread report`",
    )
    LOCK = (
        ".lock",
        "Host, process and Slurm job that train here; it is locked while they do.",
        "process 0, at each start",
        "process 0 of another start",
    )
    LOG = ("logs/rank-{}.log", "What the process logged, with the time.", "each process, at all times", "people")
    PROGRESS = (
        "progress/rank-{:05d}.json",
        "The process' step, what it is doing, and how it ended.",
        "the watchdog of each process, process 0 every two seconds, the others too in runs of up to 128 processes",
        "the other watchdogs, the next start, `supervise.py`, `reread report`",
    )
    HISTORY = (
        "history.jsonl",
        "The record of attempts: a line for each start, for the end of the attempt before it, and for each job of Slurm"
        " that has ended.",
        "process 0, at each start; `supervise.py`, at the end of a job",
        "`reread report`, `supervise.py`",
    )
    ATTEMPTS = (
        "attempts.jsonl",
        "The jobs of Slurm that have ended; history.jsonl has them now.",
        "`supervise.py` of an earlier version",
        "`supervise.py`",
    )
    AUTO = (
        "fitted.json",
        "Values chosen for what is `auto`, the number of threads, and what a pass costs beside its tokens.",
        "process 0, before the first step",
        "a start that continues, `reread evaluate`, `predict`, `export`",
    )
    MODEL = (
        "model",
        "config.json and the files of the tokenizer; with a checkpoint, the whole model.",
        "process 0, before the first step",
        "every command that loads the model",
    )
    CORPUS = (
        "corpus.json",
        "Fingerprints and counts of the data that the run began with.",
        "process 0, before the first step",
        "`reread evaluate`, `export`, `report`, a run that continues from this one",
    )
    COUNTS = (
        "counts",
        "The number of chunks in each block of a corpus, by its fingerprint, split and a length that its index lacks.",
        "process 0, before the first step",
        "the other processes, the next start",
    )
    CHECKPOINTS = (
        "checkpoints",
        "step-NNNNNNNN/: weights, optimiser and state at a step, with checksums (training/checkpoint/store.py).",
        "all processes, every `checkpoint.every_steps` steps, at the best evaluation, when asked to stop and at the "
        "end",
        "a start that continues, every command that loads the model",
    )
    METRICS = (
        "metrics.jsonl",
        "A line for each progress line and each validation: step, Unix time in seconds, figures.",
        "process 0, every `log_every` and `validate_every` steps; a start cuts off the lines past its step",
        "`reread report`, `export` (model card)",
    )
    TENSORBOARD = (
        "tensorboard",
        "Event files with the same figures, for TensorBoard.",
        "process 0, if `writers` names tensorboard",
        "TensorBoard",
    )
    WANDB_ID = (
        "wandb.json",
        "The run's id at Weights & Biases.",
        "process 0, at each start, if `writers` names wandb",
        "the next start",
    )
    WANDB = ("wandb", "The files of its client.", "the client of Weights & Biases", "the same")
    MLFLOW_ID = (
        "mlflow.json",
        "The run's id at MLflow.",
        "process 0, at each start, if `writers` names mlflow",
        "the next start",
    )
    EVALUATION = (
        "evaluation.json",
        "Figures of all held-out text or examples, one entry a checkpoint and way to read them.",
        "`reread evaluate`, `finetune`, `ablate`",
        "`reread report`",
    )
    MISTAKES = (
        "mistakes.json",
        "The mistakes of a task's model, by held-out file.",
        "`reread evaluate`, `finetune`",
        "`reread report`",
    )
    SCORES = (
        "scores.json",
        "A task's scores on dev and test, by split.",
        "`reread finetune`, when the run is done",
        "`reread report`",
    )
    CHOSEN = (
        "chosen.json",
        "Settings of the task that were chosen on dev after training: thresholds.",
        "`reread finetune`, `evaluate`",
        "`reread evaluate`, `predict`, `export`",
    )
    BASELINES = (
        "baselines.json",
        "Scores of simple baselines, by held-out file.",
        "`reread evaluate`, `finetune`",
        "`reread report`",
    )
    FILLS = (
        "fills.json",
        "The words that the model fills into the recipe's examples, by checkpoint.",
        "`reread report`",
        "the next report",
    )
    TABLE = (
        "table.md",
        "Of a suite, which has no model of its own: the scores of its tasks beside published ones.",
        "`reread run`, `report`",
        "people",
    )
    REPORT = ("report.html", "The page about the run.", "`reread report`", "people")
    EXPORT = (
        "export",
        "The Hugging Face folder of a checkpoint.",
        "`reread export`, `run`; `finetune` from this run",
        "transformers, `reread predict`, `finetune`, `convert`",
    )
    SLURM = (
        "slurm",
        "Scripts and logs of the jobs, and `supervise.py` as it was when they were submitted.",
        "`reread run --slurm`, `finetune --slurm`; Slurm",
        "Slurm, people",
    )

    def __init__(self, path: str, holds: str, written: str, read: str) -> None:
        self.path, self.holds, self.written, self.read = path, holds, written, read

    def of(self, run: Path, rank: int = 0) -> Path:
        """Its path in the folder `run`."""
        return run / self.path.format(rank)

    @property
    def shown(self) -> str:
        """Its name for people: `logs/rank-N.log`, `model/`."""
        name = re.sub(r"{.*}", "N", self.path)
        return name if "." in name else f"{name}/"


def as_markdown() -> str:
    """The content of docs/run-folder.md."""
    rows = [f"| `{one.shown}` | {one.holds} | {one.written} | {one.read} |\n" for one in RunFile]
    return TITLE + "".join(rows)


def read_json(path: Path, missing: type[OSError] = OSError) -> Any:
    """The value in a JSON file of a run; None if the file is missing or damaged, as a full disk may leave it.

    Errors of the class `missing` count as a missing file, others are raised: by default any OSError counts. Give
    `FileNotFoundError` if a file that cannot be read at the moment must not count as missing.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (missing, ValueError, RecursionError):
        return None


def read_mapping(path: Path, missing: type[OSError] = OSError) -> dict[str, Any]:
    """The mapping in a JSON file of a run; empty if `read_json` finds none."""
    found = read_json(path, missing)
    return found if isinstance(found, dict) else {}


def find_run(given: Path) -> Path:
    """The folder of a run, given that folder or the name of the run. Other paths are returned unchanged."""
    named = RUNS / given
    return given if os.path.lexists(given) or not os.path.exists(RunFile.RECIPE.of(named)) else named


def has_checkpoints(run: Path) -> bool:
    """Whether a run has checkpoints, whole or damaged; raises as `checkpoint_steps`."""
    return bool(checkpoint_steps(run))


def checkpoint_steps(run: Path) -> list[int]:
    """Steps of the checkpoints of a run, whole or damaged; half-written ones of a killed run (`step-N.tmp`) do not
    count.

    Raises `UserError` if their folder cannot be listed now; Path.glob would take it for an empty one.
    """
    folder = RunFile.CHECKPOINTS.of(run)
    try:
        return [int(found[1]) for name in os.listdir(folder) if (found := re.fullmatch(r"step-(\d+)", name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read now ({error.strerror}); start again when it can be", error) from None


if __name__ == "__main__":
    print(as_markdown(), end="")
