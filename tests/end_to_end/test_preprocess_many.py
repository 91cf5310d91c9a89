"""One corpus made by many: shares of its stages in any order, at once, on file systems with locks and without."""

import errno
import fcntl
import logging
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution import build, work_plan
from reread.preprocessing.execution.executors.base import Share
from reread.preprocessing.text import dedup
from tests.raw_text import EVERY_STAGE, STAGES, contents, make, start, values, wait_for

NO_LOCKS = "import fcntl; fcntl.flock = lambda file, how: None\n"
"""A shared file system mounted without locks over machines: they are granted to everybody."""


@pytest.fixture(autouse=True)
def vocabulary_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would be most of the time of a share of this little text."""
    check, checked = build.check_inputs, dict[str, work_plan.Inputs]()

    def check_once(settings: PreprocessSettings) -> work_plan.Inputs:
        key = settings.model_dump_json(exclude=work_plan.RUN_SETTINGS)
        if key not in checked:
            checked[key] = check(settings)
        return checked[key]

    monkeypatch.setattr(build, "check_inputs", check_once)


def settings_of(raw: Path, output: Path, **changes: Any) -> PreprocessSettings:
    return PreprocessSettings.parse(values(raw, output, **{**EVERY_STAGE, **changes}), "test")


def share(raw: Path, output: Path, stage: str, number: int, of: int, **changes: Any) -> None:
    build.build_share(settings_of(raw, output, **changes), stage, Share(number, of))


def missing(raw: Path, output: Path) -> list[str]:
    return [stage.name for stage in build.missing_stages(settings_of(raw, output))]


def test_shares_in_any_order_make_the_bytes_of_one_machine(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled, some twice, some of another division, with several ranges of keys; `build` only merges."""
    monkeypatch.setattr(dedup, "KEYS_PER_RANGE", 18)
    monkeypatch.setattr(dedup, "RANGES_PER_TASK", 3)
    output, generator = tmp_path / "corpus", random.Random(1)
    for stage in STAGES:
        shares = [(number, 3) for number in range(3)] + [(1, 2), (4, 50)]
        for number, of in generator.sample(shares, len(shares)):
            share(raw, output, stage, number, of)
    made = {path: path.stat().st_mtime_ns for path in output.glob("*.tar")}
    make(raw, output, **EVERY_STAGE)
    assert {path: path.stat().st_mtime_ns for path in output.glob("*.tar")} == made
    assert contents(output) == reference


