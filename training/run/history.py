"""RUN/history.jsonl: when each attempt at a run began and ended, at which steps, and for which reason.

    {"event": "start", "time": 1790000000.0, "step": 200, "processes": 8}
    {"event": "end", "time": 1790003600.0, "step": 412, "how": "done"}
    {"event": "job", "job": "4711", "restart": 0, "nodes": "n[1-2]", "status": 75, "asked": true, ...}

slurm/supervise.py writes the `job` lines and decides by them whether a job is requeued. A job is not an attempt: it may
end before the run begins, and an attempt in it has its own lines.

The end of an attempt is written when the next one begins, from the last notes of its processes (RUN/progress), which
remain after a kill -9 or the death of a node. The end of the last attempt is read from its notes. Imports no torch.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from reread.training.run.files import RunFile
from reread.training.run.watchdog import ASKED_TO_STOP, DONE, ENDED, Note, clear_progress, has_ended, read_progress

SILENCE = 60.0
"""A process that wrote no note for this many seconds, and has not ended, counts as lost."""
RUNNING = "running"


class Attempt(NamedTuple):
    """The time from a start of the run to the end of its processes."""

    began: float
    """Unix time, seconds."""
    first_step: int
    """The step of the checkpoint from which it continued."""
    processes: int
    ended: float | None
    """None if its end was not recorded."""
    last_step: int | None
    how: str
    """`done`, `stopped`, `running`, or the fault that ended it."""

    @property
    def failed(self) -> bool:
        return self.how not in (DONE, ASKED_TO_STOP, RUNNING)


def close_attempt(run: Path) -> None:
    """Record the end of the last attempt and delete the notes of its processes, before a new one begins."""
    notes = read_progress(run)
    with suppress(OSError):  # a full disk is reported by the code that cannot continue
        if notes:
            _append(run, {"event": "end", **_end(notes, time.time())})
    clear_progress(run)


def open_attempt(run: Path, step: int, processes: int) -> None:
    """Record that an attempt continues from `step`."""
    _append(run, {"event": "start", "time": round(time.time(), 1), "step": step, "processes": processes})


def read_history(run: Path) -> list[Attempt]:
    """The attempts at a run, in order. Lines that cannot be read are left out: a node may have died in one."""
    attempts: list[Attempt] = []
    with suppress(OSError):
        for line in RunFile.HISTORY.of(run).read_bytes().splitlines():
            with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                values = json.loads(line)
                if values["event"] == "start":
                    began, step, processes = float(values["time"]), int(values["step"]), int(values["processes"])
                    attempts.append(Attempt(began, step, processes, None, None, "not recorded"))
                elif values["event"] == "end" and attempts and attempts[-1].ended is None:
                    attempts[-1] = _closed(attempts[-1], values)
    notes = read_progress(run)
    if attempts and attempts[-1].ended is None and notes:
        attempts[-1] = _closed(attempts[-1], _end(notes, time.time() - SILENCE))
    return attempts


def _closed(attempt: Attempt, end: dict[str, Any]) -> Attempt:
    return attempt._replace(ended=float(end["time"]), last_step=int(end["step"]), how=str(end["how"]))


def _end(notes: dict[int, Note], lost_before: float) -> dict[str, Any]:
    """The time, step and reason of the end of the processes with these notes; `lost_before` is a Unix time."""
    last = max(notes.values(), key=lambda note: note["time"])
    faults = [note["doing"].removeprefix(ENDED) for note in notes.values() if note["doing"].startswith(ENDED)]
    lost = [note for note in notes.values() if not has_ended(note)]
    how = last["doing"]
    if faults:
        how = faults[0]
    elif lost:
        how = f"killed or lost ({lost[0]['doing']})" if last["time"] < lost_before else RUNNING
    return {"time": last["time"], "step": last["step"], "how": how}


def _append(run: Path, values: dict[str, Any]) -> None:
    with RunFile.HISTORY.of(run).open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        cut_short = file.read() not in (b"", b"\n")
        file.write(b"\n" * cut_short + json.dumps(values).encode() + b"\n")
