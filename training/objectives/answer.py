"""Fine-tuning: the span of the text that answers a question."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reread.training.data.batch import Rows
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class AnswerObjective(TaskObjective[AnswerSettings]):
    """The mean of two cross entropies, of the first and the last token, in each window.

    With `occurrences: all` it is -log of the probability of all right positions together, in one softmax over the
    windows of a document (over each window, if the model has memory): Longformer's OR loss for TriviaQA.
    """

    name = "answer"
    card = Card("AutoModelForQuestionAnswering", "question-answering", "question-answering")

    def predicted(self, rows: Rows) -> int:
        units, has_answer = self._units(rows)
        return len({int(unit) for unit, right in zip(units, has_answer, strict=True) if right})

    def _units(self, rows: Rows) -> tuple[Any, Any]:
        """For each row [B], the number of its softmax, and whether it learns and has an answer."""
        units = rows["example"] if self.data.one_softmax else range(len(rows["example"]))
        return units, rows["learns"] & rows["starts"].any(1)

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        units, has_answer = self._units(rows)
        numbers = {int(unit): number for number, unit in enumerate(dict.fromkeys(map(int, units)))}
        unit_of_row = np.array([numbers[int(unit)] for unit in units])
        learning = np.zeros(len(numbers), bool)
        learning[unit_of_row[has_answer]] = True
        unit, learns = self.put(unit_of_row), self.put(learning)
        padding = self.put(rows["attention_mask"] == 0)
        losses = []
        right = torch.ones(len(numbers), dtype=torch.bool, device=unit.device)
        for output_logits, name in ((output.start_logits, "starts"), (output.end_logits, "ends")):
            logits = output_logits.masked_fill(padding, -torch.inf)
            chosen = logits.masked_fill(~self.put(rows[name]), -torch.inf)
            losses.append(_logsumexp(logits, unit, len(numbers)) - _logsumexp(chosen, unit, len(numbers)))
            right &= _amax(chosen.amax(-1), unit, len(numbers)) == _amax(logits.amax(-1), unit, len(numbers))
        return 0.5 * torch.where(learns, losses[0] + losses[1], 0).sum(), (right & learns).sum()

    def outputs(self, output: Any) -> Tensor:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)


def _amax(values: Tensor, unit: Tensor, count: int) -> Tensor:
    """The greatest value of each of `count` units; `unit` [B] is that of each of `values` [B]."""
    return values.new_full((count,), -torch.inf).scatter_reduce(0, unit, values, "amax")


def _logsumexp(logits: Tensor, unit: Tensor, count: int) -> Tensor:
    """The log of the summed exponentials [count] of all rows [B, L] of each unit; -inf if all logits are."""
    greatest = _amax(logits.detach().amax(-1), unit, count)
    shift = torch.where(greatest.isfinite(), greatest, 0)
    powers = (logits - shift[unit][:, None]).exp().sum(-1)
    sums = powers.new_zeros(count).index_add(0, unit, powers)
    return sums.clamp(min=torch.finfo(sums.dtype).tiny).log() + shift
