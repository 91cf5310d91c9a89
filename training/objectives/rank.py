"""Fine-tuning: the order of a query's passages."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.data.batch import Rows
from reread.training.data.tasks.rank import RankSettings
from reread.training.objectives.classify import PROBLEM_TYPES
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class RankObjective(TaskObjective[RankSettings]):
    """Softmax cross entropy over the passages of a query. The target is each passage's share of the sum of grades
    (Bruch et al. 2019, "An Analysis of the Softmax Cross Entropy Loss for Learning-to-Rank with Binary Relevance").

    With `loss: binary` it is the cross entropy of each passage, which is relevant or not."""

    name = "rank"
    card = Card("AutoModelForSequenceClassification", "text-ranking", "text-ranking")

    @staticmethod
    def configure(config: Any, data: RankSettings) -> None:
        TaskObjective.configure(config, data)
        config.num_labels, config.problem_type = 1, PROBLEM_TYPES["number"]

    def predicted(self, rows: Rows) -> int:
        """The number of queries, of which one that is cut counts once for each of its windows; or of passages."""
        if self.data.loss == "binary":
            return int(rows["learns"].sum())
        return len(np.unique(self._units(rows)[rows["learns"] & (rows["share"] > 0)]))

    @staticmethod
    def _units(rows: Rows) -> Any:
        """The number of the softmax [B] of each row; rows of one query and window share a softmax."""
        units = np.stack([rows["example"], rows["window"]], axis=1)
        return np.unique(units, axis=0, return_inverse=True)[1].reshape(-1)

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        logits = self.outputs(output)[:, 0]
        if self.data.loss == "binary":
            relevant, learns = self.put(rows["share"] > 0), self.put(rows["learns"])
            losses = F.binary_cross_entropy_with_logits(logits, relevant.to(logits.dtype), reduction="none")
            return torch.where(learns, losses, 0).sum(), (((logits > 0) == relevant) & learns).sum()
        share = torch.from_numpy(rows["share"] * rows["learns"]).to(logits.device, logits.dtype)
        units, option = self._units(rows), rows["option"]
        scores = logits.new_full((int(units.max()) + 1, int(option.max()) + 1), -torch.inf)
        scores = scores.index_put((self.put(units), self.put(option)), logits)
        loss = (share * (scores.logsumexp(-1)[self.put(units)] - logits)).sum()
        return loss, ((share > 0) & (logits == scores.amax(-1)[self.put(units)])).sum()

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]
