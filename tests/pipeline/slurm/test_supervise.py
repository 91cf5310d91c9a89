"""A job is requeued whatever the state of the files that the supervisor reads."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.slurm.test_slurm_scripts import supervisor

JOB = "4711"
FAULT = {"job": JOB, "status": 1, "asked": False, "step": 120, "checkpoint": None}


def outcome(run: Path, patch: pytest.MonkeyPatch, status: int = 1, asked: bool = False) -> list[str]:
    """The jobs that are requeued when a command ends so."""
    module, requeued = supervisor(), []
    patch.setattr(module, "run_to_end", lambda command, job: (status, asked, asked))
    patch.setattr(module, "requeue", lambda job: requeued.append(job) or True)
    patch.setenv("SLURM_JOB_ID", JOB)
    patch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    assert module.main(run, ["srun"]) == status
    return requeued


def last_line(run: Path) -> Any:
    return json.loads((run / "history.jsonl").read_bytes().splitlines()[-1])


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"{}",
        b"[]",
        b"7",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"job": "4711"}',
        b'{"job": "4711", "status": null, "asked": 1, "step": "x", "checkpoint": []}',
        b'{"job": "4711", "sta',  # cut short by the death of a node: no line end either
    ],
)
def test_a_line_that_is_no_attempt_keeps_no_job_from_its_requeue(tmp_path, monkeypatch, line) -> None:
    fault = json.dumps(FAULT).encode()
    (tmp_path / "history.jsonl").write_bytes(fault + b"\n" + line)
    assert outcome(tmp_path, monkeypatch) == [JOB]
    assert last_line(tmp_path)["status"] == 1
    assert outcome(tmp_path, monkeypatch) == []  # and the faults are counted: this is the third


@pytest.mark.parametrize("text", [b"null", b"[]", b"{}", b'{"step": null}', b'{"step": "7"}', b"\xff", b"[" * 100_000])
def test_progress_that_cannot_be_read_keeps_no_job_from_its_requeue(tmp_path, monkeypatch, text) -> None:
    (tmp_path / "progress").mkdir()
    (tmp_path / "progress" / "rank-00000.json").write_bytes(text)
    (tmp_path / "progress" / "rank-00001.json").write_text('{"step": 7}')
    assert outcome(tmp_path, monkeypatch) == [JOB]
    assert last_line(tmp_path)["step"] == 7


@pytest.mark.parametrize(("status", "asked", "requeued"), [(75, True, [JOB]), (1, False, [])])
def test_where_attempts_cannot_be_written_down_only_a_job_that_was_stopped_is_requeued(
    tmp_path, monkeypatch, capsys, status, asked, requeued
) -> None:
    """Else a fault that comes every time would come for ever."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    assert outcome(tmp_path, monkeypatch, status, asked) == requeued
    assert "history.jsonl: No space left on device; this attempt is not counted" in capsys.readouterr().out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FAULT, "x"]), inner, max_size=6),
    max_leaves=8,
)


@pytest.mark.slow
@given(lines=st.lists(st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()), max_size=6))
def test_whatever_stands_in_the_history_is_passed_over(tmp_path_factory, lines) -> None:
    run = tmp_path_factory.mktemp("run")
    (run / "history.jsonl").write_bytes(b"\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        assert outcome(run, patch) == [JOB]
    assert last_line(run)["job"] == JOB


def test_the_faults_that_an_earlier_version_recorded_are_counted(tmp_path, monkeypatch) -> None:
    line = json.dumps(FAULT) + "\n"
    (tmp_path / "attempts.jsonl").write_text(line * 2)
    assert outcome(tmp_path, monkeypatch) == []
    assert last_line(tmp_path)["event"] == "job" and (tmp_path / "attempts.jsonl").read_text() == line * 2


def test_a_training_whose_time_limit_comes_before_its_first_step_is_not_requeued_for_ever(
    tmp_path, monkeypatch, capsys
) -> None:
    module, requeued = supervisor(), list[str]()
    saves = iter([26, None, None, None, 27])  # the first and the last attempt save a checkpoint

    def warned(command: list[str], job: str) -> tuple[int, bool, bool]:
        if step := next(saves):
            (tmp_path / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
        return 75, True, True

    monkeypatch.setattr(module, "run_to_end", warned)
    monkeypatch.setattr(module, "requeue", lambda job: requeued.append(job) or True)
    monkeypatch.setenv("SLURM_JOB_ID", JOB)
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    counts = []
    for _ in range(5):
        module.main(tmp_path, ["srun", "reread", "train", "nezha-base"])
        counts.append(len(requeued))
    assert counts == [1, 2, 3, 3, 4]
    assert "no attempt of 3 did a step before its time limit was near; raise slurm.hours" in capsys.readouterr().out


def test_preprocessing_is_requeued_after_each_time_limit_since_its_finished_parts_stay(tmp_path, monkeypatch) -> None:
    for _ in range(5):
        assert outcome(tmp_path, monkeypatch, 75, asked=True) == [JOB]
