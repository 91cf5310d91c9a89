"""The folder of a run: the recipe it began with, its log, and one job at a time in it."""

import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.recipe import Recipe, apply_overrides, differences, fine_tunes, write_recipe, written_recipe
from pipeline.run_lock import only_job
from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from training.data.kinds import KINDS
from training.parallel.place import place

log = logging.getLogger("reread")

RUNS = Path("runs")

ELASTIC = {"parallel", "micro_batch", "activation_checkpointing", "compile", "checkpoint", "peak_tflops"} | {
    "watchdog_minutes",
    "log_every",
    "validate_every",
    "validation_batches",
    "writers",
}
"""Fields of `train` that may change when a run is resumed: none changes what is learned, except by rounding and
dropout."""


def recipe_of(run: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a run was last started with, with overrides; a task is read with the run's own tokenizer."""
    path = run / "recipe.yaml"
    if not path.exists():
        raise UserError(f"{path}: not there; is `{run}` a run folder made by `reread train`?")
    values = written_recipe(path).model_dump(mode="json")
    if fine_tunes(values):
        values["train"]["data"]["tokenizer"] = str(run / "model")
    apply_overrides(values, list(overrides), "train")
    return Recipe.parse(values, str(path))


def has_checkpoints(run: Path) -> bool:
    """Whether a run has any, whole or damaged; what a killed run left half-written (`step-N.tmp`) is none.

    Raises `UserError` if their folder cannot be listed now; to Path.glob it would be an empty one.
    """
    folder = run / "checkpoints"
    try:
        return any(re.fullmatch(r"step-\d+", name) for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"{folder}: cannot be read now ({error.strerror}); start again when it can be", error) from None


def check_same_run(run: Path, recipe: Recipe) -> None:
    """Raises `UserError` if the run folder holds checkpoints of a recipe that trains something else."""
    path = run / "recipe.yaml"
    if not path.exists() or not has_checkpoints(run):
        return
    begun = written_recipe(path)  # fields that are newer than it have their defaults
    old, new = (one.model_dump(mode="json")["train"] or {} for one in (begun, recipe))
    changed = differences(_learned(old), _learned(new), "train")
    if changed:
        raise UserError(
            f"{path}: this run was begun with other settings ({'; '.join(changed)}); "
            "revert them, or give the new run a name of its own with name=..."
        )


@contextmanager
def open_run_folder(recipe: Recipe, run: Path) -> Iterator[None]:
    """Make and lock the run folder, write the recipe and the versions to it, and log there.

    Process 0 does this; the others only log. Raises `UserError` if the folder belongs to another recipe or job, or
    cannot be written.
    """
    with ExitStack() as stack:
        try:
            if place().rank == 0:
                check_same_run(run, recipe)
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_job(run))
                write_recipe(recipe, run / "recipe.yaml")
                write_atomically(run / "environment.json", json.dumps(_environment(), indent=1).encode())
            stack.enter_context(_log_file(run))
        except OSError as error:
            raise UserError(f"{run}: cannot write the run folder ({error.strerror}: {error.filename})", error) from None
        yield


def _learned(train: dict[str, Any]) -> dict[str, Any]:
    data = train.get("data", {})
    elastic = KINDS[data["kind"]].settings.elastic if data else ()
    data = {key: value for key, value in data.items() if key not in elastic}
    return {key: value for key, value in {**train, "data": data}.items() if key not in ELASTIC}


def _environment() -> dict[str, str]:
    """Versions only, never environment variables: they may hold secrets."""
    packages = ["reread", "torch", "numpy", "transformers", "megatron-core", "jieba", "tokenizers"]
    return {"python": platform.python_version(), "machine": platform.platform()} | {
        name: version_of(name) for name in packages
    }


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, say
        return "not installed"


@contextmanager
def _log_file(run: Path) -> Iterator[None]:
    """Copy the log to RUN/logs/, one file a process."""
    (run / "logs").mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(run / "logs" / f"rank-{place().rank}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
