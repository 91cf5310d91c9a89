"""Fine-tuning: the clusters of mentions of a document."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.training.data.batch import Rows
from reread.training.data.tasks.coreference import CoreferenceSettings
from reread.training.data.tasks.dataset import Outputs
from reread.training.models.coreference import link_losses
from reread.training.objectives.objective import Card
from reread.training.objectives.task import Passes, TaskObjective, WindowReader


class CoreferenceObjective(TaskObjective[CoreferenceSettings]):
    """-log of the probability of all right antecedents of a span together, a mean over the spans that are kept.

    The states of all windows of a document are scored together. Where a model has memory, they come from several
    forward passes, and the last pass of a group has the loss of its documents.
    """

    name = "coreference"
    has_global_tokens = False
    card = Card("AutoModelForNextSentencePrediction", "token-classification", "coreference-resolution")

    @staticmethod
    def configure(config: Any, data: CoreferenceSettings) -> None:
        TaskObjective.configure(config, data)
        names = ("span_words", "spans_per_word", "antecedents", "head_size")
        config.coreference = {name: getattr(data, name) for name in names}

    def predicted(self, rows: Rows) -> int:
        return int(rows["kept"].sum())

    def largest(self) -> Passes:
        if self.data.frame != "segments":
            return super().largest()
        first = next(iter(self.dataset.longest(self.settings.micro_batch, self.settings.global_batch)))
        return [(0, rows) for rows in first]  # whose states are kept up to the last

    @cached_property
    def held(self) -> dict[int, tuple[list[Tensor], list[Tensor]]]:
        """Of the documents of this pass, or of the group with memory, the states of words and the mentions."""
        return {}

    def _hold(self, output: Any, rows: Rows) -> None:
        key = "lane" if "lane" in rows else "example"
        for row in np.flatnonzero(rows["learns"]).tolist():
            states, mentions = self.held.setdefault(int(rows[key][row]), ([], []))
            words = self.put(np.flatnonzero(rows["words"][row]))
            states.append(output.logits[row].index_select(0, words))
            there = rows["mentions"][row, :, 2] >= 0
            mentions.append(self.put(rows["mentions"][row][there]))

    def skim(self, reader: WindowReader, rows: Rows) -> None:
        if not rows["learns"].any():
            super().skim(reader, rows)
            return
        self._hold(reader.forward(rows), rows)

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        self._hold(output, rows)
        found = []
        for parts, mentions in self.held.values():
            states = torch.cat(parts)
            if len(states):
                found.append(link_losses(self.model.links(states), torch.cat(mentions)))
        self.held = {}
        return torch.cat([losses for losses, _ in found]).sum(), torch.cat([right for _, right in found]).sum()

    def losses(self, batch: Passes, totals: Any, step: int) -> Any:
        self.held = {}
        return super().losses(batch, totals, step)

    def outputs(self, output: Any) -> Tensor:
        return output.logits  # type: ignore[no-any-return]

    def decoded(self, dataset: Any, example: int, outputs: Outputs) -> Any:
        return dataset.decode(example, outputs, self._antecedents)

    def _antecedents(self, states: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        weight = next(self.model.coreference.parameters())
        links = self.model.links(torch.from_numpy(states).to(weight.device, weight.dtype))
        best = links.scores.argmax(1, keepdim=True)
        none = torch.full_like(best, -1)
        chosen = torch.cat([none, links.antecedents], 1).gather(1, best)[:, 0]
        return links.spans.cpu().numpy(), chosen.cpu().numpy()
