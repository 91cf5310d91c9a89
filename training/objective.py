"""What a pretraining step minimises: masked language modelling, with or without next-sentence prediction."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from training.parallel.mesh import Mesh
from training.parallel.tensor import vocab_argmax, vocab_cross_entropy

IGNORE = -100
FIGURES = ("masked_lm_sum", "correct", "predicted", "next_sentence_sum", "next_sentence_correct", "rows", "tokens")
"""What `Objective.__call__` sums up for the log, in this order; sums add over micro-batches and ranks."""


@dataclass(frozen=True)
class Counts:
    """Over the whole global batch, so that the loss is the same however the batch is split."""

    predicted: float
    rows: float


def local_counts(batch: dict[str, NDArray[np.int32]]) -> NDArray[np.float64]:
    """[predicted tokens, rows, real tokens] of the rows this rank holds."""
    labels = batch["labels"]
    return np.array([(labels != IGNORE).sum(), len(labels), batch["attention_mask"].sum()], np.float64)


def masked_language_model(
    model: nn.Module, batch: dict[str, NDArray[np.int32]], counts: Counts, mesh: Mesh
) -> tuple[Tensor, Tensor]:
    """Loss of one micro-batch and its figures.

    The loss is this micro-batch's share of (sum of masked-token losses / predicted tokens of the global batch) +
    (sum of next-sentence losses / rows of the global batch), as BERT adds the two means (Devlin et al. 2019, A.2);
    summed over micro-batches and data-parallel ranks it is the global batch's loss.

    Returns a scalar that can be differentiated, and float64 `FIGURES` [7] without gradient.
    """
    labels = batch["labels"].reshape(-1)
    positions = np.flatnonzero(labels != IGNORE)  # on the host: a device would have to wait for their number
    output = model(
        input_ids=_to(batch["input_ids"], mesh),
        attention_mask=_to(batch["attention_mask"], mesh),
        token_type_ids=_to(batch["token_type_ids"], mesh),
        masked_positions=_to(positions, mesh),
    )
    targets = _to(labels[positions], mesh)
    masked_lm = vocab_cross_entropy(output.prediction_logits, targets, mesh).sum()
    loss = masked_lm / counts.predicted
    figures = torch.zeros(len(FIGURES), dtype=torch.float64, device=mesh.device)
    figures[0] = masked_lm.detach()
    figures[1] = (vocab_argmax(output.prediction_logits.detach(), mesh) == targets).sum()
    figures[2] = len(positions)
    if "next_sentence_label" in batch:
        is_random = _to(batch["next_sentence_label"], mesh)
        logits = output.seq_relationship_logits.float()
        next_sentence = F.cross_entropy(logits, is_random, reduction="sum")
        loss = loss + next_sentence / counts.rows
        figures[3] = next_sentence.detach()
        figures[4] = (logits.detach().argmax(-1) == is_random).sum()
    figures[5] = len(batch["labels"])
    figures[6] = float(batch["attention_mask"].sum())
    return loss, figures


def _to(array: NDArray[np.int32] | NDArray[np.int64], mesh: Mesh) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(mesh.device, non_blocking=True)
