"""A file per process that says what the process is doing, and a thread that notices when no process moves any more.

    RUN/progress/rank-00003.json    {"rank": 3, "host": "node07", "pid": 123, "step": 41, "doing": "computing", ...}

Processes wait for each other, so a process that hangs stops all of them, and none can know by itself which one it is. A
process whose own work has not moved for long reads all files twice. A process that wrote nothing in between is dead or
stopped. One that is alive but has begun fewer activities is the one for which the others wait. Only changes between the
two readings count, so the clocks of machines may differ. Imports no torch.
"""

import contextlib
import json
import logging
import math
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from reread.preprocessing.errors import UserError
from reread.training.config import STOPPED
from reread.training.run.files import RunFile, read_json

log = logging.getLogger("reread")

BEAT_SECONDS = 2.0
"""Time between two writes of process 0's file, from which people and `supervise.py` read the step."""
WRITES_A_SECOND = 64
"""Of all files together: the other processes write less often in a larger run."""
LOOK_SECONDS = 120.0
"""Longest time between the two readings, which is longer than a network file system shows an outdated file."""
FAULT = 1
"""Exit status of a process that its watchdog ends."""
LOST = "lost the connection to another process"
DONE, ASKED_TO_STOP, ENDED = "done", "stopped", "ended: "
"""The beginning of a process' last activity: finished, stopped on request, or ended by the fault that follows."""

Note = dict[str, Any]
"""The content of a progress file."""


class Progress:
    """The current activity of this process: set by the training thread, read by the watchdog."""

    def __init__(self) -> None:
        self.step = 0
        """The number of steps done, which is also the number of the current step."""
        self.skipped_steps = 0
        self.doing = "starting"
        self.begun = 0
        """Activities begun; all processes begin the same ones in the same order."""
        self.ticks = 0
        self.stop_asked = False
        """Whether this process was sent SIGTERM or Ctrl-C."""

    def begin_step(self, step: int) -> None:
        self.step = step
        self.enter("reading data")

    def enter(self, doing: str) -> None:
        self.doing = doing
        self.begun += 1

    def tick(self, *_: object) -> None:
        """Show that a long activity proceeds; accepts a forward hook's arguments."""
        self.ticks += 1


