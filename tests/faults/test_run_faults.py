"""Faults of a run: nothing is lost but the steps since the last checkpoint, and one line reports what happened."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from reread.preprocessing.corpus import Manifest
from reread.training.run.metrics import read_metrics
from reread.training.run.watchdog import read_progress
from tests.forks import Job
from tests.runs import (
    assert_same_end,
    at_step,
    figures,
    last_checkpoint,
    start,
    start_new_interpreters,
    wait_for_step,
    write_recipe,
)


def continues(folder: Path, expected: Path, *, since: int | None = None) -> str:
    """The same command continues from the checkpoint of step `since` and ends as an undisturbed run."""
    since = last_checkpoint(folder) if since is None else since
    with Job(folder, "train", "tiny.yaml") as job:
        assert job.statuses() == [0, 0], job.output
        line = "starting at step 0" if since is None else f"continuing from the checkpoint of step {since}\n"
        assert line in job.output  # under load a process may be killed before the first checkpoint is whole
    assert figures(folder) == figures(expected)
    assert_same_end(folder, expected)
    return job.output


def complaints(output: str) -> list[str]:
    """The lines that report a fault, without progress and the choices made at the start."""
    starts = ("device:", "precision:", "optimizer:", "gradients:", "no checkpoint", "MFU = ", "starting ", "continuing")
    moves = ("corpus:", "padding:", "train.threads:", "step ", "held out", "done")
    return [line for line in output.splitlines() if line and not line.startswith((*starts, *moves))]


STOPPED_EARLY = "reread: stopped outside of the training steps; the same command continues"
STOPPED_AT = "stopped: checkpoint saved at step {}; the same command continues from there"


@pytest.fixture
def folder(sample_corpus: Path, tmp_path: Path) -> Path:
    write_recipe(tmp_path, sample_corpus)
    return tmp_path


def workers_of(launcher: Job) -> list[psutil.Process]:
    return psutil.Process(launcher.pids[0]).children()


# Processes that die


def test_kill_9_of_one_process_ends_the_job_and_loses_only_its_last_steps(sample_corpus, uninterrupted, folder) -> None:
    with start(folder, sample_corpus) as launcher:
        wait_for_step(folder, 12, launcher)
        workers_of(launcher)[1].kill()
        assert launcher.statuses() == [128 + signal.SIGKILL]
    assert complaints(launcher.output) == ["reread: process 1 of 2 was killed by SIGKILL; the run stops"]
    continues(folder, uninterrupted)


def test_kill_9_of_one_process_is_reported_by_the_others_without_a_launcher(folder, uninterrupted) -> None:
    """As under srun; rank 0 is killed."""
    with Job(folder, "train", "tiny.yaml", "watchdog_minutes=0.15") as job:
        job.wait(lambda: at_step(folder, 7))
        job.send(signal.SIGKILL, 0)
        assert job.statuses() == [-signal.SIGKILL, 1]
    pattern = rf"process 0 of 2 \(host {socket.gethostname()}, pid \d+\) has given no sign of life since step \d+; .*"
    (line,) = complaints(job.output)
    assert re.fullmatch(pattern, line)
    continues(folder, uninterrupted)


def test_kill_9_of_the_launcher_leaves_no_process_and_a_checkpoint(sample_corpus, uninterrupted, folder) -> None:
    with start(folder, sample_corpus) as launcher:
        wait_for_step(folder, 7, launcher)
        workers = workers_of(launcher)
        launcher.send(signal.SIGKILL)
        psutil.wait_procs(workers, timeout=60)
        assert not any(worker.is_running() for worker in workers)
    saved = last_checkpoint(folder)
    assert saved is not None and saved >= 7
    assert complaints(launcher.output) == [STOPPED_AT.format(saved)]
    continues(folder, uninterrupted)


def test_sigterm_checkpoints_at_the_step_boundary_and_says_so(sample_corpus, uninterrupted, folder) -> None:
    with start(folder, sample_corpus) as launcher:
        wait_for_step(folder, 7, launcher)
        launcher.send(signal.SIGTERM)
        assert launcher.statuses() == [75], launcher.output
    saved = last_checkpoint(folder)
    assert saved is not None and saved >= 7
    assert complaints(launcher.output) == [STOPPED_AT.format(saved)]
    assert [line[0] for line in figures(folder)] == list(range(1, saved + 1))
    continues(folder, uninterrupted)


@pytest.mark.long
def test_sigterm_while_the_processes_still_start_ends_with_75(sample_corpus, folder) -> None:
    launcher = start_new_interpreters(folder, sample_corpus)
    assert launcher.stdout is not None
    first = launcher.stdout.readline()
    assert first == "starting 2 processes on this machine\n"
    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=60)
    assert (launcher.returncode, complaints(output)) == (75, [STOPPED_EARLY])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_while_it_waits_for_the_others_a_process_ends_with_75(folder, number) -> None:
    """Rank 1 never starts, and torch's rendezvous lets no Python signal handler run."""
    with Job(folder, "train", "tiny.yaml", started=1) as job:
        job.wait(lambda: listens(job.port))
        job.send(number)
        assert job.statuses() == [75]
    assert complaints(job.output) == [STOPPED_EARLY]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# A process that hangs


