"""Linear probes of a trained, frozen model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.checkpoint.restore import restore_model
from training.config import TrainSettings
from training.data.kinds import open_dataset
from training.data.rows import IGNORED, Rows
from training.run_model import read_run_model


def frozen(run: Path, settings: TrainSettings) -> Any:
    """The encoder of a run's last checkpoint, without its heads."""
    model, _ = restore_model(run, settings, read_run_model(run, settings).config)
    return model.eval().base_model


def held_out(settings: TrainSettings) -> Any:
    return open_dataset(settings.data, settings.seed, "validation")


def unmasked(rows: Rows) -> torch.Tensor:
    """The ids of rows [B, L] before they were masked."""
    return torch.from_numpy(np.where(rows["labels"] != IGNORED, rows["labels"], rows["input_ids"]).astype(np.int64))


def accuracy(states: NDArray[Any], classes: NDArray[Any], learns: NDArray[np.bool_]) -> float:
    """Accuracy of a least-squares classifier on `states` [n, D], fitted where `learns` and tested elsewhere."""
    states = np.concatenate([states, np.ones((len(states), 1))], axis=1).astype(np.float64)
    x, y = states[learns], np.eye(classes.max() + 1)[classes[learns]]
    weights = np.linalg.solve(x.T @ x + 1e-2 * np.eye(x.shape[1]), x.T @ y)
    return float(((states[~learns] @ weights).argmax(1) == classes[~learns]).mean())