class Watchdog:
    """A thread, used in a `with` statement, that writes this process' file every `BEAT_SECONDS` and at the end; in a
    large run only process 0 writes as often (`slowest_beat`).

    When `progress` has not moved for `limit` seconds, or the connection to another process is lost, it finds the
    process that caused it. The lowest living rank reports it in one line, and all end with status `FAULT` by
    `os._exit`, since the training thread hangs.
    """

    def __init__(self, run: Path, progress: Progress, rank: int, world: int, limit: float, attempt: int) -> None:
        """`attempt` identifies this start of the run: the same on all processes, another at each start."""
        self.run, self.progress = run, progress
        self.rank, self.world, self.attempt = rank, world, attempt
        self.limit, self.beat, self._slowest = limit, min(BEAT_SECONDS, limit / 20), slowest_beat(world, limit)
        self._wakes_a_write = 1 if rank == 0 else math.ceil(self._slowest / self.beat)
        self._wakes = self._beats = 0
        self._over, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        """Raises `UserError` if the file cannot be written."""
        try:
            RunFile.PROGRESS.of(self.run, self.rank).parent.mkdir(exist_ok=True)
            self._write(self.progress.doing)
        except OSError as error:
            raise UserError(
                f"{self.run}: cannot write the run folder ({error.strerror}: {error.filename})", error
            ) from None
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if isinstance(error, SystemExit) and error.code == STOPPED:
            self._write_if_possible(ASKED_TO_STOP)
        else:
            cause = f"{ENDED}{type(error).__name__}: {error}".partition("\n")[0]
            self._write_if_possible(DONE if error is None else cause)

    def another_failed(self) -> bool:
        """Whether another process has ended by a fault; the stop that the launcher then requests is ignored."""
        notes = read_progress(self.run, self.attempt).values()
        return any(note["doing"].startswith(ENDED) for note in notes)

    def lost_another(self) -> NoReturn:
        """Report which process is gone, and end this one. To be called when a collective fails.

        The launcher, which has noticed too, must not interrupt it by SIGTERM.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.progress.enter(LOST)
        self._lost.set()
        self._thread.join()
        raise AssertionError("the watchdog has not ended this process")

    def _watch(self) -> None:
        still, before, moved = 0.0, time.monotonic(), (0, 0)
        first: dict[int, Note] | None = None
        while not self._over.wait(self.beat):
            lost = self._lost.is_set()
            self._wakes += 1
            if lost or (self._wakes + self.rank) % self._wakes_a_write == 0:  # in turns with the other ranks
                self._write_if_possible(self.progress.doing)
            now = time.monotonic()
            # A pause of the whole process, as when Slurm suspends its job, counts as two beats
            still, before = still + min(now - before, 2 * self.beat), now
            if moved != (self.progress.begun, self.progress.ticks):
                moved = self.progress.begun, self.progress.ticks
                still, first = 0.0, None
            between = 4 * self._slowest if lost else min(LOOK_SECONDS, self.limit / 4)
            if first is None and still >= (0 if lost else self.limit):
                first, looked = read_progress(self.run, self.attempt), still
            elif first is not None and still >= looked + between:
                second = read_progress(self.run, self.attempt)
                if not lost and moving(first, second):
                    still, first = 0.0, None
                    continue
                reporter, line = judge(first, second, self.rank, self.world)
                if reporter == self.rank or still >= looked + 2 * between:  # the others let it report first
                    self._end(f"{line}; the run stops", logging.ERROR if reporter == self.rank else logging.INFO)

    def _end(self, line: str, level: int) -> NoReturn:
        fallback = threading.Timer(10, os._exit, [FAULT])  # a pipe that nobody reads must not block the exit
        fallback.daemon = True
        fallback.start()
        log.log(level, line)
        self._write_if_possible(f"{ENDED}{line}")
        os._exit(FAULT)

    def _write_if_possible(self, doing: str) -> None:
        with contextlib.suppress(OSError):  # a full disk is reported by the code that cannot continue
            self._write(doing)

    def _write(self, doing: str) -> None:
        self._beats += 1
        note = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "step": self.progress.step,
            "doing": doing,
            "time": round(time.time(), 1),
            "skipped_steps": self.progress.skipped_steps,
            "begun": self.progress.begun,
            "ticks": self.progress.ticks,
            "beat": self._beats,
            "attempt": self.attempt,
        }
        path = RunFile.PROGRESS.of(self.run, self.rank)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(note), encoding="utf-8")
        temporary.replace(path)


def slowest_beat(world: int, limit: float) -> float:
    """Seconds between two writes of the file of a process other than the first, in a run of `world` processes.

    Two readings, which are `LOOK_SECONDS` or a quarter of `limit` apart, always have several writes between them.
    """
    return min(max(BEAT_SECONDS, world / WRITES_A_SECOND), LOOK_SECONDS / 4, limit / 20)


def moving(first: dict[int, Note], second: dict[int, Note]) -> bool:
    """Whether any process has worked between two readings; if so, the others wait for it."""
    return any(
        (note["begun"], note["ticks"]) != (second[rank]["begun"], second[rank]["ticks"])
        for rank, note in first.items()
        if rank in second
    )


def judge(first: dict[int, Note], second: dict[int, Note], rank: int, world: int) -> tuple[int, str]:
    """The rank that reports why a run does not move, and the line to report, from two readings of the notes.

    The rank is -1 if a process ended with a fault of its own, which it has reported.
    """
    # Sort the processes: ended by a fault, gone, silent between the readings, living.
    ended = [other for other, note in second.items() if note["doing"].startswith(ENDED)]
    if ended:
        return -1, f"process {ended[0]} of {world} has ended"
    gone = [other for other, note in second.items() if has_ended(note)]
    silent = [
        other
        for other in range(world)
        if other not in (rank, *gone)
        and (other not in second or first.get(other, {}).get("beat") == second[other]["beat"])
    ]
    living = {other: note for other, note in second.items() if other not in (*silent, *gone)}
    lost = [other for other, note in living.items() if note["doing"] == LOST]
    # The lowest living rank reports the first cause that applies.
    reporter = min(lost or [*living, rank])
    if silent:
        note = second.get(silent[0])
        since = f"since step {note['step']}" if note else "at all"
        return reporter, f"{_names(silent, second, world)} given no sign of life {since}"
    if lost:
        return reporter, f"{_names(lost, living, world)} {LOST}"
    fewest = min(note["begun"] for note in living.values())
    behind = [other for other, note in living.items() if note["begun"] == fewest]
    note = living[behind[0]]
    if len(behind) < len(living):
        return (
            reporter,
            f"{_names(behind, living, world)} kept the others waiting ({note['doing']}, step {note['step']})",
        )
    return reporter, f"none of {world} processes has moved for long ({note['doing']}, step {note['step']})"


def _names(ranks: list[int], notes: dict[int, Note], world: int) -> str:
    """`process 3 of 4 (host node07, pid 123) has`, or `... and 7 more (4, 5, ...) have`."""
    note = notes.get(ranks[0])
    first = f"process {ranks[0]} of {world}" + (f" (host {note['host']}, pid {note['pid']})" if note else "")
    more = ", ".join(str(rank) for rank in ranks[1:])
    return f"{first} and {len(ranks) - 1} more ({more}) have" if more else f"{first} has"


def read_progress(run: Path, attempt: int | None = None) -> dict[int, Note]:
    """The last notes of a run's processes, by rank; with `attempt`, only those of that start of the run."""
    notes: dict[int, Note] = {}
    for path in sorted(RunFile.PROGRESS.of(run).parent.glob("rank-*.json")):
        note = read_json(path)
        if _is_note(note) and attempt in (None, note["attempt"]):
            notes[note["rank"]] = note
    return notes


def _is_note(values: Any) -> bool:
    """Whether the values are a note of `Watchdog`; a full disk may have cut it short."""
    kinds = {"rank": int, "step": int, "doing": str, "time": float, "attempt": int}
    return isinstance(values, dict) and all(isinstance(values.get(name), kind) for name, kind in kinds.items())


def has_ended(note: Note) -> bool:
    return note["doing"] in (DONE, ASKED_TO_STOP) or note["doing"].startswith(ENDED)


def clear_progress(run: Path) -> None:
    """Delete the notes of earlier starts, which may have had more processes."""
    for path in RunFile.PROGRESS.of(run).parent.glob("rank-*"):
        path.unlink(missing_ok=True)
