"""Runs one task of a stage, in any process on any machine that sees the work folder.

A task needs nothing but the work folder and is safe to repeat. An attempt writes its files into a temporary folder and
then renames them, `STAGE/NUMBER.json` last: the task is done once that file exists. Several attempts at one task, at
the same time or one after another, leave the same bytes and do not disturb each other, so no lock is needed. Many
shared file systems have none.
"""

from pathlib import Path

from reread.preprocessing.errors import writing
from reread.preprocessing.execution.attempts import temporary_folder
from reread.preprocessing.execution.stages import STAGES
from reread.preprocessing.execution.work import open_work
from reread.preprocessing.files import move, sync_folder, to_json, write_atomically


def run_task(folder: Path, stage: str, number: int) -> None:
    """Do task `number` of `stage` unless it is done; raises `UserError` if bad input is refused or the disk is full."""
    work = open_work(folder)
    with writing(work.output):
        (folder / stage).mkdir(exist_ok=True)
        if work.is_done(stage, number):
            return
        with temporary_folder(work.path(stage, number, "")) as attempt:
            result = STAGES[stage].function(work, number, attempt)
            for path in sorted(attempt.iterdir()):
                move(path, (work.output if path.suffix == ".tar" else folder / stage) / path.name)
            write_atomically(attempt / "result", to_json(result))
            sync_folder(work.output)
            sync_folder(folder / stage)
            move(attempt / "result", work.path(stage, number, ".json"))
            sync_folder(folder / stage)
