"""Trains a recipe in its run folder, in processes that it starts, after making the model that it starts from."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from reread.pipeline.recipe.check import check_same_run, check_train
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.recipe.shell import commands_line, log_commands
from reread.pipeline.recipe.start import missing_start, start_recipe, start_weights
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.folder import keep_records, open_run_folder
from reread.pipeline.run_folder.launch import launch, stop_at_once
from reread.preprocessing.errors import UserError
from reread.training.data.tasks.examples import forget_examples
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS

log = logging.getLogger("reread")


def train(recipe: Recipe, arguments: list[str], logged: Sequence[logging.LogRecord] = ()) -> None:
    """Train in this process, or start `parallel.processes` processes and exit with their status.

    `logged` is what was logged about the run's data before; it is kept in the run's log, too.
    """
    stop_at_once()
    log_commands(recipe)
    settings = train_section(recipe)
    if this_process().launcher:
        _train_here(recipe)
        return
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    if nodes != "1" and "SLURM_STEP_NUM_TASKS" not in os.environ:  # srun sets it
        log.warning("Slurm gave this job %s nodes, and only this one is used: `srun reread train ...` takes all", nodes)
    check_same_run(RUNS / recipe.name, recipe)
    check_train(recipe)
    make_start(recipe)
    keep_records(RUNS / recipe.name, logged)
    processes = settings.parallel.processes or _devices()
    if processes == 1:
        _train_here(recipe)
        return
    log.info("starting %d processes on this machine", processes)
    forget_examples()  # each process reads its own, or maps what is kept
    status = launch(arguments, processes)
    if status == 128 + signal.SIGBUS:
        from reread.training.data.kinds import open_dataset

        open_dataset(
            settings.data, settings.seed, "train"
        )  # its error names the shard that was truncated while it was mapped
    if status:
        sys.exit(status)


def make_start(recipe: Recipe) -> None:
    """Make `train.init` by the recipe's `start`, unless it exists."""
    missing = missing_start(recipe)
    if recipe.start is None or missing is None:
        return
    from reread.training.exchange.convert import convert

    options = recipe.start.convert.given()
    if recipe.start.weights is not None:
        weights, model = start_weights(recipe)
        log.info("%s does not exist, so %s is converted", missing, weights)
        convert(weights, missing, model, **options)
        return
    other, arguments, model = start_recipe(recipe)
    log.info("%s does not exist, so recipe %s is trained and converted", missing, other.name)
    train(other, ["train", *arguments])
    convert(export(RUNS / other.name, None), missing, model, **options)


def _train_here(recipe: Recipe) -> None:
    from reread.pipeline.estimate.auto import choose_auto
    from reread.pipeline.estimate.passes import choose_pass_share
    from reread.training.trainer import train as run_training

    folder = RUNS / recipe.name
    *before, last = phases_of(recipe)
    run_training(last, folder, _prepared(recipe, folder), choose_auto, choose_pass_share, before)


@contextmanager
def _prepared(recipe: Recipe, folder: Path) -> Iterator[None]:
    """The run folder, opened once all processes have joined. Under a launcher `train.init` must exist already."""
    if this_process().rank == 0 and (missing := missing_start(recipe)):
        raise UserError(
            f"{missing}: does not exist, and `start` cannot make it under torchrun or srun; run it once without them, "
            "or use `reread convert`"
        )
    with open_run_folder(recipe, folder, commands_line(recipe)):
        yield


def _devices() -> int:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    log.info("one process on CPU, since there is no GPU here and parallel.processes is not set")
    return 1
