"""Questions in a corpus, and the objectives that ask them.

A corpus stores a question as one id that holds its answer and a group, such as its distance from the answer. The model
is shown `ASKED` instead and has to predict `VALUES` + answer, so no answer is ever its input. Nothing else is
predicted. There is an objective for each kind of data; `register` adds them as docs/extending.md describes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.models import model_spec
from reread.training.objectives import OBJECTIVES
from reread.training.objectives.causal_lm import CausalLMObjective
from reread.training.objectives.documents import DocumentObjective
from reread.training.objectives.masked_lm import MaskedLMObjective

ANSWERS, GROUPS = 8, 8
ASKED = 5
VALUES = 6
QUESTIONS = VALUES + ANSWERS
FREE = QUESTIONS + ANSWERS * GROUPS
"""The first id that is neither a special token, a value nor a question."""
CHANCE = 1 / ANSWERS


def question(answer: Any, group: Any) -> Any:
    """The id of a question, from ints or arrays."""
    return QUESTIONS + answer * GROUPS + group


def shown(ids: NDArray[Any]) -> NDArray[Any]:
    """`ids` without the answers."""
    return np.where(_is_question(ids), ASKED, ids)


def _is_question(ids: NDArray[Any]) -> NDArray[np.bool_]:
    return (ids >= QUESTIONS) & (ids < FREE)


class Asked:
    """What the objectives have in common: counts, loss and figures of the questions in rows."""

    counted = ("predicted",)
    figures = (
        *("loss_sum", "predicted", "rows", "skimmed", "tokens"),
        *(f"{name}_{group}" for group in range(GROUPS) for name in ("asked", "right")),
    )
    shown = {"acc": "accuracy"}

    def counts(self, batch: Rows) -> dict[str, int]:
        return {"predicted": int(_questions(batch).sum())}

    def answered(self, rows: Rows, logits: Tensor, places: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Summed loss, and figures, of the questions at flat `places` [n]; logits [n, V]."""
        answers, groups = np.divmod(rows["input_ids"].reshape(-1)[places] - QUESTIONS, GROUPS)
        targets = self.put(VALUES + answers)  # type: ignore[attr-defined]
        loss = F.cross_entropy(logits, targets, reduction="sum")
        right = (logits.detach().argmax(-1) == targets).cpu().numpy()
        learns = rows.get("learns", np.ones(len(rows["input_ids"]), bool))
        sums: dict[str, Any] = {"loss_sum": loss.detach(), "predicted": len(places), "rows": int(learns.sum())}
        sums["tokens"] = rows["input_ids"][learns].size
        for group in range(GROUPS):
            sums |= {f"asked_{group}": (groups == group).sum(), f"right_{group}": right[groups == group].sum()}
        return loss, self.sums(**sums)  # type: ignore[attr-defined]

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        asked = [totals[f"asked_{group}"] for group in range(GROUPS)]
        right = [totals[f"right_{group}"] for group in range(GROUPS)]
        figures = {"loss": totals["loss_sum"] / max(sum(asked), 1.0), "accuracy": sum(right) / max(sum(asked), 1.0)}
        return figures | {f"accuracy_{group}": right[group] / asked[group] for group in range(GROUPS) if asked[group]}


def _questions(rows: Rows) -> NDArray[np.bool_]:
    """Where rows [B, L] that learn have questions."""
    found = _is_question(rows["input_ids"])
    return found & rows["learns"][:, None] if "learns" in rows else found


class AskedStream(Asked, CausalLMObjective):
    """Questions in unbroken text. Logits are computed at every place, as the head has no choice of places."""

    name = "asked_stream"
    kinds = ("stream",)

    def _loss(
        self, rows: Rows, mems: tuple[Tensor, ...] | None, memory_length: int | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        output = self.model(self.put(shown(rows["input_ids"])), mems, mem_len=memory_length)
        places = np.flatnonzero(_questions(rows))
        return *self.answered(rows, output.logits.flatten(0, 1)[self.put(places)], places), output.mems


class AskedDocuments(Asked, DocumentObjective):
    """Questions in documents that are read segment by segment, perhaps twice."""

    name = "asked_documents"
    kinds = ("segments",)

    def _inputs(self, rows: Rows) -> dict[str, Any]:
        return super()._inputs({**rows, "input_ids": shown(rows["input_ids"])})

    def _loss(
        self, rows: Rows, mems: tuple[Tensor, ...], counted: Mapping[str, float]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        places = np.flatnonzero(_questions(rows))
        output = self.model(**self._inputs(rows), mems=mems, masked_positions=self.put(places))
        loss, figures = self.answered(rows, output.logits, places)
        return loss / max(counted["predicted"], 1.0), figures, output.mems


class AskedRows(Asked, MaskedLMObjective):
    """Questions in independent rows, which are full. A question's group is what it asks for, and is shown: group g
    as the token `FREE` + g."""

    name = "asked_rows"
    kinds = ("rows",)

    def loss(self, batch: Rows, counted: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        places, ids = np.flatnonzero(_questions(batch)), batch["input_ids"]
        asked = np.where(_is_question(ids), FREE + (ids - QUESTIONS) % GROUPS, ids)
        output = self.model(self.put(asked), masked_positions=self.put(places))
        loss, figures = self.answered(batch, output.logits, places)
        return loss / max(counted["predicted"], 1.0), figures


class DocumentsWithoutOrder(DocumentObjective):
    """ERNIE-Doc's pretraining on the same shuffled text without the loss of its order."""

    name = "documents_without_order"
    kinds = ("segments",)

    def counts(self, batch: Rows) -> dict[str, int]:
        return {**super().counts(batch), "reordered": 0}

    def _loss(
        self, rows: Rows, mems: tuple[Tensor, ...], counted: Mapping[str, float]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        unlabelled = np.full_like(rows["reorder_label"], IGNORED)
        return super()._loss({**rows, "reorder_label": unlabelled}, mems, counted)


def register() -> None:
    """Add the objectives to the trainer's tables: the heads are those of each model's own pretraining."""
    added: tuple[tuple[Any, str, str], ...] = (
        (AskedStream, "transformer_xl", "causal_lm"),
        (AskedDocuments, "ernie_doc", "documents"),
        (AskedRows, "ran", "masked_lm"),
        (DocumentsWithoutOrder, "ernie_doc", "documents"),
    )
    for objective, model, head in added:
        OBJECTIVES[objective.name] = objective
        heads: Any = model_spec(model).heads
        heads[objective.name] = heads[head]
