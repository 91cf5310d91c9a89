"""`reread preprocess` interrupted: killed processes, full disks and failing writes, on one machine and on many."""

import errno
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import missing_stages
from reread.preprocessing.execution.stages import STAGES as TABLE
from tests.raw_text import EVERY_STAGE, STAGES, contents, kill, make, needs_proc, start, values, wait_for, workers_of

STOP_IN_PART_4 = """
import signal
from reread.preprocessing.execution.task_file import TaskWriter
save = TaskWriter.save
TaskWriter.save = lambda self, *array: signal.pause() if self.folder.name[:5] == "00004" else save(self, *array)
"""
KILLED_AT_A_REMOVAL = """
import os, signal
from reread.preprocessing.execution import tasks
move = tasks.move
def killed(path, target):
    if target.name != "{name}":
        return move(path, target)
    if "{when}" == "after":
        move(path, target)
    os.kill(os.getpid(), signal.SIGKILL)
tasks.move = killed
"""


def done(output: Path, *stages: str) -> dict[Path, int]:
    """The files of finished tasks with their times, which change if a task is done twice."""
    folders = [output / ".work" / stage for stage in stages or STAGES]
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.glob("*.npz")}


def test_killed_at_any_stage_and_started_again_the_bytes_are_the_same(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "corpus"
    for stage in ("read", "signatures", "near-duplicates", "clusters", "duplicate-paragraphs", "encode"):
        process = start(raw, output, **EVERY_STAGE, workers=2)
        wait_for(lambda stage=stage: any((output / ".work" / stage).glob("*")), process)  # type: ignore[misc]
        process.kill()  # the parent alone: its workers must neither outlive it nor disturb the next run
        process.wait()
        assert not (output / "manifest.json").exists(), f"it was over before it was killed in {stage}"
    make(raw, output, **EVERY_STAGE, workers=2)
    assert contents(output) == reference


def test_a_relaunch_does_only_what_is_missing(raw: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    process = start(raw, output, **EVERY_STAGE)
    wait_for(lambda: bool(done(output)), process)
    process.kill()
    process.wait()
    before = done(output)
    process = start(raw, output, **EVERY_STAGE)
    wait_for((output / ".work" / "encode").exists, process)
    assert before.items() <= done(output).items()
    _, errors = process.communicate()
    assert process.returncode == 0
    assert f"reading and cleaning: {len(before)} of" in errors
    assert contents(output) == reference


def test_a_share_that_was_killed_does_only_what_is_missing(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """kill -9 half-way through a task: nothing of it is left, and everything of those before."""
    output = tmp_path / "corpus"
    process = start(raw, output, "read", "0/2", before=STOP_IN_PART_4, **EVERY_STAGE)
    wait_for(lambda: any((output / ".work" / "read").glob("00004.*/*.npz")), process)
    process.kill()
    process.wait()
    before = done(output, "read")
    assert [path.name for path in sorted(before)] == ["00000.npz", "00002.npz"]
    process = start(raw, output, "read", "0/2", **EVERY_STAGE)
    _, errors = process.communicate()
    assert process.returncode == 0
    assert before.items() <= done(output, "read").items()
    assert not [path for path in (output / ".work" / "read").iterdir() if path.is_dir()]
    assert re.search(r"share 0/2: 2 of \d+ parts are done already", errors)
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


def test_killed_while_files_that_nobody_reads_any_more_are_removed(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Those of a stage are half removed, those of a part not yet, those of another one all but for their folder."""
    output = tmp_path / "corpus"
    for name, when in (("signatures", "after"), ("read", "before"), ("read", "after")):
        process = start(raw, output, before=KILLED_AT_A_REMOVAL.format(name=name, when=when), **EVERY_STAGE)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    left = [path for path in output.glob(".work/*/*.*.*.*/*") if path.name in STAGES]
    assert left
    process = start(raw, output, **EVERY_STAGE)
    wait_for(lambda: len(done(output, "encode")) > 2, process)
    assert not [path for path in left if path.exists()]
    _, errors = process.communicate()
    assert process.returncode == 0
    assert "hashing n-grams: all parts are done already" in errors
    assert "reading and cleaning: 8 of 8 parts are done already" in errors
    assert "encoding: 2 of 8 parts are done already" in errors
    assert contents(output) == reference


@needs_proc
def test_a_killed_worker_is_reported_and_its_part_done_again(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    process = start(raw, tmp_path / "corpus", **EVERY_STAGE, workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    wait_for(lambda: bool(workers_of(process.pid)), process)
    kill(workers_of(process.pid)[0])
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "a worker process was killed" in errors
    assert contents(tmp_path / "corpus") == reference


@needs_proc
def test_workers_killed_again_and_again_end_the_run_with_one_line(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    process = start(raw, tmp_path / "corpus", **EVERY_STAGE, workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    while process.poll() is None:
        for pid in workers_of(process.pid):
            kill(pid)
        time.sleep(0.01)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "worker processes are being killed" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    make(raw, tmp_path / "corpus", **EVERY_STAGE)
    assert contents(tmp_path / "corpus") == reference


@needs_proc
def test_workers_end_when_their_parent_is_killed(raw: Path, tmp_path: Path) -> None:
    process = start(raw, tmp_path / "corpus", workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    orphans = workers_of(process.pid)
    assert orphans
    process.kill()
    process.wait()
    while any(alive(pid) for pid in orphans):  # if they do not end, the test's time limit ends it
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def limit_file_size(raw: Path, output: Path, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        make(raw, output, **EVERY_STAGE)
    except UserError as error:
        sys.exit(str(error))


@pytest.mark.parametrize("size", [400, 4_000])
def test_a_write_that_fails_leaves_nothing_that_looks_whole(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, size: int
) -> None:
    output = tmp_path / "corpus"
    process = multiprocessing.get_context("spawn").Process(target=limit_file_size, args=(raw, output, size))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert not (output / "manifest.json").exists()
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk, whose size `resize` sets."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def resize(disk: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


@pytest.mark.parametrize(("kilobytes", "workers"), [(16, 1), (150, 2), (220, 1)])
def test_a_full_disk_is_one_line_and_the_run_continues_with_more_room(
    raw: Path, reference: dict[str, bytes], small_disk: Path, kilobytes: int, workers: int
) -> None:
    """Full at the work plan, in a stage, or near the end: finished work is kept, unfinished work takes no room."""
    output = small_disk / "corpus"
    settings: dict[str, Any] = EVERY_STAGE | {"workers": workers}
    resize(small_disk, kilobytes)
    with pytest.raises(
        UserError, match=rf"^{output}: {os.strerror(errno.ENOSPC)}; make room.* bytes are free"
    ) as raised:
        make(raw, output, **settings)
    assert "\n" not in str(raised.value)
    assert not (output / "manifest.json").exists()
    before = done(output)
    assert bool(before) == (kilobytes > 16)
    assert not [path for path in output.glob(".work/*/*.*.*.*") if path.is_dir()]
    resize(small_disk, 20_000)
    process = start(raw, output, **settings)
    _, errors = process.communicate()
    assert process.returncode == 0
    begun = {path.parent.name for path in before}
    for stage in begun:
        finished = {path.name for path in before if path.parent.name in (stage, TABLE[stage].last_reader)}
        assert re.search(rf"^{TABLE[stage].title}: {len(finished)} of \d+ parts are done already", errors, re.MULTILINE)
    assert "signatures" in begun or not before or "hashing n-grams: all parts are done already" in errors
    assert contents(output) == reference


def test_a_full_disk_of_one_share_spares_the_others(raw: Path, reference: dict[str, bytes], small_disk: Path) -> None:
    output = small_disk / "corpus"
    resize(small_disk, 20_000)
    missing_stages(PreprocessSettings.parse(values(raw, output, **EVERY_STAGE), "test"))  # writes the work plan
    resize(small_disk, 28)  # three parts more, of which each share has four
    processes = [start(raw, output, "read", f"{number}/2", **EVERY_STAGE) for number in (0, 1)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 1
        assert f"{output}: No space left on device" in errors.splitlines()[-1]
    before = done(output, "read")
    assert before
    resize(small_disk, 20_000)
    for number in (0, 1):
        process = start(raw, output, "read", f"{number}/2", **EVERY_STAGE)
        process.communicate()
        assert process.returncode == 0
    assert before.items() <= done(output, "read").items()
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference
