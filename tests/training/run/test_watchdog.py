"""The process that is blamed when a run does not move, from what its processes have written."""

import json
import subprocess
import sys
from typing import Any

import pytest

from reread.training.config import STOPPED
from reread.training.run.files import RunFile
from reread.training.run.watchdog import (
    LOOK_SECONDS,
    LOST,
    Note,
    Progress,
    Watchdog,
    clear_progress,
    judge,
    moving,
    read_progress,
    slowest_beat,
)
from tests.conftest import ROOT

READ = ("rank", "step", "doing", "time", "attempt")


def note(rank: int, beat: int, **changes: Any) -> Note:
    values = {"rank": rank, "host": f"n{rank // 2}", "pid": 100 + rank, "step": 41, "doing": "computing", "begun": 9}
    return {**values, "ticks": 0, "beat": beat, **changes}


def looks(*silent: int, world: int = 4, **changes: Any) -> tuple[dict[int, Note], dict[int, Note]]:
    """Two readings between which all but `silent` have written; `changes` are notes' by `r` and rank."""
    first, second = (
        {
            rank: note(rank, beat + rank * (rank not in silent) * beat, **changes.get(f"r{rank}", {}))
            for rank in range(world)
        }
        for beat in (3, 8)
    )
    return first, {rank: first[rank] if rank in silent else second[rank] for rank in range(world)}


def test_others_wait_with_reason_for_a_process_that_reads_a_large_checkpoint() -> None:
    first, second = looks(1)
    assert not moving(first, second)
    second[2] = {**second[2], "ticks": 17}
    assert moving(first, second)


@pytest.mark.parametrize("rank", [0, 2])
def test_who_wrote_nothing_between_two_looks_is_named_by_the_lowest_that_lives(rank: int) -> None:
    line = "process 3 of 4 (host n1, pid 103) has given no sign of life since step 41"
    assert judge(*looks(3), rank, 4) == (0, line)


def test_rank_0_itself_may_be_the_one() -> None:
    speaker, line = judge(*looks(0), 3, 4)
    assert speaker == 1 and line.startswith("process 0 of 4 (host n0, pid 100)")


def test_a_whole_node_is_named_by_its_first_process() -> None:
    _, line = judge(*looks(2, 3), 0, 4)
    assert line == "process 2 of 4 (host n1, pid 102) and 1 more (3) have given no sign of life since step 41"


def test_a_process_that_never_wrote_is_named() -> None:
    first, second = looks()
    del first[1], second[1]
    assert judge(first, second, 0, 4) == (0, "process 1 of 4 has given no sign of life at all")


def test_clocks_of_machines_do_not_matter() -> None:
    """Only changes count, so it does not matter that a machine's clock is an hour ahead or behind."""
    first, second = looks(3, r1={"time": 3600.0}, r2={"time": -3600.0}, r3={"time": 9e9})
    assert judge(first, second, 0, 4)[1].startswith("process 3 of 4")


def test_who_is_alive_but_behind_is_named_with_what_it_does() -> None:
    speaker, line = judge(*looks(r2={"begun": 7, "doing": "reading data"}), 0, 4)
    assert (speaker, line) == (
        0,
        "process 2 of 4 (host n1, pid 102) has kept the others waiting (reading data, step 41)",
    )


def test_nobody_is_blamed_where_all_hang_in_the_same_place() -> None:
    assert judge(*looks(), 0, 4) == (0, "none of 4 processes has moved for long (computing, step 41)")


def test_a_process_that_reported_its_own_fault_is_not_reported_again() -> None:
    first, second = looks(2, r2={"doing": "ended: UserError: the disk is full"}, r0={"doing": LOST})
    assert judge(first, second, 0, 4)[0] == -1


def test_only_those_that_lost_the_connection_report_it() -> None:
    """The others still wait in a collective and do not look."""
    speaker, line = judge(*looks(3, r1={"doing": LOST}, r2={"doing": LOST}), 2, 4)
    assert speaker == 1 and line.startswith("process 3 of 4")
    assert judge(*looks(r1={"doing": LOST}), 1, 4) == (1, f"process 1 of 4 (host n0, pid 101) has {LOST}")


