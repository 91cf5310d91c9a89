"""Language modelling over unbroken text, in lanes with memory (Dai et al. 2019; ERNIE-Doc, section 4.1)."""

import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reread.training.data.batch import IGNORED, Rows
from reread.training.data.loader import Loader
from reread.training.data.rows.stream import Stream, StreamDataset, StreamSettings
from reread.training.data.rows.trimming import pieces
from reread.training.objectives.memory import LaneMemory, RecurrentModel
from reread.training.objectives.objective import Card, Pass, SummedObjective
from reread.training.parallel.layout import Slice

log = logging.getLogger("reread")


class LanguageModel(RecurrentModel, Protocol):
    """A model with memory that predicts the next token."""

    def __call__(self, *inputs: Any, **named: Any) -> Any: ...

    memory_in_tokens: bool
    """Whether the length of the memory is a number of tokens that an evaluation may choose."""

    def predict_next(
        self,
        input_ids: Tensor,
        labels: Tensor,
        mems: tuple[Tensor, ...] | None,
        *,
        sentence_ends: Tensor,
        paragraph_ends: Tensor,
        memory_length: int | None,
    ) -> Any:
        """Losses or logits at the next tokens, `labels` [B, L], and the new memory."""


class CausalLMObjective(SummedObjective[StreamSettings, StreamDataset]):
    """The loss is the mean negative log-likelihood of the next token. Memory continues across document borders.

    Perplexity is per word: summed over tokens, divided by the number of tokens that begin a word. Where the corpus
    stores <eos> at line ends it counts as a word, as in WikiText-103's figures; blank lines have none, so figures are
    comparable with Segatron's, and a little higher than Transformer-XL's, which counts the easy <eos> of blank lines.
    `bits_per_token` is the mean of -log2 p(token): where tokens are bytes, what papers call bits per character.
    """

    name = "causal_lm"
    card = Card("AutoModelForCausalLM", "text-generation", "causal-language-model")
    counted = ("predicted",)
    figures = ("nll_sum", "predicted", "words", "rows", "tokens")
    shown = {"ppl": "perplexity", "bits": "bits_per_token"}

    model: LanguageModel

    @cached_property
    def memory(self) -> LaneMemory:  # type: ignore[override]
        """Memory of the training lanes; evaluation does not allocate it."""
        return LaneMemory(self.model, len(self.lanes))

    def batches(self, step: int) -> Loader[Rows]:
        lanes = np.arange(self.lanes.start, self.lanes.stop, dtype=np.int64)
        length = self.data.sequence_length

        def draw(step: int) -> Iterator[Rows]:
            while True:
                yield self.dataset.rows(self.dataset.start(lanes, self.total_lanes, step, length), length)
                step += 1

        return Loader(draw(step + self.first_position // self.settings.global_batch))

    @property
    def cuts_by_length(self) -> bool:
        return False  # every row is full

    def counts(self, batch: Rows) -> dict[str, int]:
        return {"predicted": batch["labels"].size}

    def losses(self, batch: Rows, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        micro_batches = pieces(np.arange(len(self.lanes)), self.settings.micro_batch)
        for rows in micro_batches:
            self.seed_dropout(step, self.lanes.start + int(rows[0]))
            lanes = self.put(rows)
            micro_batch = {name: values[rows] for name, values in batch.items()}
            total, figures, mems = self._loss(micro_batch, self.memory.of(lanes))
            self.memory.keep(lanes, mems)
            yield Pass(total / totals["predicted"], figures, rows is micro_batches[-1])

    @torch.no_grad()
    def evaluate(self, held_out: Stream, limit: int | None) -> Tensor:
        """Each of `evaluation_lanes` reads its share of the text, with the recipe's evaluation length and memory; with
        `evaluation_context` sequences that overlap are read.

        With a limit there are `global_batch` lanes, and `limit` steps of each count. If the share is long enough, these
        are steps after `evaluation_memory` tokens, since hardly any token of a whole text is predicted without memory.
        """
        if self.data.evaluation_context:
            return self._evaluate_overlapping(held_out, limit)
        data, total = self.data, self.zeros()
        lanes = data.evaluation_lanes if limit is None else self.settings.global_batch
        lanes = max(1, min(lanes, len(held_out) // data.evaluation_length))
        steps = held_out.evaluation_steps(lanes, data.evaluation_length)
        first, last = 0, steps
        if limit is not None:
            first = max(0, min(-(-data.evaluation_memory // data.evaluation_length), steps - limit))
            last = min(first + limit, steps)
        elif self.mesh.rank == 0:
            text = (
                "1 lane reads all text, as for the figures of papers"
                if lanes == 1
                else f"{lanes} lanes, each of which begins without memory: papers have data.evaluation_lanes=1"
            )
            memory = f"memory of {data.evaluation_memory} tokens; " if self.model.memory_in_tokens else ""
            self._log_evaluation(held_out, memory + text)
        share = self.mesh.share(lanes)
        for piece in pieces(np.arange(share.start, share.stop), self.settings.micro_batch):
            mems = None
            for step in range(last):
                rows = held_out.evaluation_rows(piece, lanes, step, data.evaluation_length)
                _, figures, mems = self._loss(rows, mems, data.evaluation_memory)
                if step >= first:
                    total += figures
        return total

    def _evaluate_overlapping(self, held_out: Stream, limit: int | None) -> Tensor:
        """Sequences of `evaluation_context` + `evaluation_length` tokens, the last of which count. All processes read
        some. With a limit, `limit` steps of `global_batch` of them, from all over the text."""
        data, total = self.data, self.zeros()
        length, context = data.evaluation_length, data.evaluation_context
        count = -(-(len(held_out) - 1) // length)
        some = count if limit is None else min(count, limit * self.settings.global_batch)
        numbers = np.arange(some) * count // some
        if limit is None and self.mesh.rank == 0:
            self._log_evaluation(
                held_out, f"sequences of {context + length:,} tokens, the last {length:,} of which count"
            )
        share = self.mesh.share(some)
        for piece in pieces(numbers[share.start : share.stop], self.settings.micro_batch):
            rows = held_out.overlapping_rows(piece, length, context)
            total += self._loss(rows, None, data.evaluation_memory)[1]
        return total

    @staticmethod
    def _log_evaluation(held_out: Stream, text: str) -> None:
        ends = "an <eos> a line, none for blank lines" if "eos" in held_out.special else "no <eos>"
        log.info("perplexity is per word (%s); %s", ends, text)
        if held_out.is_bytes:
            log.info("each byte is a token, so bits_per_token is what papers call bits per character")

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        predicted, words = max(totals["predicted"], 1.0), max(totals["words"], 1.0)
        return {
            "loss": totals["nll_sum"] / predicted,
            "perplexity": _exp(totals["nll_sum"] / words),
            "token_perplexity": _exp(totals["nll_sum"] / predicted),
            "bits_per_token": totals["nll_sum"] / predicted / math.log(2),
        }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        return self.memory.state(self.total_lanes, self.mesh)

    def _loss(
        self, rows: Rows, mems: tuple[Tensor, ...] | None, memory_length: int | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Summed loss, figures and new memory."""
        labels = self.put(rows["labels"])
        output = self.model.predict_next(
            self.put(rows["input_ids"]),
            labels,
            mems,
            sentence_ends=self.put(rows["sentence_ends"]),
            paragraph_ends=self.put(rows["paragraph_ends"]),
            memory_length=memory_length,
        )
        if output.losses is None:
            losses = self.token_losses(output.logits, labels.flatten().clamp(min=0))
            total = (losses * (labels.flatten() != IGNORED)).sum()
        else:
            total = output.losses.sum()
        figures = self.sums(
            nll_sum=total.detach(),
            predicted=int((rows["labels"] != IGNORED).sum()),
            words=int(rows["begins_word"].sum()),
            rows=len(rows["labels"]),
            tokens=rows["input_ids"].size,
        )
        return total, figures, output.mems


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
