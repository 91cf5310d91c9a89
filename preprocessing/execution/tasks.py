"""Running one part task, in any process on any machine that sees the work folder.

A task needs nothing but the folder and is safe to repeat. An attempt at a task writes into a temporary folder and moves
what it made into place, `STAGE/NUMBER.json` last: once that file is there, the task is done. Attempts at one task, at
the same time or one after another, leave the same bytes and do not disturb each other. So no lock is needed, which many
shared file systems lack.
"""

from pathlib import Path

from preprocessing.errors import writing
from preprocessing.execution.attempts import temporary_folder
from preprocessing.execution.stages import STAGES
from preprocessing.execution.work import open_work
from preprocessing.files import move, sync_folder, to_json, write_atomically


def run_task(folder: Path, stage: str, number: int) -> None:
    """Do one task unless it is done; raises `UserError` for bad input that is refused and for a full disk."""
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