def test_notes_of_another_start_or_another_world_size_do_not_count(tmp_path) -> None:
    for rank in range(4):
        with Watchdog(tmp_path, Progress(), rank, 4, limit=100, attempt=1):
            pass
    with Watchdog(tmp_path, Progress(), 1, 2, limit=100, attempt=2):
        assert read_progress(tmp_path).keys() == {0, 1, 2, 3}
        assert read_progress(tmp_path, attempt=2).keys() == {1}
        assert (
            judge({}, read_progress(tmp_path, attempt=2), 1, 2)[1] == "process 0 of 2 has given no sign of life at all"
        )
    whole = json.loads(RunFile.PROGRESS.of(tmp_path, 0).read_text())
    for damaged in ("{", "", "{}", "[]", "null", *(json.dumps(whole | {name: []}) for name in READ)):
        RunFile.PROGRESS.of(tmp_path, 0).write_text(damaged)
        assert read_progress(tmp_path).keys() == {1, 2, 3}, damaged
    clear_progress(tmp_path)
    assert read_progress(tmp_path) == {}


@pytest.mark.parametrize(
    ("error", "doing"),
    [(None, "done"), (SystemExit(STOPPED), "stopped"), (OSError("no\nroom"), "ended: OSError: no")],
)
def test_the_last_note_shows_how_a_process_ended(tmp_path, error: BaseException | None, doing: str) -> None:
    progress = Progress()
    try:
        with Watchdog(tmp_path, progress, 0, 1, limit=100, attempt=1):
            progress.begin_step(7)
            if error:
                raise error
    except (OSError, SystemExit):
        pass
    last = read_progress(tmp_path)[0]
    assert (last["step"], last["doing"]) == (7, doing)


class Wakes:
    """In place of the event that ends a watchdog: it wakes so many times, without waiting."""

    def __init__(self, count: int) -> None:
        self.left = count

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("world", "others"), [(8, 120), (128, 120), (1024, 15), (9999, 8)])
def test_a_large_run_writes_no_more_files_a_second_but_process_0_as_many(
    tmp_path, monkeypatch: pytest.MonkeyPatch, world: int, others: int
) -> None:
    """Within 240 s, and the ranks of a large run not all at the same moment."""
    moments: dict[int, list[int]] = {}

    def run(rank: int) -> None:
        watchdog, wakes, moments[rank] = Watchdog(tmp_path, Progress(), rank, world, 1800, 1), Wakes(120), []
        monkeypatch.setattr(watchdog, "_over", wakes)
        monkeypatch.setattr(watchdog, "_write", lambda doing: moments[rank].append(wakes.left))
        watchdog._watch()

    for rank in range(17):
        run(rank)
    counts = {rank: len(written) for rank, written in moments.items()}
    assert counts == {0: 120} | dict.fromkeys(range(1, 17), others)
    at_once = max(sum(left in moments[rank] for rank in range(1, 17)) for left in range(120))
    assert at_once == -(-16 * others // 120)


@pytest.mark.parametrize("limit", [1.0, 60.0, 1800.0, 1e6])
@pytest.mark.parametrize("world", [1, 64, 1024, 100_000])
def test_every_process_writes_between_two_readings(world: int, limit: float) -> None:
    assert 2 * slowest_beat(world, limit) < min(LOOK_SECONDS, limit / 4)


def test_a_process_that_lost_another_says_so_at_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(tmp_path, Progress(), 700, 1024, limit=1800, attempt=1)
    written: list[str] = []
    monkeypatch.setattr(watchdog, "_over", Wakes(2))
    monkeypatch.setattr(watchdog, "_write", written.append)
    watchdog.progress.enter(LOST)
    watchdog._lost.set()
    watchdog._watch()
    assert written == [LOST, LOST]


@pytest.mark.slow
def test_a_single_process_that_hangs_is_ended_and_one_that_moves_is_not(tmp_path) -> None:
    script = """
import sys, time
from pathlib import Path
from reread.training.run.watchdog import Progress, Watchdog
progress = Progress()
with Watchdog(Path(sys.argv[1]), progress, 0, 1, limit=1, attempt=1):
    for _ in range(30):
        time.sleep(0.1)
        progress.tick()
    progress.enter("hanging")
    print("hangs", flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "hangs\n")
    assert done.stderr == "none of 1 processes has moved for long (hanging, step 0); the run stops\n"
    assert json.loads(RunFile.PROGRESS.of(tmp_path, 0).read_text())["doing"].startswith("ended: none of 1 processes")
