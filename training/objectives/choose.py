"""Fine-tuning: one of several options."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reread.training.data.batch import Rows
from reread.training.data.tasks.choose import ChooseSettings
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class ChooseObjective(TaskObjective[ChooseSettings]):
    """Cross entropy over the options of an example, in each window (ERNIE-Doc's code for C3)."""

    name = "choose"
    card = Card("AutoModelForMultipleChoice", "multiple-choice", "multiple-choice")

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows [B, 1, L]: each option is a row of its own."""
        return {name: values[:, None] for name, values in inputs.items()}

    def predicted(self, rows: Rows) -> int:
        return int((rows["learns"] & rows["is_right"]).sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits = self.outputs(output)[:, 0]
        windows = np.stack([rows["example"], rows["window"]], axis=1)
        units, unit_of_row = np.unique(windows, axis=0, return_inverse=True)
        option, learning, unit_of_row = rows["option"], np.zeros(len(units), bool), unit_of_row.reshape(-1)
        learning[unit_of_row[rows["learns"]]] = True
        wanted = np.zeros(len(units), np.int64)
        wanted[unit_of_row[rows["is_right"]]] = option[rows["is_right"]]
        scores = logits.new_full((len(units), int(option.max()) + 1), -torch.inf)
        scores = scores.index_put((self.put(unit_of_row), self.put(option)), logits)
        right, learns = self.put(wanted), self.put(learning)
        losses = scores.logsumexp(-1) - scores.gather(1, right[:, None])[:, 0]
        return torch.where(learns, losses, 0).sum(), ((scores.argmax(-1) == right) & learns).sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits.flatten()[:, None]  # type: ignore[no-any-return]
