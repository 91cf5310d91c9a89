"""Fine-tuning: a tag for each word or character."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.tag import TagSettings
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class TagObjective(TaskObjective[TagSettings]):
    """Cross entropy of each word's tag, at its first piece; a mean over words, not over texts."""

    name = "tag"
    has_global_tokens = False
    card = Card("AutoModelForTokenClassification", "token-classification", "token-classification")

    def predicted(self, rows: Rows) -> int:
        return int((rows["labels"][rows["learns"]] != IGNORED).sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits = output.logits
        labels = self.put(rows["labels"])
        labels = torch.where(self.put(rows["learns"])[:, None], labels, IGNORED)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return losses, ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]
