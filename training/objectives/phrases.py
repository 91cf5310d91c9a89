"""Fine-tuning: the key phrases of a document."""

from typing import Any

import torch
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.phrases import PhrasesSettings
from reread.training.models.heads import phrase_losses
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class PhrasesObjective(TaskObjective[PhrasesSettings]):
    """Binary cross entropy of each run of words: is it a key phrase? A mean over runs, not over texts."""

    name = "phrases"
    has_global_tokens = False
    card = Card("AutoModelForTextEncoding", "token-classification", "keyphrase-extraction")

    @staticmethod
    def configure(config: Any, data: PhrasesSettings) -> None:
        TaskObjective.configure(config, data)
        names = [f"{count} word{'s' * (count > 1)}" for count in range(1, data.phrase_words + 1)]
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}

    @property
    def own_inputs(self) -> tuple[str, ...]:
        return ("word_starts",)

    def predicted(self, rows: Rows) -> int:
        return int((rows["labels"][rows["learns"]] != IGNORED).sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits, labels = output.logits, self.put(rows["labels"])
        labels = torch.where(self.put(rows["learns"])[:, None, None], labels, IGNORED)
        right = ((logits > 0) == (labels > 0)) & (labels != IGNORED)
        return phrase_losses(logits, labels).sum(), right.sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]
