"""What commands that fail or are killed leave behind: no lock, no unfinished file, no semaphore for good."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reread.preprocessing.execution.executors.semaphores import name_semaphores
from reread.preprocessing.execution.work_plan import locked
from reread.preprocessing.files import write_atomically
from tests.conftest import ROOT

MAKES_ONE = """
import multiprocessing, sys
from reread.preprocessing.execution.executors.semaphores import name_semaphores
name_semaphores()
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores lie elsewhere")
def test_semaphores_of_a_killed_command_are_removed_by_the_next_one_and_those_of_a_living_one_are_not() -> None:
    command = [sys.executable, "-c", MAKES_ONE]
    started = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for _ in range(2)
    ]
    places = []
    for one in started:
        assert one.stdout is not None
        places.append(Path(f"/dev/shm/sem.{one.stdout.readline().strip().removeprefix('/')}"))
    killed, living = started
    os.killpg(killed.pid, signal.SIGKILL)  # with the process that would remove it
    killed.communicate()
    assert all(place.exists() for place in places)
    name_semaphores()
    try:
        assert [place.exists() for place in places] == [False, True]
    finally:
        living.communicate()
    assert not places[1].exists()


def test_the_last_one_that_holds_a_lock_removes_it(tmp_path: Path) -> None:
    """Also when its work fails; and never one that others share or that was made anew."""
    path = tmp_path / ".lock"
    with pytest.raises(ValueError), locked(path):
        raise ValueError
    assert not path.exists()
    with locked(path, shared=True):
        with locked(path, shared=True):
            assert path.exists()
        assert path.exists()
        with pytest.raises(BlockingIOError), locked(path):
            pass
    assert not path.exists()
    with locked(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a report on a full disk, or in the place of a folder."""
    (tmp_path / "report.html").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "report.html", b"a page")
    (tmp_path / "kept").write_bytes(b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "kept", b"after")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "report.html"]
    assert (tmp_path / "kept").read_bytes() == b"before"