def test_a_stopped_process_is_found_and_named_and_none_is_left(sample_corpus, uninterrupted, folder) -> None:
    with start(folder, sample_corpus, "watchdog_minutes=0.15") as launcher:
        wait_for_step(folder, 7, launcher)
        workers = workers_of(launcher)
        workers[1].suspend()
        assert launcher.statuses() == [1]
    (line,) = complaints(launcher.output)
    who = rf"process 1 of 2 \(host {socket.gethostname()}, pid {workers[1].pid}\)"
    assert re.fullmatch(rf"{who} has given no sign of life since step \d+; the run stops", line)
    assert not any(worker.is_running() for worker in workers)
    continues(folder, uninterrupted)


@pytest.mark.long
def test_a_stopped_process_that_wakes_up_later_ends_by_the_fault_and_not_as_if_asked_to(folder) -> None:
    """As srun ends the rest of a step: it continues them and sends SIGTERM; 75 would look like a requested stop."""
    with Job(folder, "train", "tiny.yaml", "watchdog_minutes=0.15") as job:
        job.wait(lambda: at_step(folder, 7))
        job.send(signal.SIGSTOP, 1)
        assert job.statuses(0) == [1]
        job.send(signal.SIGTERM, 1)
        job.send(signal.SIGCONT, 1)
        assert job.statuses() == [1, 1]
    (line,) = complaints(job.output)
    assert line.startswith("process 1 of 2 (host ")


def stuck_in_its_data(rank: int) -> None:
    """Make rank 1 hang, alive, when it draws step 7."""
    from reread.training.trainer import Trainer

    draw = Trainer._draw

    def hangs() -> Iterator[Any]:
        time.sleep(600)
        yield

    def draw_or_hang(trainer: Any, loader: Any, line: Any, step: int) -> Any:
        return draw(trainer, hangs() if rank == 1 and step == 6 else loader, line, step)  # steps count from 0

    Trainer._draw = draw_or_hang  # type: ignore[method-assign]


def test_a_process_that_lives_but_hangs_is_named_with_what_it_does(folder) -> None:
    with Job(folder, "train", "tiny.yaml", "watchdog_minutes=0.15", before=stuck_in_its_data) as job:
        assert job.statuses() == [1, 1]
    (line,) = complaints(job.output)
    assert line.startswith("process 1 of 2 (host ")
    assert line.endswith(") has kept the others waiting (reading data, step 6); the run stops")
    assert all(note["doing"].startswith("ended: ") for note in read_progress(folder / "runs" / "tiny").values())


def without_memory(rank: int) -> None:
    """Make torch's allocator refuse rank 1 the memory that its step 7 asks for."""
    from reread.training.trainer import Trainer

    train_step = Trainer._train_step

    def too_much(trainer: Any, *arguments: Any) -> Any:
        if rank == 1 and trainer.step == 6:  # steps count from 0
            torch.empty(1 << 58)
        return train_step(trainer, *arguments)

    Trainer._train_step = too_much  # type: ignore[method-assign]


def test_a_step_that_does_not_fit_into_memory_is_one_line_with_the_ways_out(folder) -> None:
    with Job(folder, "train", "tiny.yaml", "train.micro_batch=8", before=without_memory) as job:
        assert 2 in job.statuses()
    (line,) = [line for line in complaints(job.output) if "memory" in line]
    assert line == (
        "reread: process 1 of 2 ran out of memory at step 6 with train.micro_batch=8; set a smaller "
        "train.micro_batch or train.micro_batch=auto or train.activation_checkpointing=true or "
        "train.parallel.shard_state=true"
    )
    assert "Traceback" not in job.output


# Checkpoints


