"""Vectors of texts, learned by contrast; and computed, by `reread embed`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.data.batch import Rows
from reread.training.data.tasks.embed import EmbedSettings
from reread.training.models.vectors import pooled, pooled_sums
from reread.training.objectives.objective import Card, Pass
from reread.training.objectives.task import Passes, TaskObjective, WindowReader


class EmbedObjective(TaskObjective[EmbedSettings]):
    """InfoNCE (van den Oord et al. 2018, eq. 4): cross entropy of a query's positive among all positives and hard
    negatives of the global batch, from cosines divided by the temperature.

    A step reads all its texts, gathers their vectors from all data-parallel ranks, and computes the loss and its
    gradient by them; then it reads each forward pass again, with the same dropout, and hands that gradient on (Gao et
    al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"). So the loss is that of the
    global batch, whatever `micro_batch` and however many ranks, and takes the memory of one pass. A rank whose texts
    are a single pass reads them once."""

    name = "embed"
    card = Card("AutoModel", "sentence-similarity", "sentence-transformers")
    has_global_tokens = False  # as the encoder alone, which other programs load

    def __init__(self, *given: Any, **datasets: Any) -> None:
        super().__init__(*given, **datasets)
        if self.pooling == "cls" and self.data.frame == "bare":
            raise UserError(
                "task.pooling: cls, but this model reads texts without [CLS]; leave it out, or set it to mean"
            )

    @property
    def pooling(self) -> str:
        return getattr(self.data, "pooling", None) or "mean"

    @staticmethod
    def unreached(data: EmbedSettings) -> tuple[str, ...]:
        """transformers' encoders keep the pooler that they begin with, behind which nothing is learned."""
        return ("pooler",)

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self._mask = inputs["attention_mask"]
        return inputs

    def outputs(self, output: Any) -> Tensor:
        """`pooled_sums` [B, D + 1] of rows."""
        sums = getattr(output, "sums", None)  # of a class of ours
        if sums is None:
            sums = pooled_sums(output.last_hidden_state, self._mask, self.pooling, self.data.frame == "segments")
        return sums  # type: ignore[no-any-return]

    def predicted(self, rows: Rows) -> int:
        """The number of rows that are part of a vector."""
        return int(rows["learns"].sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("the loss is that of a step, not of a pass")

    def counts(self, batch: Passes) -> dict[str, int]:
        """Queries, which are the first texts of a step."""
        return {"predicted": len(self._queries(batch))}

    @staticmethod
    def _queries(batch: Passes) -> NDArray[np.int64]:
        """The numbers of this rank's queries."""
        texts = [rows["example"][rows["learns"] & (rows["example"] < rows["count"])] for _, rows in batch]
        return np.unique(np.concatenate([np.empty(0, np.int64), *texts]))

    def losses(self, batch: Passes, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        # The vectors of all texts, and the gradient of the loss by them
        kept, mine = {}, []
        keys, count = batch[0][1]["keys"], int(batch[0][1]["count"][0])
        learning = [number for number, (_, rows) in enumerate(batch) if rows["learns"].any()]
        for number, rows, sums in self._read(batch, step):
            if sums is not None:
                mine.append((self._texts(rows), self._learned(sums, rows).detach()))
                kept = {number: sums} if len(learning) == 1 else {}
        width = mine[0][1].shape[1]
        gathered = mine[0][1].new_zeros(len(keys), width)
        for texts, sums in mine:
            gathered.index_add_(0, texts, sums)
        if self.mesh.data_size > 1:
            dist.all_reduce(gathered, group=self.mesh.data_group)  # each text is on one rank
        gathered.requires_grad_()
        losses, right = self.contrast(pooled(gathered), count, self.put(keys))
        (gradient,) = torch.autograd.grad(losses.sum() / totals["predicted"], gathered)
        # Each pass again, for the weights' gradients
        queries = self.put(self._queries(batch))
        for number, rows, sums in self._read(batch, step, kept):
            tokens = {"tokens": float(rows["attention_mask"].sum())}
            if sums is None:
                yield Pass(None, self.sums(**tokens, skimmed=len(rows["learns"])), False)
                continue
            is_last = number == learning[-1]
            figures = self.sums(**tokens, rows=len(rows["learns"]))
            if is_last:
                of_step = losses.detach()[queries].sum(), right[queries].sum(), len(queries)
                figures += self.sums(loss_sum=of_step[0], correct=of_step[1], predicted=of_step[2])
            yield Pass((self._learned(sums, rows) * gradient[self._texts(rows)]).sum(), figures, is_last)

    def _read(
        self, batch: Passes, step: int, kept: Mapping[int, Tensor] = {}
    ) -> Iterator[tuple[int, Rows, Tensor | None]]:
        """Each pass with its number and its `outputs`, None if it is for memory alone; where some are `kept`, which are
        all, nothing is computed again."""
        reader = WindowReader(self)
        for number, (group, rows) in enumerate(batch):
            if kept:
                yield number, rows, kept.get(number)
                continue
            self.seed_dropout(step, group, number - reader.begin(group, number))
            if rows["learns"].any():
                yield number, rows, self.outputs(reader.forward(rows))
            else:
                self.skim(reader, rows)
                yield number, rows, None

    def _texts(self, rows: Rows) -> Tensor:
        return self.put(rows["example"][rows["learns"]])

    def _learned(self, sums: Tensor, rows: Rows) -> Tensor:
        return sums if rows["learns"].all() else sums[self.put(np.flatnonzero(rows["learns"]))]

    def contrast(self, vectors: Tensor, count: int, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each query [n], and whether its positive is the nearest, from the vectors [texts, D] of n =
        `count` queries, of a positive of each, and of negatives. Texts with the same of `keys` [texts] are the same:
        another copy of a query's positive, and a positive of another copy of the query, are no negatives."""
        queries, candidates = keys[:count], keys[count:]
        same = candidates[None, :] == candidates[:count, None]
        same[:, :count] |= queries[None, :] == queries[:, None]
        own = torch.arange(count, device=keys.device)
        same[own, own] = False
        sizes = list(dict.fromkeys([vectors.shape[1], *self.data.sizes]))
        losses: list[Tensor] = []
        rights: list[Tensor] = []
        for size in sizes:
            units = F.normalize(vectors[:, :size], dim=-1)
            scores = (units[:count] @ units[count:].T / self.data.temperature).masked_fill(same, -torch.inf)
            loss = F.cross_entropy(scores, own, reduction="none")
            if self.data.symmetric:
                loss = (loss + F.cross_entropy(scores[:, :count].T, own, reduction="none")) / 2
            losses.append(loss)
            rights.append(scores.argmax(-1) == own)
        return torch.stack(losses).mean(0), rights[0]

    @staticmethod
    def check(config: Any, data: EmbedSettings) -> None:
        TaskObjective.check(config, data)
        if longer := next((size for size in data.sizes if size > config.hidden_size), None):
            raise UserError(f"task.sizes: {longer} numbers, but this model's vectors have {config.hidden_size}")
        if data.pooling == "cls" and data.frame == "bare":
            raise UserError(
                "task.pooling: cls, but this model reads texts without [CLS]; leave it out, or set it to mean"
            )

    def predict(self, dataset: Any, examples: NDArray[np.int64] | None = None) -> dict[int, NDArray[np.float32]]:
        """The vectors of the texts of each example, [texts, D], on all ranks (collective). A text is read once."""
        numbers = range(len(dataset)) if examples is None else examples.tolist()
        texts = {number: dataset.first_with[dataset.texts_of(number)] for number in numbers}
        found = super().predict(dataset, np.unique(np.concatenate([np.empty(0, np.int64), *texts.values()])))
        return {number: np.stack([found[text] for text in ours.tolist()]) for number, ours in texts.items()}
