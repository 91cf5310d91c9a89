"""Opens the folder of a run: locks it for one job, and writes the recipe, the versions and the log to it."""

import json
import logging
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from reread.pipeline.recipe.check import check_same_run
from reread.pipeline.recipe.load import write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.run_folder.lock import only_job
from reread.preprocessing.errors import LineFormatter, UserError, writing
from reread.preprocessing.files import write_atomically
from reread.training.parallel.process import this_process
from reread.training.run.files import RunFile

log = logging.getLogger("reread")


@contextmanager
def open_run_folder(recipe: Recipe, run: Path, first: str = "") -> Iterator[None]:
    """Make and lock the run folder, write the recipe and the versions to it, and log there; `first` is the first line.

    Process 0 does all of this, the others only log. Raises `UserError` if the folder belongs to another recipe or job,
    or cannot be written.
    """
    with ExitStack() as stack:
        try:
            if this_process().rank == 0:
                check_same_run(run, recipe)
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_job(run))
                write_recipe(recipe, RunFile.RECIPE.of(run))
                environment = json.dumps(_environment(), indent=1).encode()
                write_atomically(RunFile.ENVIRONMENT.of(run), environment)
            stack.enter_context(_log_file(run, first))
        except OSError as error:
            raise UserError(f"{run}: cannot write the run folder ({error.strerror}: {error.filename})", error) from None
        yield


def _environment() -> dict[str, str]:
    """Versions of Python and packages. Never environment variables, which may hold secrets."""
    packages = ["reread", "torch", "numpy", "transformers", "megatron-core", "jieba", "tokenizers"]
    return {"python": platform.python_version(), "machine": platform.platform()} | {
        name: version_of(name) for name in packages
    }


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, say
        return "not installed"


class _Holding(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def held_records() -> Iterator[list[logging.LogRecord]]:
    """What is logged meanwhile, for `keep_records`: it concerns runs whose folders are not open yet."""
    handler = _Holding()
    log.addHandler(handler)
    try:
        yield handler.records
    finally:
        log.removeHandler(handler)


def keep_records(run: Path, records: Sequence[logging.LogRecord]) -> None:
    """Write records of `held_records` to the log of a run's process 0. Raises `UserError` if that is not possible."""
    if not records:
        return
    with writing(run):
        handler = _log_handler(run, 0)
        for record in records:
            handler.handle(record)
        handler.close()


def _log_handler(run: Path, rank: int) -> logging.FileHandler:
    path = RunFile.LOG.of(run, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s"))
    return handler


@contextmanager
def _log_file(run: Path, first: str) -> Iterator[None]:
    """Copy the log of this process to its file."""
    handler = _log_handler(run, this_process().rank)
    if first:
        handler.handle(log.makeRecord(log.name, logging.INFO, "", 0, first, (), None))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
