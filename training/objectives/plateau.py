"""The loss of a masked language model that uses no context: the plateau on which slow pretraining stays."""

import logging
import math

import numpy as np
import torch
from numpy.typing import NDArray

from reread.training.data.batch import Rows
from reread.training.data.settings import MaskingSettings
from reread.training.objectives.objective import Objective

log = logging.getLogger("reread")

_ADAM = "optimizer.name=adam (small batches) or "


class Plateau:
    """Counts the tokens that a run learns to predict, and logs when it has learned no more than their frequencies."""

    def __init__(self, objective: Objective, vocab_size: int) -> None:
        self.objective = objective
        self.counts = np.zeros(vocab_size)
        self.loss = math.nan
        """The mean loss over the tokens of the latest progress line."""
        self.logged = False

    def add(self, batch: Rows) -> None:
        """Count the targets of this rank's rows of a step."""
        if len(targets := self.objective.targets(batch)):
            self.counts += np.bincount(targets, minlength=len(self.counts))

    def check(self, step: int) -> None:
        """Log a line if `loss` is not below `context_free_loss` after the warm-up: the first time, and after the last
        step (collective)."""
        settings = self.objective.settings
        if step <= settings.schedule.warmup_steps:
            return
        counts = self.objective.summed(self.objective.mesh.put(torch.from_numpy(self.counts))).cpu().numpy()
        if not counts.any() or (self.logged and step < settings.steps):
            return
        least = context_free_loss(counts, self.objective.data.masking)
        if self.loss >= least and self.objective.mesh.rank == 0:
            log.info(
                "step %d: the loss, %.2f, is not below %.2f, which frequencies of tokens alone give: the model uses no "
                "context yet; if that stays so, try %sa higher learning_rate",
                *(step, self.loss, least, "" if settings.optimizer.name == "adam" else _ADAM),
            )
        self.logged |= self.loss >= least


def context_free_loss(counts: NDArray[np.float64], masking: MaskingSettings) -> float:
    """The least mean loss, in nats, of predictions that see the token at the position itself and none around it.

    `counts` [V] says how often each token T is to be predicted; not all are 0. At a [MASK] the loss is the unigram
    entropy H(T) of the predicted tokens. Elsewhere a token X is seen, which is T itself or, in a share r of these
    positions, any of the V tokens: the loss is H(T|X) = H(T) + H(X|T) - H(X).
    """
    share = counts / counts.sum()
    unigram, seen = _entropy(share), 1 - masking.mask_share
    if seen <= 0:
        return unigram
    other = masking.random_share / seen / len(counts)
    own = 1 - masking.random_share / seen
    of_token = _entropy(np.array([own + other])) + (len(counts) - 1) * _entropy(np.array([other]))
    return unigram + seen * (of_token - _entropy(own * share + other))


def _entropy(probabilities: NDArray[np.float64]) -> float:
    """- sum p log p."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())
