"""Masked language modelling over independent rows, with or without next-sentence prediction."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.masking.masking import span_boundaries
from reread.training.data.rows.packed import borders
from reread.training.objectives.objective import Card
from reread.training.objectives.rows import RowObjective


class MaskedLMObjective(RowObjective):
    """The loss is the mean over masked tokens plus the mean over labelled pairs (Devlin et al. 2019, A.2).

    A model with `span_boundary` predicts each masked token a second time, from the tokens around its span; the mean of
    that loss is added (SpanBERT, section 3.2).

    `bits_per_token` is the Longformer paper's BPC: the mean of -log2 p(token) over the masked tokens,
    masked_lm_loss / ln 2.
    """

    name = "masked_lm"
    card = Card("AutoModelForMaskedLM", "fill-mask", "masked-language-model")
    counted = ("predicted", "pairs")
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

    @staticmethod
    def unreached(data: Any) -> tuple[str, ...]:
        return () if getattr(data, "next_sentence", False) else ("pooler", "seq_relationship")

    def counts(self, batch: Rows) -> dict[str, int]:
        pairs = int((batch["next_sentence_label"] != IGNORED).sum()) if "next_sentence_label" in batch else 0
        return {"predicted": len(self.targets(batch)), "pairs": pairs}

    def targets(self, batch: Rows) -> NDArray[np.int64]:
        return batch["labels"][batch["labels"] != IGNORED]

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

    def loss(self, batch: Rows, counted: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        # The model's inputs, and its logits at the masked positions
        labels = batch["labels"].reshape(-1)
        positions = np.flatnonzero(labels != IGNORED)  # on the host: a device would have to wait for their number
        names = ["input_ids", "token_type_ids", "documents"]
        inputs: dict[str, Tensor] = {name: self.put(batch[name]) for name in names if name in batch}
        if "documents" in batch and getattr(self.model, "by_lengths", False):
            inputs["borders"] = self.put(borders(batch["documents"]))
        tokens = batch["attention_mask"] != 0  # of booleans, whose values Longformer need not read
        if not tokens.all():  # kernels without a mask are faster, and more of them are fused
            inputs["attention_mask"] = self.put(tokens)
        if getattr(self.model.config, "span_boundary", False):
            inputs["span_boundaries"] = self.put(span_boundaries(batch["labels"]))
        output = self.model(**inputs, masked_positions=self.put(positions))
        # The loss of the masked tokens
        targets = self.put(labels[positions])
        losses, hits = self.scored(output.logits, targets)
        masked_lm = losses.sum()
        loss = masked_lm / counted["predicted"]
        figures = self.sums(
            masked_lm_sum=masked_lm.detach(),
            correct=hits.sum(),
            predicted=len(positions),
            rows=len(batch["labels"]),
            tokens=float(batch["attention_mask"].sum()),
        )
        # The losses that only some models and data have
        if "span_boundaries" in inputs:
            span = self.token_losses(output.span_logits, targets).sum()
            loss = loss + span / counted["predicted"]
            figures += self.sums(span_sum=span.detach(), in_spans=len(positions))
        if "next_sentence_label" in batch:
            is_random = self.put(batch["next_sentence_label"])
            logits = output.seq_relationship_logits.float()
            next_sentence = F.cross_entropy(logits, is_random, reduction="sum", ignore_index=IGNORED)
            loss = loss + next_sentence / max(counted["pairs"], 1.0)
            right = (logits.detach().argmax(-1) == is_random).sum()
            pairs = self.counts(batch)["pairs"]
            figures += self.sums(next_sentence_sum=next_sentence.detach(), next_sentence_correct=right, pairs=pairs)
        return loss, figures
