"""Masked language modelling over rows that know nothing of each other, with or without next-sentence prediction."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from training.data.loader import Loader, Rows, rows_by_step
from training.data.masking import IGNORED, span_boundaries
from training.objectives.objective import Pass, Task, pieces
from training.parallel.tensor import vocab_argmax, vocab_cross_entropy


class MaskedLMObjective(Task):
    """Minimised: the mean over masked tokens plus the mean over labelled pairs (Devlin et al. 2019, A.2).

    A model with `span_boundary` predicts each masked token a second time, from the tokens around its span; the mean of
    that loss is added (SpanBERT, section 3.2).

    `bits_per_token` is what the Longformer paper calls BPC: the mean of -log2 p(token) over the masked tokens,
    masked_lm_loss / ln 2.
    """

    figures = (
        *("masked_lm_sum", "correct", "predicted"),
        *("next_sentence_sum", "next_sentence_correct", "pairs"),
        *("span_sum", "in_spans"),
        *("rows", "tokens"),
    )
    shown = {
        "acc": "masked_lm_accuracy",
        "nsp": "next_sentence_loss",
        "nsp_acc": "next_sentence_accuracy",
        "span": "span_loss",
    }

    def batches(self, step: int) -> Loader:
        return Loader(rows_by_step(self.source, self.settings.global_batch, self.lanes, step))

    def counts(self, batch: Rows) -> NDArray[np.float64]:
        labels = batch["labels"]
        pairs = batch.get("next_sentence_label", labels[:, 0]) != IGNORED
        return np.array([(labels != IGNORED).sum(), pairs.sum()], np.float64)

    def losses(self, batch: Rows, counts: list[float], step: int) -> Iterator[Pass]:
        micro_batches = pieces(np.arange(len(self.lanes)), self.settings.micro_batch)
        for rows in micro_batches:
            # By the rows, not the rank: the same dropout on any number of data-parallel ranks
            self.seed_dropout(step, self.lanes.start + int(rows[0]))
            loss, figures = self._loss({name: values[rows] for name, values in batch.items()}, *counts)
            yield Pass(loss, figures, rows is micro_batches[-1])

    @torch.no_grad()
    def evaluate(self, limit: int | None) -> Tensor:
        """With a limit: the first rows of pass 0, which come in random order, from all over the text."""
        total = self.zeros()
        rows = len(self.held_out) if limit is None else min(limit * self.settings.global_batch, len(self.held_out))
        share = self.mesh.share(rows)
        for positions in pieces(np.arange(share.start, share.stop), self.settings.micro_batch):
            total += self._loss(self.held_out.rows(positions), 1.0, 1.0)[1]
        return total

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        predicted, pairs = max(totals["predicted"], 1.0), totals["pairs"]
        masked_lm = totals["masked_lm_sum"] / predicted
        next_sentence = totals["next_sentence_sum"] / max(pairs, 1.0)
        of_pairs = {
            "next_sentence_loss": next_sentence,
            "next_sentence_accuracy": totals["next_sentence_correct"] / max(pairs, 1.0),
        }
        span = totals["span_sum"] / predicted
        return {
            "loss": masked_lm,
            "masked_lm_loss": masked_lm,
            "masked_lm_accuracy": totals["correct"] / predicted,
            "bits_per_token": masked_lm / math.log(2),
            **(of_pairs if pairs else {}),
            **({"span_loss": span} if totals["in_spans"] else {}),
        }

    def _loss(self, batch: Rows, all_predicted: float, all_pairs: float) -> tuple[Tensor, Tensor]:
        labels = batch["labels"].reshape(-1)
        positions = np.flatnonzero(labels != IGNORED)  # on the host: a device would have to wait for their number
        names = (name for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch)
        inputs: dict[str, Tensor] = {name: self.put(batch[name]) for name in names}
        if getattr(self.model.config, "span_boundary", False):
            inputs["span_boundaries"] = self.put(span_boundaries(batch["labels"]))
        output = self.model(**inputs, masked_positions=self.put(positions))
        targets = self.put(labels[positions])
        predictions = output.logits if "logits" in output else output.prediction_logits
        masked_lm = vocab_cross_entropy(predictions, targets, self.mesh).sum()
        loss = masked_lm / all_predicted
        figures = self.sums(
            masked_lm_sum=masked_lm.detach(),
            correct=(vocab_argmax(predictions.detach(), self.mesh) == targets).sum(),
            predicted=len(positions),
            rows=len(batch["labels"]),
            tokens=float(batch["attention_mask"].sum()),
        )
        if "span_boundaries" in inputs:
            span = vocab_cross_entropy(output.span_logits, targets, self.mesh).sum()
            loss = loss + span / all_predicted
            figures += self.sums(span_sum=span.detach(), in_spans=len(positions))
        if "next_sentence_label" in batch:
            is_random = self.put(batch["next_sentence_label"])
            logits = output.seq_relationship_logits.float()
            next_sentence = F.cross_entropy(logits, is_random, reduction="sum", ignore_index=IGNORED)
            loss = loss + next_sentence / max(all_pairs, 1.0)
            right = (logits.detach().argmax(-1) == is_random).sum()
            pairs = int((batch["next_sentence_label"] != IGNORED).sum())
            figures += self.sums(next_sentence_sum=next_sentence.detach(), next_sentence_correct=right, pairs=pairs)
        return loss, figures
