"""Fine-tuning: a tag for each word or character."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.dataset import Outputs
from reread.training.data.tasks.tag import TagSettings
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class TagObjective(TaskObjective[TagSettings]):
    """Cross entropy of each word's tag, at its first piece; a mean over words, not over texts.

    With `task.crf` it is -log p of the tags as a chain, for each window that of the words it decides: the transition
    from the last word of a window to the first of the next is not learned, but counts in predictions.
    """

    name = "tag"
    has_global_tokens = False
    card = Card("AutoModelForTokenClassification", "token-classification", "token-classification")

    @staticmethod
    def configure(config: Any, data: TagSettings) -> None:
        TaskObjective.configure(config, data)
        if data.crf:
            config.crf = True

    @property
    def own_inputs(self) -> tuple[str, ...]:
        return ("characters",) if self.data.characters else ()

    def predicted(self, rows: Rows) -> int:
        return int((rows["labels"][rows["learns"]] != IGNORED).sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits = output.logits
        labels = self.put(rows["labels"])
        labels = torch.where(self.put(rows["learns"])[:, None], labels, IGNORED)
        if self.data.crf:
            most = int((rows["labels"] != IGNORED).sum(1).max())  # counted here: a GPU would be waited for
            losses = self.model.chain_loss(logits, labels, most).sum()
        else:
            weights = None if self.class_weights is None else self.class_weights.to(logits.dtype)
            losses = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), weights, ignore_index=IGNORED, reduction="sum"
            )
        return losses, ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()

    def decoded(self, dataset: Any, example: int, outputs: Outputs) -> Any:
        if not self.data.crf:
            return super().decoded(dataset, example, outputs)
        return dataset.decode(example, outputs, self._tags)

    def _tags(self, logits: NDArray[np.float64]) -> NDArray[np.int64]:
        return self.model.tags(torch.from_numpy(logits)).numpy()

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]
