"""A vector for a text of any length: the mean of the last layer's states of its tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from reread.training.data.batch import Rows
from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings
from reread.training.data.tasks.dataset import Outputs
from reread.training.models.blocks import at_least_float32
from reread.training.objectives.task import TaskObjective


class EmbeddingDataset(ClassifyDataset):
    """Texts, or pairs, whose windows stand side by side, so that each token is in one of them."""

    def keep(self, outputs: dict[tuple[int, int], NDArray[np.float64]], row: Any, output: NDArray[np.float64]) -> None:
        """Add up the sums of windows, since a book has thousands."""
        outputs[0, 0] = output + outputs.get((0, 0), 0.0)

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The mean [D] from the sum of the states of all windows' tokens and their number, [D + 1]."""
        total = outputs[0, 0]
        return total[:-1] / max(total[-1], 1.0)  # type: ignore[no-any-return]


class EmbeddingObjective(TaskObjective[ClassifySettings]):
    """The encoder alone; nothing is learned."""

    name = "embedding"

    def __init__(self, model: PreTrainedModel, *others: Any) -> None:
        super().__init__(model.base_model, *others)  # type: ignore[arg-type]
        self._special = torch.tensor(sorted(self.dataset.special.values()), device=self.mesh.device)

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self._text = (inputs["attention_mask"] != 0) & ~torch.isin(inputs["input_ids"], self._special)
        if self.data.frame == "segments":  # the last token stands where it stood in pretraining, however short the row
            inputs["gap"] = self.data.sequence_length - inputs["input_ids"].shape[1]
        return inputs

    def outputs(self, output: Any) -> Tensor:
        """[B, D + 1]: the sum of the states of a row's tokens without special ones, and their number."""
        text = self._text[..., None]
        states = at_least_float32(output.last_hidden_state)
        return torch.cat([(states * text).sum(1), text.sum(1).to(states.dtype)], dim=-1)

    def predicted(self, rows: Rows) -> int:
        raise NotImplementedError

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def vectors(found: Mapping[int, NDArray[np.float64]]) -> NDArray[np.float32]:
    """[n, D] from the vector of each text by its number, in order."""
    return np.stack([found[number] for number in sorted(found)]).astype(np.float32)
