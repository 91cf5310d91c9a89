"""Writers beside metrics.jsonl. Weights & Biases and MLflow are modules of the same interface made here, but for the
last two tests, which need the packages."""

import importlib.machinery
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.run.metrics import MetricsLog
from reread.training.run.writers import check_writers, open_writers
from tests.conftest import extra, train_values

Calls = list[tuple[Any, ...]]


def module(name: str, monkeypatch: pytest.MonkeyPatch, **content: Any) -> None:
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What both services were called with."""
    done: Calls = []

    def record(*name: str) -> Any:
        return lambda *values, **named: done.append((*name, *values, named))

    def init(**named: Any) -> Any:
        done.append(("wandb", "init", named))
        return SimpleNamespace(
            log=record("wandb", "log"), define_metric=record("wandb", "define"), finish=record("wandb", "finish")
        )

    def start_run(**named: Any) -> Any:
        done.append(("mlflow", "start", named))
        return SimpleNamespace(info=SimpleNamespace(run_id=named["run_id"] or "new"))

    module("wandb", monkeypatch, init=init)
    others = {"log_params": "params", "log_metrics": "log", "end_run": "end", "set_experiment": "experiment"}
    mlflow = {method: record("mlflow", name) for method, name in others.items()}
    module("mlflow", monkeypatch, start_run=start_run, **mlflow)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    return done


def settings(tmp_path: Path, *writers: str) -> TrainSettings:
    return TrainSettings.parse(train_values(tmp_path, writers=list(writers)), "test")


def log_two_steps(run: Path, after: int, chosen: TrainSettings) -> None:
    log = MetricsLog(run, after, 1, open_writers(chosen, run, after))
    for step in (after + 1, after + 2):
        log.write(step, {"loss": 3.0 - step, "mfu": float("nan")})
    log.close()


def test_each_writer_gets_the_figures_and_an_attempt_continues_its_run(tmp_path: Path, calls: Calls) -> None:
    chosen = settings(tmp_path, "tensorboard", "wandb", "mlflow")
    log_two_steps(tmp_path, 0, chosen)
    assert list((tmp_path / "tensorboard").iterdir())
    assert [call[2] for call in calls if call[:2] == ("wandb", "log")] == [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0},
    ]
    assert [call[2:] for call in calls if call[:2] == ("mlflow", "log")] == [
        ({"loss": 2.0}, {"step": 1}),
        ({"loss": 1.0}, {"step": 2}),
    ]
    parameters = {name: value for call in calls if call[1] == "params" for name, value in call[2].items()}
    assert parameters["optimizer.learning_rate"] == 0.01
    ends = [call[:2] for call in calls][-2:]
    assert ends == [("wandb", "finish"), ("mlflow", "end")]
    begun = len(calls)
    log_two_steps(tmp_path, 1, chosen)
    first, second = (call[2] for call in calls if call[:2] == ("wandb", "init"))
    assert first["id"] == second["id"] and first["resume"] == "allow" and first["project"] == "mine"
    assert [call[2]["run_id"] for call in calls if call[:2] == ("mlflow", "start")] == [None, "new"]
    assert not any(call[1] == "params" for call in calls[begun:])


def test_a_service_that_is_lost_does_not_end_the_run(tmp_path: Path, calls: Calls, monkeypatch, caplog) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(sys.modules["mlflow"], "log_metrics", lost)
    log_two_steps(tmp_path, 0, settings(tmp_path, "mlflow"))
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("mlflow gets no figures from step 1 on (no route to host); metrics.jsonl has them all")
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_service_that_cannot_be_opened_or_is_not_installed_is_one_line(name, tmp_path, calls, monkeypatch) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("api_key not configured\nsee the manual")

    monkeypatch.setattr(sys.modules[name], {"wandb": "init", "mlflow": "start_run"}[name], refuse)
    with pytest.raises(
        UserError, match=rf"train.writers: {name} cannot be opened \(api_key not configured\); .* leave it"
    ):
        open_writers(settings(tmp_path, name), tmp_path, 0)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"train.writers: {name} is not installed; pip install 'reread\[{name}\]'"):
        check_writers(settings(tmp_path, name))


@pytest.mark.slow
def test_mlflow_itself_has_the_figures_of_both_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else only a database or a server
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = extra("mlflow", "mlflow")
    for after in (0, 1):
        log_two_steps(tmp_path, after, settings(tmp_path, "mlflow"))
    client = mlflow.MlflowClient()
    kept = json.loads((tmp_path / "mlflow.json").read_text())["id"]
    sent = [(one.step, one.value) for one in client.get_metric_history(kept, "loss")]
    assert sent == [(1, 2.0), (2, 1.0), (2, 1.0), (3, 0.0)]
    assert client.get_run(kept).data.params["optimizer.learning_rate"] == "0.01"


@pytest.mark.long
@pytest.mark.slow
def test_wandb_itself_has_one_run_of_both_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra("wandb", "wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for after in (0, 1):
        log_two_steps(tmp_path, after, settings(tmp_path, "wandb"))
    kept = json.loads((tmp_path / "wandb.json").read_text())["id"]
    files = list(tmp_path.glob(f"wandb/offline-run-*/run-{kept}.wandb"))
    assert len(files) == 2
    # wandb's own process may write them after the run has finished, later on a busy machine.
    for _ in range(300):
        if all(b"loss" in file.read_bytes() for file in files):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a file has no figures")
