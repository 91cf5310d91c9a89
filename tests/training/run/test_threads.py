"""`train.threads`: what is chosen for `auto`, that a run keeps it, and what is said of a slow CPU."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run import threads
from reread.training.run.auto import keep_auto
from reread.training.run.threads import use_threads
from reread.training.trainer import train
from tests.conftest import train_values

LOAD = threads._load


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the cores of this machine, and those that other programs take; torch's own number is put back."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def set_to(cores: int, load: float) -> None:
        monkeypatch.setattr(threads, "cores", lambda: cores)
        monkeypatch.setattr(threads, "_load", lambda processes: load)

    set_to(8, 0.2)
    yield set_to
    torch.set_num_threads(before)


def settings(**given: Any) -> TrainSettings:
    return TrainSettings.parse(train_values(Path("nowhere"), **given), "test")


def used(run: Path, begun: bool = False, **given: Any) -> int:
    kept = use_threads(settings(**given), run, begun, Mesh())
    keep_auto(run, threads=kept)
    assert torch.get_num_threads() == kept["chosen"]
    return kept["chosen"]


def test_auto_is_the_cores_by_the_processes_less_what_others_take(machine, tmp_path, monkeypatch) -> None:
    for cores, load, expected in ((8, 0.2, 8), (8, 2.7, 5), (2, 1.0, 1), (2, 90.0, 1), (1, 0.0, 1)):
        machine(cores, load)
        assert used(tmp_path) == expected
    joined = {
        "two of one machine": (8, 0.0, [True, True], [], 4),
        "two of one whose load is 3": (8, 3.0, [True, True], [], 2),
        "another machine has less": (8, 0.0, [True, False], [(6, 5)], 5),
        "more than cores": (2, 0.0, [True] * 3, [], 1),
    }
    for name, (cores, load, here, others, expected) in joined.items():

        def gather(self: Mesh, *values: int, here: Any = here, others: Any = others) -> list[tuple[int, ...]]:
            return [(values[0] + (not one),) for one in here] if len(values) == 1 else [values, *others]

        machine(cores, load)
        monkeypatch.setattr(Mesh, "gather", gather)
        assert used(tmp_path) == expected, name


def test_what_is_stated_is_taken_and_a_run_keeps_its_number(machine, tmp_path, monkeypatch, caplog) -> None:
    with caplog.at_level("INFO", "reread"):
        assert used(tmp_path, threads=3) == 3 and not caplog.messages
        assert used(tmp_path) == 8
        machine(8, 6.0)
        assert used(tmp_path, begun=True) == 8
        assert used(tmp_path) == 2, "a run without a checkpoint begins anew"
        machine(16, 0.0)
        assert used(tmp_path, begun=True) == 16, "another machine"
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        assert used(tmp_path, begun=True) == 16 and used(tmp_path) == 5
        monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
        assert used(tmp_path) == 16
    assert caplog.messages == [
        "train.threads: auto: 8 for each process, as its machine has 8 cores for each, less those that its load takes",
        "train.threads: auto: 8 for each process, as this run began with; another number would change its sums by "
        "rounding",
        "train.threads: auto: 2 for each process, as its machine has 8 cores for each, less those that its load takes",
        "train.threads: auto: 16 for each process, as its machine has 16 cores for each, less those that "
        "its load takes",
        "train.threads: auto: 16 for each process, as this run began with; another number would change its sums by "
        "rounding",
        "train.threads: auto: 5 for each process, by OMP_NUM_THREADS",
        "train.threads: auto: 16 for each process, as its machine has 16 cores for each, less those that "
        "its load takes",
    ]


@pytest.mark.parametrize("kept", [{"chosen": "8", "cores": 8, "processes": 1}, {"chosen": 0}, [], {"chosen": 1e400}])
def test_a_damaged_file_of_choices_is_chosen_again(kept, tmp_path) -> None:
    keep_auto(tmp_path, threads=kept)
    assert used(tmp_path, begun=True) == 8


@pytest.mark.long  # two threads wait for each other where other tests run
def test_a_run_goes_on_with_its_threads_and_says_what_to_try_if_slow(machine, sample_corpus, tmp_path, caplog) -> None:
    """An MFU of 10 % of 1,000 TFLOP/s is not reached here; with one thread there is nothing to try."""
    machine(2, 0.0)
    values = train_values(sample_corpus, peak_tflops=1000.0, checkpoint={"every_steps": 1}, validate_every=100)
    for steps, load in ((3, 0.0), (4, 2.0)):
        machine(2, load)
        with caplog.at_level("INFO", "reread"):
            train(TrainSettings.parse({**values, "steps": steps}, "test"), tmp_path)
        assert torch.get_num_threads() == 2
    advice = [line for line in caplog.messages if "try train.threads=1" in line]
    assert len(advice) == 1 and advice[0].startswith("MFU 0.0% is low for a CPU")
    caplog.clear()
    with caplog.at_level("INFO", "reread"):
        train(TrainSettings.parse({**values, "steps": 7, "threads": 1}, "test"), tmp_path)
    assert torch.get_num_threads() == 1 and "try train.threads=1" not in caplog.text


def test_the_load_counts_what_runs_now_and_not_what_has_ended(monkeypatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (15.0, 12.0, 7.0))
    for content, expected in {"15.00 12.00 7.00 1/350 6797\n": 0, "15.00 12.00 7.00 9/350 6797\n": 8}.items():
        monkeypatch.setattr(Path, "read_text", lambda self, content=content: content)
        assert LOAD(1) == expected and LOAD(4) == max(0, expected - 3)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 12.0, 7.0))
    assert LOAD(1) == 0.5