def test_shares_at_once_in_processes_of_their_own(raw: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    """Each may be the first to plan; here two of them are also the same share."""
    output = tmp_path / "corpus"
    for stage in STAGES:
        if stage not in ("read", "encode"):
            share(raw, output, stage, 0, 1)
            continue
        processes = [start(raw, output, stage, f"{number}/2", **EVERY_STAGE) for number in (0, 1, 1)]
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


def test_of_plans_made_at_once_the_first_stays(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one share writes its plan, another one plans, works and ends."""
    output, write = tmp_path / "corpus", work_plan._write_work_plan

    def write_slowly(settings: PreprocessSettings, inputs: work_plan.Inputs, folder: Path) -> None:
        write(settings, inputs, folder)
        monkeypatch.setattr(work_plan, "_write_work_plan", write)
        share(raw, output, "read", 0, 2, workers=2)

    monkeypatch.setattr(work_plan, "_write_work_plan", write_slowly)
    share(raw, output, "read", 1, 2)
    assert [path.name for path in output.iterdir() if path.name.startswith(".work")] == [".work"]
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


def test_a_stage_refuses_to_begin_before_those_it_needs(raw: Path, tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    with pytest.raises(UserError, match=r"`encode` needs all tasks of `read`, but 0, 1, 2, 3, 4 and 3 more of 8 "):
        share(raw, output, "encode", 0, 1)
    share(raw, output, "read", 0, 2)
    with pytest.raises(UserError, match=r"`duplicates` needs all tasks of `read`, but 1, 3, 5, 7 of 8 "):
        share(raw, output, "duplicates", 0, 1)
    share(raw, output, "read", 1, 2)
    with pytest.raises(UserError, match=r"`paragraphs` needs all tasks of `duplicates`, but 0 of 1 "):
        share(raw, output, "paragraphs", 0, 1)
    with pytest.raises(UserError, match=r"--stage: `vocabulary` is not a stage .* are read, duplicates, .*, encode$"):
        share(raw, output, "vocabulary", 0, 1)


def test_what_is_missing_is_told_stage_by_stage(raw: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    assert missing(raw, output) == STAGES
    for number, stage in enumerate(STAGES):
        share(raw, output, stage, 0, 2)
        assert missing(raw, output)[0] == stage or "duplicate" in stage or stage == "clusters"  # these have one task
        share(raw, output, stage, 1, 2)
        assert missing(raw, output) == (STAGES[number + 1 :] or ["encode"])
    make(raw, output, **EVERY_STAGE)
    assert missing(raw, output) == []
    (output / "train-00001.tar").unlink()
    with pytest.raises(
        UserError, match=r"a shard is missing or truncated, .*; run `reread preprocess` without --stage"
    ):
        share(raw, output, "encode", 0, 1)
    assert missing(raw, output) == STAGES
    for stage in STAGES:
        share(raw, output, stage, 0, 1)
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


def test_a_share_of_other_settings_is_refused(raw: Path, tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    share(raw, output, "read", 0, 2)
    with pytest.raises(UserError, match=r"begun with other input or settings: validation_share was 0\.2, is 0\.1"):
        share(raw, output, "read", 1, 2, validation_share=0.1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        share(raw, tmp_path / "mine", "read", 0, 2)


def test_what_another_version_of_the_program_began_is_begun_again(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "corpus"
    share(raw, output, "read", 0, 1)
    path = output / ".work" / "plan.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace(f'"version": {work_plan.VERSION}', '"version": 0'), encoding="utf-8"
    )
    with pytest.raises(UserError, match="begun by another version of reread"):
        share(raw, output, "read", 0, 1)
    with caplog.at_level(logging.INFO, "reread"):
        make(raw, output, **EVERY_STAGE)
    assert "beginning again" in caplog.text and "done already" not in caplog.text
    assert contents(output) == reference


def test_how_the_work_is_done_is_no_part_of_the_corpus(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(raw, tmp_path / "corpus", **EVERY_STAGE)
    with caplog.at_level(logging.INFO, "reread"):
        make(raw, tmp_path / "corpus", **EVERY_STAGE, executor="ray", workers=3)
    assert "nothing to do" in caplog.text


def test_each_share_tells_in_a_line_what_it_did(raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "reread"):
        share(raw, tmp_path / "corpus", "read", 1, 4)
        share(raw, tmp_path / "corpus", "read", 1, 4)
        share(raw, tmp_path / "corpus", "read", 20, 30)
    lines = [message for message in caplog.messages if message.startswith("reading and cleaning, share")]
    assert lines[0].startswith("reading and cleaning, share 1/4: 2 parts, 0.0 MB in ")
    assert lines[1:] == [
        "reading and cleaning, share 1/4: 2 of 2 parts are done already",
        "reading and cleaning, share 20/30: this share has no parts",
    ]


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "a/b", "0/0", "1/2/3", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--share: .* write I/N"):
        Share.parse(text)


def stopped(process: subprocess.Popen[str], output: Path) -> subprocess.Popen[str]:
    """The process, as it works on its first stage and does not go on."""
    wait_for((output / ".work" / "read").exists, process)
    process.send_signal(signal.SIGSTOP)
    return process


def test_shares_work_side_by_side_but_not_beside_a_whole_command(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "corpus"
    process = stopped(start(raw, output, "read", "0/2", **EVERY_STAGE), output)
    share(raw, output, "read", 1, 2)
    for alone in (make, lambda raw, output, **_: missing(raw, output)):
        with pytest.raises(UserError, match="another `reread preprocess` is writing it"):
            alone(raw, output, **EVERY_STAGE)
    process.kill()
    process.wait()
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference
    process = stopped(start(raw, tmp_path / "whole", **EVERY_STAGE), tmp_path / "whole")
    with pytest.raises(UserError, match="another `reread preprocess` is writing it") as refused:
        share(raw, tmp_path / "whole", "read", 0, 2)
    assert refused.value.status == 1  # for Slurm to start it again, as it may only be `missing_stages` that looks
    process.kill()
    process.communicate()


def test_a_lock_left_behind_by_a_machine_that_died_blocks_nobody(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Nor does what it had begun: its plan, half of it, and a task, whose process may still be running there."""
    output = tmp_path / "corpus"
    output.mkdir()
    (output / ".lock").write_text("n17")
    (output / ".work.n17.4711.00c0ffee").mkdir()
    share(raw, output, "read", 0, 1)
    attempt = output / ".work" / "duplicates" / "00000.n17.4711.00c0ffee"
    attempt.mkdir(parents=True)
    (attempt / "00000.npz").write_bytes(b"half")
    share(raw, output, "duplicates", 0, 1)
    assert (attempt / "00000.npz").exists()
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_that_has_no_locks_is_told(
    raw: Path, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: Any, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    share(raw, tmp_path / "corpus", "read", 0, 1)
    assert f"no locks on this file system ({os.strerror(code)})" in caplog.text


def test_where_locks_do_nothing_two_whole_commands_leave_the_same_bytes(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """The second stands still half-way while the first one finishes, takes its work folder away and ends."""
    output = tmp_path / "corpus"
    second = stopped(start(raw, output, before=NO_LOCKS, **EVERY_STAGE), output)
    first = start(raw, output, before=NO_LOCKS, **EVERY_STAGE)
    _, errors = first.communicate()
    assert first.returncode == 0, errors
    second.send_signal(signal.SIGCONT)
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert "nothing to do" in errors
    assert contents(output) == reference


def test_two_attempts_at_one_task_never_meet(raw: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    """One machine is thought dead and its share done elsewhere; then it goes on."""
    output = tmp_path / "corpus"
    wait = (
        "import os, signal\nfrom reread.preprocessing.execution.task_file import TaskWriter\nsave = TaskWriter.save\n"
        "TaskWriter.save = lambda *given: (os.kill(os.getpid(), signal.SIGSTOP), save(*given))\n"
    )
    slow = start(raw, output, "read", "0/1", before=wait, **EVERY_STAGE)
    wait_for(lambda: any((output / ".work" / "read").glob("00000.*/*.npz")), slow)
    share(raw, output, "read", 0, 1)
    before = {path: path.read_bytes() for path in (output / ".work" / "read").glob("*.*") if path.is_file()}
    while slow.poll() is None:
        slow.send_signal(signal.SIGCONT)
    assert slow.returncode == 0, slow.communicate()
    after = {path: path.read_bytes() for path in (output / ".work" / "read").iterdir()}
    assert after == before
    make(raw, output, **EVERY_STAGE)
    assert contents(output) == reference


def test_another_folder_of_the_same_plan_makes_the_same_bytes(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Machines may see the corpus under different paths."""
    here, there = tmp_path / "here", tmp_path / "there"
    share(raw, here, "read", 0, 2)
    shutil.move(here, there)
    share(raw, there, "read", 1, 2)
    make(raw, there, **EVERY_STAGE)
    assert contents(there) == reference
