"""Fine-tuning: one of several options."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.data.batch import Rows
from reread.training.data.tasks.choose import ChooseSettings
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class ChooseObjective(TaskObjective[ChooseSettings]):
    """Cross entropy over the options of an example, in each window (ERNIE-Doc's code for C3).

    With `form: joined` an option's logit is the mean over the windows of a document (that of each window, if the model
    has memory): Longformer's loss for WikiHop.
    """

    name = "choose"
    card = Card("AutoModelForMultipleChoice", "multiple-choice", "multiple-choice")

    @staticmethod
    def check(config: Any, data: ChooseSettings) -> None:
        TaskObjective.check(config, data)
        if data.question_option_length is not None and data.form != "rows":
            raise UserError(f"task.question_option_length: for task.form=rows, not {data.form}; leave it out")
        if data.shuffled and not data.is_joined:
            raise UserError(f"task.shuffled: for task.form=joined, not {data.form}; leave it out")

    @staticmethod
    def configure(config: Any, data: ChooseSettings) -> None:
        TaskObjective.configure(config, data)
        if data.is_joined:
            config.joined = True
        if data.form == "aligned":
            config.reading = None  # the exported model cuts one text of a row alone; `reread predict` cuts both

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows [B, L], or [B, 1, L] where each option is a row of its own."""
        return inputs if self.data.is_joined else {name: values[:, None] for name, values in inputs.items()}

    def predicted(self, rows: Rows) -> int:
        if self.data.is_joined:
            return len(set(self._units(rows)[rows["learns"]].tolist()))
        return int((rows["learns"] & rows["is_right"]).sum())

    def _units(self, rows: Rows) -> NDArray[np.int64]:
        """The number of the softmax [B] of each row of options in one row."""
        if not self.data.one_softmax:
            return np.arange(len(rows["example"]))
        return np.unique(rows["example"], return_inverse=True)[1].reshape(-1)

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.data.is_joined:
            return self._joined_loss(output.logits, rows)
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

    def _joined_loss(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """logits [B, L]."""
        units, places = self._units(rows), rows["places"]
        count = int(units.max()) + 1
        shape = (count, places.shape[1])
        windows = np.bincount(units[rows["learns"]], minlength=count)
        right, exists = np.zeros(count, np.int64), np.zeros(shape, bool)
        right[units], exists[units] = rows["right"], places >= 0
        learning = self.put(rows["learns"])[:, None]
        found = torch.where(learning, logits.gather(1, self.put(np.maximum(places, 0))), 0)
        sums = found.new_zeros(shape).index_add(0, self.put(units), found)
        scores = sums / self.put(np.maximum(windows, 1))[:, None]
        scores = scores.masked_fill(~self.put(exists), -torch.inf)
        wanted, learns = self.put(right), self.put(windows > 0)
        losses = scores.logsumexp(-1) - scores.gather(1, wanted[:, None])[:, 0]
        return torch.where(learns, losses, 0).sum(), ((scores.argmax(-1) == wanted) & learns).sum()

    def outputs(self, output: Any) -> Tensor:
        if self.data.is_joined:
            return output.logits[..., None]  # type: ignore[no-any-return]
        return output.logits.flatten()[:, None]  # type: ignore[no-any-return]
