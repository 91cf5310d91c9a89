"""Writers of figures in addition to metrics.jsonl: TensorBoard, Weights & Biases, MLflow. Imported only when used."""

import importlib.util
import json
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.files import write_atomically
from reread.training.config import TrainSettings
from reread.training.run.files import RunFile, read_mapping

log = logging.getLogger("reread")

MODULES = {"wandb": "wandb", "mlflow": "mlflow"}
PROJECT = "reread"
"""Project or experiment, unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another."""


class Writer(Protocol):
    """Takes the figures of a progress line."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard; those past `resumed_step` are hidden."""

    def __init__(self, run: Path, resumed_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(RunFile.TENSORBOARD.of(run)), purge_step=resumed_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._board.close()


class Tracker:
    """A service that keeps figures of many runs. If it cannot be reached, training goes on without it."""

    def __init__(self, name: str) -> None:
        self._name, self._lost = name, False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if not self._lost:
            try:
                self._send(step, values)
            except Exception as error:  # clients raise various errors if the network is down
                self._lost = True
                log.warning(
                    "train.writers: %s gets no figures from step %d on (%s); metrics.jsonl has them all",
                    *(self._name, step, first_line(error)),
                )

    def close(self) -> None:
        with suppress(Exception):  # the run is done
            self._finish()

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError


class WeightsAndBiases(Tracker):
    """One run of wandb, which each attempt continues; WANDB_MODE, WANDB_PROJECT and the like are wandb's own."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        super().__init__("wandb")
        import wandb

        path = RunFile.WANDB_ID.of(run)
        identity = _id_in(path) or secrets.token_hex(8)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project, name=run.name, id=identity, resume="allow", dir=str(run), config=dict(settings)
        )
        # an attempt begins before the last step of the one before it, and wandb's own steps only rise
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        write_atomically(path, json.dumps({"id": identity}).encode())

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def _finish(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """One run of MLflow, which each attempt continues; MLFLOW_TRACKING_URI and the like are MLflow's own."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        super().__init__("mlflow")
        import mlflow

        self._mlflow: Any = mlflow
        path = RunFile.MLFLOW_ID.of(run)
        identity = _id_in(path)
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment(PROJECT)
        started = mlflow.start_run(run_id=identity, run_name=run.name)
        if identity is None:
            leaves = _leaves(settings)
            for first in range(0, len(leaves), 100):  # as many as the server takes at once
                mlflow.log_params(dict(leaves[first : first + 100]))
        write_atomically(path, json.dumps({"id": started.info.run_id}).encode())

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def _finish(self) -> None:
        self._mlflow.end_run()


def check_writers(settings: TrainSettings) -> None:
    """Raises `UserError` for a writer whose package is not installed."""
    for name in settings.writers:
        if name in MODULES and not importlib.util.find_spec(MODULES[name]):
            raise UserError(f"train.writers: {name} is not installed; pip install 'reread[{name}]'")


def open_writers(settings: TrainSettings, run: Path, resumed_step: int) -> list[Writer]:
    """The writers of `train.writers`. Raises `UserError` for one that cannot be opened."""
    check_writers(settings)
    return [_open(name, settings, run, resumed_step) for name in dict.fromkeys(settings.writers)]


def _open(name: str, settings: TrainSettings, run: Path, resumed_step: int) -> Writer:
    if name == "tensorboard":
        return TensorBoard(run, resumed_step)
    values = settings.model_dump(mode="json")
    try:
        return WeightsAndBiases(run, values) if name == "wandb" else MLflow(run, values)
    except Exception as error:
        way_out = {"wandb": "`wandb login`, or WANDB_MODE=offline", "mlflow": "see MLFLOW_TRACKING_URI"}[name]
        raise UserError(
            f"train.writers: {name} cannot be opened ({first_line(error)}); {way_out}, or leave it out"
        ) from None


def _id_in(path: Path) -> str | None:
    """The id of the run at a service, from an earlier attempt."""
    kept = read_mapping(path)
    return str(kept["id"]) if "id" in kept else None


def _leaves(values: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(values, dict):
        return [(path, values)]
    return [leaf for key, value in values.items() for leaf in _leaves(value, f"{path}.{key}" if path else key)]
