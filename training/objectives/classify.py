"""Fine-tuning: one label a text, a set of labels, or a number."""

import logging
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reread.preprocessing.errors import UserError
from reread.training.data.batch import Rows
from reread.training.data.tasks.classify import ClassifySettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective

log = logging.getLogger("reread")

PROBLEM_TYPES = {
    "one": "single_label_classification",
    "set": "multi_label_classification",
    "number": "regression",
}
"""`task.answer` -> transformers' name."""


class ClassifyObjective(TaskObjective[ClassifySettings]):
    """Cross entropy of the label; for sets the mean of binary cross entropies, for numbers the squared error.

    The loss of a label is multiplied by the weight of its class, if classes have weights, and divided by the number of
    texts, not by the sum of their weights, so that it does not depend on how texts meet in a batch.
    """

    name = "classify"
    card = Card("AutoModelForSequenceClassification", "text-classification", "text-classification")

    @staticmethod
    def check(config: Any, data: ClassifySettings) -> None:
        TaskObjective.check(config, data)
        if data.answer != "set" and (data.unchosen or data.thresholds):
            raise UserError("task.threshold: for task.answer=set, whose labels have probabilities of their own")
        if data.thresholds and len(data.thresholds) != len(data.labels):
            raise UserError(f"task.thresholds: {len(data.thresholds)} for {len(data.labels)} labels; give one for each")
        if data.unchosen == data and data.dev is None:
            raise UserError(
                f"task.threshold: {data.threshold} is chosen on task.dev, which is not given; give one, or a number"
            )

    @staticmethod
    def configure(config: Any, data: ClassifySettings) -> None:
        TaskObjective.configure(config, data)
        config.problem_type = PROBLEM_TYPES[data.answer]
        if data.answer == "number":
            config.num_labels = 1

    @staticmethod
    def begin(model: Any, dataset: TaskDataset[ClassifySettings, Any]) -> None:
        """Set the bias of a new head for numbers to their mean. A head that has learned numbers before keeps its bias,
        which is not zero."""
        if dataset.settings.answer != "number" or model.device.type == "meta":
            return
        layer = [one for one in getattr(model, model.layer).modules() if isinstance(one, nn.Linear)][-1]
        if not layer.bias.any():
            mean = math.fsum(one.label for one in dataset.examples) / len(dataset)
            nn.init.constant_(layer.bias, mean)
            log.info("the head's bias begins at %.6g, the mean of the training targets", mean)

    def predicted(self, rows: Rows) -> int:
        return int(rows["learns"].sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits = output.logits
        learns = self.put(rows["learns"])
        labels = torch.from_numpy(rows["labels"]).to(logits.device)
        if labels.is_floating_point():
            labels = labels.to(logits.dtype)
        weights = None if self.class_weights is None else self.class_weights.to(logits.dtype)
        if self.data.answer == "one":
            losses, right = F.cross_entropy(logits, labels, weights, reduction="none"), logits.argmax(-1) == labels
        elif self.data.answer == "set":
            every = F.binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=weights)
            losses = every.mean(-1)
            right = ((logits > 0) == (labels > 0.5)).all(-1)
        else:
            losses = (logits[:, 0] - labels) ** 2
            right = losses.detach() < 0.25
        return (losses * learns).sum(), (right & learns).sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]
