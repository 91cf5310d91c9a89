"""Fine-tuning: one of several options."""

from typing import Any

import torch
from torch import Tensor

from training.data.rows import Rows
from training.objectives.objective import Card
from training.objectives.task import TaskObjective


class ChooseObjective(TaskObjective):
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
        units: dict[tuple[int, int], int] = {}
        for key in zip(rows["example"].tolist(), rows["window"].tolist(), strict=True):
            units.setdefault(key, len(units))
        keys = zip(rows["example"].tolist(), rows["window"].tolist(), strict=True)
        place = torch.tensor([units[key] for key in keys], device=logits.device)
        scores = logits.new_full((len(units), int(rows["option"].max()) + 1), -torch.inf)
        scores = scores.index_put((place, self.put(rows["option"])), logits)
        is_right = self.put(rows["is_right"])
        right = torch.zeros(len(units), dtype=torch.long, device=logits.device)
        right[place[is_right]] = self.put(rows["option"])[is_right]
        learns = torch.zeros(len(units), dtype=torch.bool, device=logits.device)
        learns[place[self.put(rows["learns"])]] = True
        losses = scores.logsumexp(-1) - scores.gather(1, right[:, None])[:, 0]
        return losses[learns].sum(), ((scores.argmax(-1) == right) & learns).sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits.flatten()[:, None]  # type: ignore[no-any-return]
