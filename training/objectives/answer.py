"""Fine-tuning: the span of the text that answers a question."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.models.heads import phrase_losses
from reread.training.objectives.objective import Card
from reread.training.objectives.task import TaskObjective


class AnswerObjective(TaskObjective[AnswerSettings]):
    """The mean of two cross entropies, of the first and the last token, in each window.

    With `occurrences: all` it is -log of the probability of all right positions together, in one softmax over the
    windows of a document (over each window, if the model has memory): Longformer's OR loss for TriviaQA.

    With `form: marked` the loss of each softmax has three more terms: the cross entropy of the answer's kind, from the
    mean of the windows' logits, and of its marks of sentences, and of paragraphs, the mean binary cross entropy. An
    answer that is a choice has no span to learn. Without `answers` the last two terms are the loss, and a prediction is
    right if all marks of its softmax are.
    """

    name = "answer"
    card = Card("AutoModelForQuestionAnswering", "question-answering", "question-answering")

    @staticmethod
    def check(config: Any, data: AnswerSettings) -> None:
        TaskObjective.check(config, data)
        if not data.answers and not data.is_marked:
            raise UserError(f"task.answers: false leaves nothing to learn with task.form={data.form}; set it to marked")

    @staticmethod
    def configure(config: Any, data: AnswerSettings) -> None:
        TaskObjective.configure(config, data)
        if data.is_marked or hasattr(config, "answer_kinds"):
            config.answer_kinds = 1 + len(data.choices) if data.is_marked else 0

    def predicted(self, rows: Rows) -> int:
        units, has_answer = self._units(rows)
        counted = rows["learns"] if self.data.is_marked else has_answer
        return len({int(unit) for unit, counts in zip(units, counted, strict=True) if counts})

    def _units(self, rows: Rows) -> tuple[Any, Any]:
        """For each row [B], the number of its softmax, and whether it learns and has an answer."""
        units = rows["example"] if self.data.one_softmax else range(len(rows["example"]))
        return units, rows["learns"] & rows["starts"].any(1)

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        units, has_answer = self._units(rows)
        numbers = {int(unit): number for number, unit in enumerate(dict.fromkeys(map(int, units)))}
        unit_of_row = np.array([numbers[int(unit)] for unit in units])
        if not self.data.answers:
            return self._evidence(output, rows, unit_of_row, len(numbers))
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
        spans = 0.5 * torch.where(learns, losses[0] + losses[1], 0).sum()
        if not self.data.is_marked:
            return spans, (right & learns).sum()
        kinds, right_kind = self._kinds(output, rows, unit_of_row, len(numbers))
        marks, _ = self._marks(output, rows, unit_of_row, len(numbers))
        return spans + (kinds + marks), (right_kind & (right | ~learns)).sum()

    def _kinds(self, output: Any, rows: Rows, unit_of_row: NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        """The summed losses of the kinds of all `count` units, and which units learn and have the right kind."""
        windows = np.bincount(unit_of_row[rows["learns"]], minlength=count)
        choice = np.zeros(count, np.int64)
        choice[unit_of_row] = rows["choice"]
        unit, learning, wanted = self.put(unit_of_row), self.put(rows["learns"]), self.put(choice)
        cls = output.kind_logits[:, -1 if self.data.frame == "segments" else 0]
        sums = cls.new_zeros((count, cls.shape[1])).index_add(0, unit, torch.where(learning[:, None], cls, 0))
        logits, learns = sums / self.put(np.maximum(windows, 1))[:, None], self.put(windows > 0)
        losses = torch.where(learns, F.cross_entropy(logits, wanted, reduction="none"), 0)
        return losses.sum(), learns & (logits.argmax(-1) == wanted)

    def _marks(self, output: Any, rows: Rows, unit_of_row: NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        """The summed losses of the marks of all `count` units, and the labels [B, L, 2] of those that learn."""
        unit, learning = self.put(unit_of_row), self.put(rows["learns"])
        labels = torch.where(learning[:, None, None], self.put(rows["marks"]), IGNORED)
        losses = phrase_losses(output.mark_logits, labels).sum(1)
        summed = losses.new_zeros((count, 2)).index_add(0, unit, losses)
        marks = summed.new_zeros((count, 2)).index_add(0, unit, (labels != IGNORED).sum(1).to(summed.dtype))
        return (summed / marks.clamp(min=1)).sum(), labels

    def _evidence(self, output: Any, rows: Rows, unit_of_row: NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        """The summed loss of the marks of all `count` units, and the number of units whose marks are all right."""
        loss, labels = self._marks(output, rows, unit_of_row, count)
        wrong = ((labels != IGNORED) & ((output.mark_logits > 0) != (labels == 1))).sum((1, 2))
        learns = np.bincount(unit_of_row[rows["learns"]], minlength=count) > 0
        mistakes = wrong.new_zeros(count).index_add(0, self.put(unit_of_row), wrong)
        return loss, (self.put(learns) & (mistakes == 0)).sum()

    def outputs(self, output: Any) -> Tensor:
        spans = torch.stack([output.start_logits, output.end_logits], dim=-1)
        return torch.cat([spans, output.mark_logits, output.kind_logits], -1) if self.data.is_marked else spans


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
