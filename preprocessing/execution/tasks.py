"""Runs one task of a stage, in any process on any machine that sees the work folder.

A task needs nothing but the work folder and is safe to repeat. An attempt writes its files into a temporary folder and
then renames them, `STAGE/NUMBER.npz` last: the task is done once that file exists, and files that no other task reads
may go. Several attempts at one task, at the same time or one after another, leave the same bytes and do not disturb
each other, so no lock is needed. Many shared file systems have none.
"""

from pathlib import Path

from reread.preprocessing.errors import writing
from reread.preprocessing.execution.attempts import temporary_folder
from reread.preprocessing.execution.stages import STAGES
from reread.preprocessing.execution.task_file import TaskWriter, keep_result
from reread.preprocessing.execution.work import open_work
from reread.preprocessing.files import move, sync_folder, synced


def run_task(folder: Path, stage: str, number: int) -> None:
    """Do task `number` of `stage` unless it is done; raises `UserError` if bad input is refused or the disk is full."""
    work = open_work(folder)
    with writing(work.output):
        (folder / stage).mkdir(exist_ok=True)
        if work.is_done(stage, number):
            return
        path = work.path(stage, number)
        with temporary_folder(path.with_suffix("")) as attempt:
            try:
                with synced(attempt / path.name) as file, TaskWriter(attempt, file) as writer:
                    writer.save_result(STAGES[stage].function(work, number, writer))
            except OSError:
                if work.is_done(stage, number):  # by another attempt, which has removed what this one was reading
                    return
                raise
            for other in sorted(attempt.iterdir()):
                if other.name != path.name:
                    move(other, (work.output if other.suffix == ".tar" else folder / stage) / other.name)
            sync_folder(work.output)
            sync_folder(folder / stage)
            move(attempt / path.name, path)
            sync_folder(folder / stage)
            for earlier in STAGES[stage].last_reader_of:
                if work.is_done(earlier, number):
                    keep_result(work.path(earlier, number), attempt / path.name)
