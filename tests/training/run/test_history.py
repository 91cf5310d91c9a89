"""The attempts at a run, as the report shows them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.history import close_attempt, open_attempt, read_history
from reread.training.run.metrics import read_metrics
from reread.training.run.watchdog import ENDED
from reread.training.trainer import Trainer, train
from tests.conftest import train_values
from tests.pipeline.slurm.test_slurm_scripts import supervisor


def note(run: Path, rank: int, doing: str, seconds_ago: float = 0.0, step: int = 7) -> None:
    path = run / "progress" / f"rank-{rank:05d}.json"
    path.parent.mkdir(exist_ok=True)
    values = {"rank": rank, "attempt": 1, "doing": doing, "time": time.time() - seconds_ago, "step": step}
    path.write_text(json.dumps(values))


def ends(run: Path) -> list[tuple[str, Any, bool]]:
    return [(one.how, one.last_step, one.failed) for one in read_history(run)]


def test_each_attempt_has_its_end_also_one_that_was_killed(tmp_path: Path) -> None:
    close_attempt(tmp_path)
    assert read_history(tmp_path) == []
    open_attempt(tmp_path, 0, 2)
    note(tmp_path, 0, "computing")
    note(tmp_path, 1, "computing")
    assert ends(tmp_path) == [("running", 7, False)]
    close_attempt(tmp_path)  # the next attempt begins, so that the last is over however short its silence
    open_attempt(tmp_path, 5, 2)
    note(tmp_path, 0, "done", step=9)
    note(tmp_path, 1, f"{ENDED}OSError: no room", step=8)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"event": "st')  # a node died in it
    job = {"event": "job", "job": "4711", "status": 137, "step": 8, "time": 1e9, "how": "by supervise.py"}
    supervisor().write_down(tmp_path / "history.jsonl", job)
    close_attempt(tmp_path)
    open_attempt(tmp_path, 9, 1)
    note(tmp_path, 0, "reading data", seconds_ago=1000)
    killed = ("killed or lost (computing)", 7, True)
    assert ends(tmp_path) == [killed, ("OSError: no room", 8, True), ("killed or lost (reading data)", 7, True)]
    assert [(one.first_step, one.processes) for one in read_history(tmp_path)] == [(0, 2), (5, 2), (9, 1)]


@pytest.mark.long
def test_total_tokens_go_on_where_the_checkpoint_was(sample_corpus: Path, tmp_path: Path) -> None:
    """The checkpoint of step 3 lies between two progress lines."""
    values = {"steps": 8, "log_every": 2, "checkpoint": {"every_steps": 3}}
    settings = TrainSettings.parse(train_values(sample_corpus, **values), "test")
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(settings, tmp_path / "whole")
    trainer = Trainer(settings, tmp_path / "stopped", Mesh())
    trainer.progress.enter("x")
    save = trainer._save_checkpoint

    def save_and_stop(sums: Any) -> None:
        save(sums)
        trainer.stopped = True

    trainer._save_checkpoint = save_and_stop  # type: ignore[method-assign]
    try:
        trainer.train()
    except SystemExit:
        train(settings, tmp_path / "stopped")
    whole, resumed = (
        {line["step"]: line["total_tokens"] for line in read_metrics(tmp_path / run) if "total_tokens" in line}
        for run in ("whole", "stopped")
    )
    assert whole == resumed and sorted(whole) == [2, 4, 6, 8]
    lines = [line["tokens"] for line in read_metrics(tmp_path / "whole") if "tokens" in line]
    assert whole[8] == sum(lines)
    assert [(one.first_step, one.how) for one in read_history(tmp_path / "stopped")] == [
        (0, "not recorded"),
        (3, "done"),
    ]
