"""Linear probes of a trained, frozen model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.kinds import open_dataset
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model


def frozen(run: Path, settings: TrainSettings) -> Any:
    """The encoder of a run's last checkpoint, without its heads."""
    model, _ = restore_model(run, read_run_model(run, settings))
    return model.eval().base_model


def held_out(settings: TrainSettings) -> Any:
    return open_dataset(settings.data, settings.seed, "validation")


def unmasked(rows: Rows) -> torch.Tensor:
    """The ids of rows [B, L] before they were masked."""
    return torch.from_numpy(np.where(rows["labels"] != IGNORED, rows["labels"], rows["input_ids"]).astype(np.int64))


def accuracy(states: NDArray[Any], classes: NDArray[Any], folds: NDArray[np.int64]) -> float:
    """Accuracy of a ridge classifier on `states` [n, D]; each of the folds [n] is tested by one fitted on the others.

    The penalty is in proportion to the states' variance, so that their scale does not matter."""
    x = states.astype(np.float64) - states.mean(0)
    penalty = 1e-2 * np.square(x).sum() / x.shape[1]
    x, y = np.concatenate([x, np.ones((len(x), 1))], axis=1), np.eye(classes.max() + 1)[classes]
    right = 0
    for fold in np.unique(folds):
        tested = folds == fold
        learns = x[~tested]
        weights = np.linalg.solve(learns.T @ learns + penalty * np.eye(x.shape[1]), learns.T @ y[~tested])
        right += int(((x[tested] @ weights).argmax(1) == classes[tested]).sum())
    return right / len(x)
