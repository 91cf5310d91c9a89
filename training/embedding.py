"""A vector for a text of any length, by a model that was not trained for it, too."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.data.tasks.classify import ClassifyDataset
from reread.training.data.tasks.dataset import Outputs
from reread.training.data.tasks.embed import vector_of
from reread.training.objectives.embed import EmbedObjective
from reread.training.objectives.task import TaskObjective, reading_of

_PIECE = 1 << 16
"""Tokens that are compared together."""


class EmbeddingDataset(ClassifyDataset):
    """Texts, or pairs, whose windows stand side by side, so that each token is in one of them."""

    def keep(self, outputs: dict[tuple[int, int], NDArray[np.float64]], row: Any, output: NDArray[np.float64]) -> None:
        """Add up the sums of windows, since a book has thousands."""
        outputs[0, 0] = output + outputs.get((0, 0), 0.0)

    def decode(self, example: int, outputs: Outputs) -> Any:
        """Zeros for a text of which the tokenizer knows nothing."""
        document, found, unknown = self.documents[example], vector_of(outputs), self.special.get("unk")
        parts = [document.ids, *(part for option in document.options for part in option)]
        pieces = [part[begin : begin + _PIECE] for part in parts for begin in range(0, len(part), _PIECE)]
        return np.zeros_like(found) if pieces and all((one == unknown).all() for one in pieces) else found


class LearnedEmbedding(EmbedObjective):
    """Of a model that learned vectors; nothing is learned here."""

    name = "embedding"

    def __init__(self, model: PreTrainedModel, *others: Any) -> None:
        super().__init__(model, *others)
        config: Any = model.config  # by which a class of ours pools and cuts
        config.reading = reading_of(self.data)
        config.task = {**(getattr(config, "task", None) or {}), "pooling": self.pooling}

    predict = TaskObjective.predict


class EncoderEmbedding(EmbedObjective):
    """Of the encoder of a model that learned something else; nothing is learned here."""

    name = "embedding"

    def __init__(self, model: PreTrainedModel, *others: Any) -> None:
        """Raises `UserError` for a model whose last layer is that of a decoder."""
        if model.config.is_encoder_decoder:
            raise UserError(f"{model.config.model_type} writes texts, and makes no vector of one; give another model")
        super().__init__(model.base_model, *others)

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.data.frame == "segments":  # the last token stands where it stood in pretraining, however short the row
            inputs["gap"] = self.data.sequence_length - inputs["input_ids"].shape[1]
        return super().inputs(inputs)

    predict = TaskObjective.predict


def vectors(found: Mapping[int, NDArray[np.float32]]) -> NDArray[np.float32]:
    """[n, D] from the vector of each text by its number, in order."""
    return np.stack([found[number] for number in sorted(found)])
