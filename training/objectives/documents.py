"""ERNIE-Doc's pretraining: whole documents, segment by segment, in lanes with memory (Ding et al. 2021, section 3)."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.loader import Loader
from reread.training.data.rows.cut_documents import SegmentSettings, reorder_classes
from reread.training.data.rows.lanes import Lanes, first_cursors
from reread.training.data.rows.segments import SegmentDataset, Segments
from reread.training.data.rows.trimming import pieces
from reread.training.objectives.memory import LaneMemory, lane_slice
from reread.training.objectives.objective import Card, Pass, SummedObjective
from reread.training.parallel.layout import Slice

log = logging.getLogger("reread")


class DocumentObjective(SummedObjective[SegmentSettings, SegmentDataset]):
    """Masked language modelling in all segments that learn, and chunk-order prediction in each document's last one.

    In a step some lanes skim while others learn. Skimming rows have a forward pass without an autograd graph, which
    fills their memory. The loss that is minimised is the sum of two means over learning rows. It is too noisy to log,
    since few or no documents end in a step: `loss` is the mean over masked tokens, `reorder_loss` the mean over the
    documents that ended.
    """

    name = "documents"
    card = Card("AutoModelForMaskedLM", "fill-mask", "masked-language-model")
    counted = ("predicted", "reordered")
    figures = (
        "masked_lm_sum",
        "correct",
        "predicted",
        "reorder_sum",
        "reorder_correct",
        "reordered",
        "rows",
        "skimmed",
        "tokens",
    )
    shown = {
        "acc": "masked_lm_accuracy",
        "order": "reorder_loss",
        "order_acc": "reorder_accuracy",
        "rows": "learning_rows",
    }

    ends_in_last_column = True

    @staticmethod
    def check(config: Any, data: SegmentSettings) -> None:
        """Raises `UserError` for retrospective feed without memory, and for too few reordering classes."""
        if data.retrospective and not config.slots:
            raise UserError(
                "train.data.retrospective: documents would be read twice by a model without memory, which learns "
                "nothing from it; set it to false, or give the model a recurrence and a memory_length"
            )
        if config.recurrence == "full":
            raise UserError(
                "train.model.recurrence: full keeps all states of short texts, and documents are of any length; "
                "pretrain with enhanced, which has the same weights, and set model.recurrence=full in fine-tuning"
            )
        if config.reorder_classes < reorder_classes(data.reorder_chunks):
            raise UserError(
                f"train.model.reorder_classes: {config.reorder_classes}, but {data.reorder_chunks} chunks have "
                f"{reorder_classes(data.reorder_chunks)} orders; raise it, or lower train.data.reorder_chunks"
            )

    @staticmethod
    def unreached(data: SegmentSettings) -> tuple[str, ...]:
        """Documents have no second text, and one chunk no order."""
        types = ("token_type_embeddings", "token_type_layer_norm", "token_type", "token_type_bias")
        return types if data.reorder_chunks > 1 else (*types, "pooler", "segment_reorder")

    @staticmethod
    def configure(config: Any, data: SegmentSettings) -> None:
        config.segment_length = data.sequence_length  # the exported model cuts documents as training does

    @cached_property
    def memory(self) -> LaneMemory:  # type: ignore[override]
        """Memory of the training lanes. Evaluation does not allocate it, since it may be large."""
        return LaneMemory(self.model, len(self.lanes))

    @cached_property
    def cursors(self) -> Tensor:
        """Cursors of the training lanes, int64 [lanes, 3]; see `Lanes`."""
        return torch.from_numpy(first_cursors(self.data, self.lanes))

    def batches(self, step: int) -> Loader[Rows]:
        """The rows of the steps from `step` on, which is where the cursors are."""

        def draw() -> Iterator[Rows]:
            lanes: Lanes = self.dataset.lanes(self.total_lanes, self.lanes, self.cursors.numpy().copy())
            for rows, cursors in lanes:
                yield {**rows, "cursors": cursors}

        return Loader(draw())

    def counts(self, batch: Rows) -> dict[str, int]:
        return {
            "predicted": len(self.targets(batch)),
            "reordered": int((batch["reorder_label"] != IGNORED).sum()),
        }

    def targets(self, batch: Rows) -> NDArray[np.int64]:
        labels = batch["labels"][batch["learns"]]
        return labels[labels != IGNORED]

    def losses(self, batch: Rows, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        self.memory.empty(self.put(np.flatnonzero(batch["begins"])))
        for rows in self.micro_batches(batch, np.flatnonzero(~batch["learns"]), self.pass_share):
            self.seed_dropout(step, self.lanes.start + int(rows[0]), 1)
            yield Pass(None, self._skim(self.trimmed_rows(batch, rows), self.put(rows)), False)
        learning = self.micro_batches(batch, np.flatnonzero(batch["learns"]), self.pass_share)
        for rows in learning:
            self.seed_dropout(step, self.lanes.start + int(rows[0]), 0)
            mems = self.memory.of(self.put(rows))
            loss, figures, mems = self._loss(self.trimmed_rows(batch, rows), mems, totals)
            self.memory.keep(self.put(rows), mems)
            yield Pass(loss, figures, rows is learning[-1])
        self.cursors.copy_(torch.from_numpy(batch["cursors"]))

    @torch.no_grad()
    def evaluate(self, held_out: Segments, limit: int | None) -> Tensor:
        """With a limit, evaluate `Segments.sample` with one segment for each row of `limit` global batches."""
        documents, longest = self._sample(held_out, limit)
        lanes = min(self.settings.global_batch, documents)
        share, total = self.mesh.share(lanes), self.zeros()
        for piece in pieces(np.arange(share.start, share.stop), self.settings.micro_batch):
            quota = -(-(documents - piece) // lanes)
            reading = held_out.lanes(lanes, range(piece[0], piece[-1] + 1), stagger=False, longest=longest)
            memory, before = LaneMemory(self.model, len(piece)), reading.cursors
            for batch, cursors in reading:
                unread = np.flatnonzero(before[:, 0] < quota)
                if not len(unread):
                    break
                rows, lanes_here = self.trimmed_rows(batch, unread), self.put(unread)
                memory.empty(self.put(unread[rows["begins"]]))
                _, figures, mems = self._loss(rows, memory.of(lanes_here), {"predicted": 1.0, "reordered": 1.0})
                memory.keep(lanes_here, mems)
                total += figures + self.sums(skimmed=(~rows["learns"]).sum())
                before = cursors
        return total

    @cached_property
    def _samples(self) -> dict[tuple[str, int], tuple[int, int | None]]:
        """Cache of `_sample` by split and limit, since finding a sample reads the length of every document in it."""
        return {}

    def _sample(self, held_out: Segments, limit: int | None) -> tuple[int, int | None]:
        """Number of held-out documents to read, and maximum number of tokens of each; logged on the first call."""
        if limit is None:
            return len(held_out), None
        key = held_out.fingerprint, limit
        if key not in self._samples:
            self._samples[key] = documents, longest = held_out.sample(limit * self.settings.global_batch)
            limited = "" if longest is None else f", at most {longest:,} tokens of each, from a position drawn once"
            log.info("validation reads %d of %d held-out documents%s", documents, len(held_out), limited)
        return self._samples[key]

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        figures: dict[str, float] = {}
        if predicted := totals["predicted"]:
            masked_lm, accuracy = totals["masked_lm_sum"] / predicted, totals["correct"] / predicted
            figures |= {"loss": masked_lm, "masked_lm_loss": masked_lm, "masked_lm_accuracy": accuracy}
        if reordered := totals["reordered"]:
            order, accuracy = totals["reorder_sum"] / reordered, totals["reorder_correct"] / reordered
            figures |= {"reorder_loss": order, "reorder_accuracy": accuracy}
        return figures | {"learning_rows": totals["rows"] / steps, "skimmed_rows": totals["skimmed"] / steps}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        tensors, slices = self.memory.state(self.total_lanes, self.mesh)
        tensors["cursors"] = self.cursors
        slices["cursors"] = lane_slice(self.cursors, 0, self.total_lanes, self.mesh)
        return tensors, slices

    @torch.no_grad()
    def _skim(self, rows: Rows, lanes: Tensor) -> Tensor:
        output = self.model.base_model(**self._inputs(rows), mems=self.memory.of(lanes))
        self.memory.keep(lanes, output.mems)
        return self.sums(skimmed=len(lanes))

    def _inputs(self, rows: Rows) -> dict[str, Any]:
        ids = rows["input_ids"]
        return {
            "input_ids": self.put(ids),
            "attention_mask": self.put(rows["attention_mask"]),
            "gap": self.data.sequence_length - ids.shape[1],
        }

    def _loss(
        self, rows: Rows, mems: tuple[Tensor, ...], counted: Mapping[str, float]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss, figures and new memory of rows; those that do not learn have no labels and are not counted."""
        labels = rows["labels"].reshape(-1)
        positions = np.flatnonzero(labels != IGNORED)  # on the host: a device would have to wait for their number
        output = self.model(**self._inputs(rows), mems=mems, masked_positions=self.put(positions))
        targets, order = self.put(labels[positions]), self.put(rows["reorder_label"])
        losses, hits = self.scored(output.logits, targets)
        masked_lm = losses.sum()
        # Computed for all rows, though few have a label: the head must be used in every forward pass
        logits = output.reorder_logits.float()
        reorder = F.cross_entropy(logits, order, reduction="sum", ignore_index=IGNORED)
        figures = self.sums(
            masked_lm_sum=masked_lm.detach(),
            correct=hits.sum(),
            predicted=len(positions),
            reorder_sum=reorder.detach(),
            reorder_correct=(logits.detach().argmax(-1) == order).sum(),
            reordered=int((rows["reorder_label"] != IGNORED).sum()),
            rows=int(rows["learns"].sum()),
            tokens=float(rows["attention_mask"][rows["learns"]].sum()),
        )
        loss = masked_lm / counted["predicted"] + reorder / max(counted["reordered"], 1.0)
        return loss, figures, output.mems
