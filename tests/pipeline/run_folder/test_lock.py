"""One job in a run folder, also where locks do not reach another machine or outlive it."""

import fcntl
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from reread.pipeline.run_folder.lock import only_job
from reread.preprocessing.errors import UserError
from reread.training.run.watchdog import Progress, Watchdog


@contextmanager
def job(run: Path, host: str = "node01", look: float = 2.0) -> Iterator[None]:
    with only_job(run, host, look=look, silence=look):
        yield


@contextmanager
def without_its_lock(run: Path) -> Iterator[None]:
    """A job of node07 whose lock other machines do not see: it holds that of a file that is gone."""
    with job(run, "node07"), Watchdog(run, Progress(), 0, 1, limit=2, attempt=1):
        text = (run / ".lock").read_text()
        (run / ".lock").unlink()
        (run / ".lock").write_text(text)
        yield


def test_a_second_job_is_refused_and_told_who_has_the_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    named = r"\(host node01, pid \d+, Slurm job 4711\); stop it"
    with job(tmp_path), pytest.raises(UserError, match=named) as refused, job(tmp_path):
        pass
    assert "\n" not in str(refused.value)


def test_the_folder_is_free_again_when_the_job_has_ended(tmp_path) -> None:
    for host in ("node01", "node02"):
        with job(tmp_path, host):
            assert json.loads((tmp_path / ".lock").read_text())["host"] == host


def test_a_lock_file_that_is_damaged_keeps_no_job_from_its_start(tmp_path) -> None:
    (tmp_path / ".lock").write_bytes(b"\xff\xfe\x00")
    with job(tmp_path), pytest.raises(UserError, match="host node01"), job(tmp_path):
        pass


def test_a_job_on_another_machine_is_seen_by_what_it_writes(tmp_path) -> None:
    with without_its_lock(tmp_path), pytest.raises(UserError, match="host node07"), job(tmp_path):
        pass


def test_a_job_that_died_on_another_machine_is_not_waited_for_long(tmp_path) -> None:
    with without_its_lock(tmp_path):
        progress = tmp_path / "progress" / "rank-00000.json"
        last = progress.read_text()
    progress.write_text(last.replace('"done"', '"computing"'))
    with job(tmp_path, look=0.2):
        assert json.loads((tmp_path / ".lock").read_text())["host"] == "node01"


def test_the_lock_of_a_machine_that_died_is_taken_over(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, logger="reread")
    first, second = job(tmp_path, "node07"), job(tmp_path, look=0.2)
    with first, second, pytest.raises(UserError, match="host node01"), job(tmp_path):
        pass
    (line,) = caplog.messages
    assert "held by host node07, pid" in line and "this job takes over" in line


def test_the_lock_of_a_living_machine_is_not(tmp_path) -> None:
    beats = Watchdog(tmp_path, Progress(), 0, 1, limit=2, attempt=1)
    with job(tmp_path, "node07"), beats, pytest.raises(UserError, match="host node07"), job(tmp_path):
        pass


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_hosts_without_locks_that_start_at_once_one_goes_on(tmp_path, monkeypatch, begun: bool) -> None:
    """In a new folder, and in one whose job died."""

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    if begun:
        (tmp_path / "progress").mkdir()
        note = {"rank": 0, "doing": "computing", "attempt": 1}
        (tmp_path / "progress" / "rank-00000.json").write_text(json.dumps(note))
    monkeypatch.setattr(fcntl, "flock", refuse)
    both, done = Barrier(2), Barrier(2)

    def start(host: str) -> str:
        both.wait()
        try:
            with job(tmp_path, host, look=0.4):
                done.wait()
                return ""
        except UserError as refused:
            done.wait()
            return str(refused)

    with ThreadPoolExecutor(2) as threads:
        lines = dict(zip(hosts := ("node01", "node02"), threads.map(start, hosts), strict=True))
    (winner,) = [host for host, line in lines.items() if not line]
    (refusal,) = filter(None, lines.values())
    assert f"another job is training in this folder (host {winner}, pid" in refusal
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [".lock"]


def test_without_locks_the_progress_files_decide(tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, logger="reread")

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with job(tmp_path):
        beats = Watchdog(tmp_path, Progress(), 0, 1, limit=2, attempt=1)
        with beats, pytest.raises(UserError, match="host node01"), job(tmp_path):
            pass
        with job(tmp_path):
            pass
    assert "this file system has no locks (Function not implemented)" in caplog.messages[0]