def stuck_in_its_checkpoint(rank: int) -> None:
    """Make rank 1 hang when half of its file of step 10 is written."""
    from reread.training.checkpoint import store

    write = store._write

    def half(save: Any, tensors: Any) -> None:
        write(save, tensors)
        if rank == 1 and save.step == 10:
            os.truncate(save.path, save.path.stat().st_size // 2)
            time.sleep(600)

    store._write = half


def test_kill_9_during_a_checkpoint_write_leaves_the_one_before(folder, uninterrupted) -> None:
    checkpoints = folder / "runs" / "tiny" / "checkpoints"
    with Job(folder, "train", "tiny.yaml", before=stuck_in_its_checkpoint) as job:
        job.wait(lambda: at_step(folder, 12))  # training continues while a checkpoint is written
        job.wait((checkpoints / "step-00000010.tmp" / "rank-00001.safetensors").exists)
        job.send(signal.SIGKILL)
        assert job.statuses() == [-9, -9]
    continues(folder, uninterrupted, since=5)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000035", "step-00000040"]


@pytest.fixture
def small_disk(folder: Path, uninterrupted: Path) -> Iterator[Path]:
    """RUN/checkpoints on a file system with room for two checkpoints and a half."""
    disk = folder / "runs" / "tiny" / "checkpoints"
    disk.mkdir(parents=True)
    one = uninterrupted / "runs" / "tiny" / "checkpoints" / "step-00000040"
    size = sum(file.stat().st_size for file in one.iterdir()) * 5 // 2
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small file system without the right to mount one: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_costs_no_checkpoint_and_once_there_is_room_the_run_continues(
    small_disk: Path, folder: Path, uninterrupted: Path
) -> None:
    with Job(folder, "train", "tiny.yaml") as job:
        assert job.statuses() == [2, 2], job.output
    (line,) = complaints(job.output)
    fault = r"runs/tiny/checkpoints: cannot write the checkpoint of step 15 \(process \d: No space left on device\)"
    way_out = "make room or fix the folder and start again; the checkpoint of step 10 is untouched"
    assert re.fullmatch(f"reread: {fault}; {way_out}", line)
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    continues(folder, uninterrupted, since=10)


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize(
    ("how", "reason"),
    [("truncated", r" has \d+ bytes, not \d+"), ("bit-flipped", ": checksum differs")],
    ids=["truncated", "bit-flipped"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(folder, uninterrupted, how, reason) -> None:
    shutil.copytree(uninterrupted / "runs", folder / "runs")
    damage(folder / "runs" / "tiny" / "checkpoints" / "step-00000040" / "rank-00000.safetensors", how)
    (line,) = complaints(continues(folder, uninterrupted, since=35))
    named = r"runs/tiny/checkpoints/step-00000040 is damaged \(rank-00000.safetensors"
    assert re.fullmatch(rf"{named}{reason}\): taking the checkpoint before it", line)


# The corpus


@pytest.fixture
def corpus(sample_corpus: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(sample_corpus, tmp_path / "corpus")


def shard_of(corpus: Path, number: int) -> Path:
    return corpus / [shard.name for shard in Manifest.read(corpus).shards if shard.split == "train"][number]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", r"\d+ bytes long, \d+ were written"),
        ("bit-flipped", r"altered since it was written \(checksum of the page at byte \d+\)"),
        ("deleted", "missing"),
    ],
    ids=["truncated", "bit-flipped", "deleted"],
)
def test_a_damaged_shard_is_named_with_the_way_out(corpus, tmp_path, how, message) -> None:
    write_recipe(tmp_path, corpus)
    damage(shard_of(corpus, 0), how)
    with Job(tmp_path, "train", "tiny.yaml") as job:
        assert job.statuses() == [2, 2], job.output
    (line,) = complaints(job.output)
    way_out = "copy the shard again, or delete it and run `reread preprocess` again"
    assert re.fullmatch(f"reread: {shard_of(corpus, 0)}: {message}; {way_out}", line)


def damaged_while_training(how: str, rank: int) -> None:
    """Damage an opened shard; the check of some rows, which would read all of this small corpus, is skipped."""
    from reread.training import trainer
    from reread.training.data.dataset import MaskedDataset

    MaskedDataset.check = lambda *_: None  # type: ignore[method-assign]
    load = trainer.Trainer._load_checkpoint

    def and_damage(self: Any) -> None:
        load(self)
        corpus = self.dataset.corpus
        for number in range(corpus.blocks):
            corpus.map(number)
        self.mesh.gather(0)
        if rank == 0:
            damage(shard_of(Path(self.settings.data.corpus), -1), how)
        self.mesh.gather(0)

    trainer.Trainer._load_checkpoint = and_damage  # type: ignore[method-assign]


def test_a_bit_flipped_while_training_is_found_when_its_page_is_read(corpus, tmp_path) -> None:
    write_recipe(tmp_path, corpus)
    with Job(tmp_path, "train", "tiny.yaml", before=partial(damaged_while_training, "bit-flipped")) as job:
        assert job.statuses() == [2, 2], job.output
    (line,) = complaints(job.output)
    assert line.startswith(f"reread: {shard_of(corpus, -1)}: altered since it was written")


def test_a_shard_deleted_while_training_is_missed_at_the_next_start(corpus, uninterrupted, tmp_path) -> None:
    """An open file remains until it is closed."""
    write_recipe(tmp_path, corpus)
    with Job(tmp_path, "train", "tiny.yaml", before=partial(damaged_while_training, "deleted")) as job:
        assert job.statuses() == [0, 0], job.output
    assert_same_end(tmp_path, uninterrupted)
    with Job(tmp_path, "train", "tiny.yaml") as job:
        assert job.statuses() == [2, 2]
    (line,) = complaints(job.output)
    assert line.startswith(f"reread: {shard_of(corpus, -1)}: missing; ")


def drawing_few_rows(rank: int) -> None:
    """Draw rows of a few steps ahead, instead of thousands; the workers inherit it."""
    from reread.training.data import loader

    loader._VALUES_AT_ONCE = 1


def test_a_shard_cut_short_under_its_memory_map_is_named(corpus, tmp_path) -> None:
    """The system kills the process that reads past its end."""
    write_recipe(tmp_path, corpus)
    with Job(tmp_path, "train", "tiny.yaml", "steps=100000", processes=1, before=drawing_few_rows) as launcher:
        wait_for_step(tmp_path, 7, launcher)
        os.truncate(shard_of(corpus, 0), 0)
        assert launcher.statuses() == [2]
    killed, shard = complaints(launcher.output)
    assert re.fullmatch(r"reread: process \d of 2 was killed by SIGBUS; the run stops", killed)
    assert shard.startswith(f"reread: {shard_of(corpus, 0)}: 0 bytes long, ")


# Gradients that are not finite


def nan_in(steps: range, rank: int) -> None:
    """Make the loss of rank 1's first micro-batch NaN in these steps."""
    from reread.training.objectives.masked_lm import MaskedLMObjective

    losses = MaskedLMObjective.losses

    def with_nan(self: Any, batch: Any, counts: Any, step: int) -> Any:
        for number, one in enumerate(losses(self, batch, counts, step)):
            bad = rank == 1 and step in steps and number == 0
            yield one._replace(loss=one.loss * float("nan")) if bad else one

    MaskedLMObjective.losses = with_nan  # type: ignore[method-assign]


def test_nan_skips_the_step_on_all_ranks_and_is_counted(folder) -> None:
    with Job(
        folder, "train", "tiny.yaml", "steps=10", "schedule.decay=constant", before=partial(nan_in, range(3, 5))
    ) as job:
        assert job.statuses() == [0, 0], job.output
    run = folder / "runs" / "tiny"
    skipped = [line["skipped_steps"] for line in read_metrics(run) if "loss" in line]
    assert skipped == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    for step in (3, 4):
        line = f"step {step} skipped: gradient not finite (loss scale 1); {step - 2} skipped so far"
        assert job.output.count(line) == 1
    assert {note["skipped_steps"] for note in read_progress(run).values()} == {2}
    index = json.loads((run / "checkpoints" / "step-00000010" / "index.json").read_text())
    assert (index["state"]["skipped_steps"], index["state"]["updates"]) == (2, 8)


def test_nan_in_every_step_ends_the_run_with_one_line(folder) -> None:
    with Job(folder, "train", "tiny.yaml", "steps=100", before=partial(nan_in, range(3, 1000))) as job:
        assert job.statuses() == [2, 2], job.output
    assert complaints(job.output) == [
        "reread: runs/tiny: the gradient was not finite in 50 steps in a row, up to step 52; lower "
        "train.optimizer.learning_rate, or look at the data with `reread inspect`"
    ]


# Two jobs


def test_a_second_job_on_the_same_run_folder_is_refused_by_name(folder) -> None:
    command = ("train", "tiny.yaml", "steps=100000", "parallel.processes=1")
    with Job(folder, *command, processes=1) as first:
        first.wait(lambda: at_step(folder, 2))
        with Job(folder, *command, processes=1) as second:
            assert second.statuses() == [2]
    (line,) = complaints(second.output)
    holder = f"host {socket.gethostname()}, pid {first.pids[0]}"
    refusal = f"another job is training in this folder ({holder}); stop it, or choose another name"
    assert line == f"reread: runs/tiny: {refusal}"
