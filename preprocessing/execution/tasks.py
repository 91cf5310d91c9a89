"""Runs one task of a stage, in any process on any machine that sees the work folder.

A task needs nothing but the work folder and is safe to repeat. An attempt writes its files into a temporary folder and
then renames them, `STAGE/NUMBER.npz` last: the task is done once that file exists, and what no other task reads may go.
Several attempts at one task, at the same time or one after another, leave the same bytes and do not disturb each other,
so no lock is needed. Many shared file systems have none.
"""

from contextlib import suppress
from pathlib import Path

from reread.preprocessing.errors import writing
from reread.preprocessing.execution.attempts import temporary_folder
from reread.preprocessing.execution.stages import STAGES, Stage, stages_of
from reread.preprocessing.execution.task_file import TaskWriter
from reread.preprocessing.execution.work import Work, open_work
from reread.preprocessing.files import move, sync_folder, synced


def run_task(folder: Path, stage: str, number: int) -> None:
    """Do task `number` of `stage` unless it is done; raises `UserError` if bad input is refused or the disk is full."""
    work, one = open_work(folder), STAGES[stage]
    with writing(work.output):
        if one.is_done(work, number):
            return
        try:
            _attempt(work, one, number)
        except OSError:
            if not one.is_done(work, number):  # by another attempt, and what this one needs may have been removed since
                raise


def _attempt(work: Work, stage: Stage, number: int) -> None:
    path = work.path(stage.name, number)
    path.parent.mkdir(exist_ok=True)
    read_last = [earlier.name for earlier in stages_of(work.settings) if earlier.last_reader == stage.name]
    with temporary_folder(path.with_suffix("")) as attempt:
        with synced(attempt / path.name) as file, TaskWriter(attempt, file) as writer:
            results = {stage.name: stage.function(work, number, writer)}
            if not stage.is_one_task:
                results |= {earlier: work.result(earlier, number) for earlier in read_last}
            writer.save_results(results)
        for other in sorted(attempt.iterdir()):
            if other.name != path.name:
                move(other, (work.output if other.suffix == ".tar" else path.parent) / other.name)
        sync_folder(work.output)
        sync_folder(path.parent)
        move(attempt / path.name, path)
        sync_folder(path.parent)
        # With the attempt's folder go the files that it was the last to read, also if it is killed meanwhile
        for earlier in read_last:
            with suppress(FileNotFoundError):
                move(work.folder / earlier if stage.is_one_task else work.path(earlier, number), attempt / earlier)
