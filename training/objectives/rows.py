"""The base class of objectives over independent rows."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.training.data.batch import Rows
from reread.training.data.loader import ROWS_AT_ONCE, Loader, rows_at_steps
from reread.training.data.rows.samples import RowDataset
from reread.training.data.rows.trimming import pieces
from reread.training.data.settings import MaskedSettings
from reread.training.objectives.objective import Pass, SummedObjective


class RowObjective(SummedObjective[MaskedSettings, RowDataset[Any]]):
    """An objective over independent rows. A subclass defines `counts`, `loss` and `summary`."""

    @abstractmethod
    def loss(self, batch: Rows, totals: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """The loss of the rows of a micro-batch, divided by `totals`, and their `figures`."""

    def batches(self, step: int) -> Loader[Rows]:
        masking, schedule = self.data.masking, self.settings.schedule
        ends = self.settings.schedule_ends - self.schedule_begins

        def draw(positions: NDArray[np.int64], steps: NDArray[np.int64]) -> Rows:
            if not masking.by_step:
                return self.dataset.rows(positions)
            return self.dataset.rows(
                positions, masking.shares(steps - self.schedule_begins, schedule.warmup_steps, ends)
            )

        def positions_of(step: int) -> NDArray[np.int64]:
            share = self._share(step)
            return np.arange(share.start, share.stop) + self.position(step)

        return Loader(rows_at_steps(draw, positions_of, step))

    def _share(self, step: int) -> range:
        """The rows of a step's global batch that this rank has."""
        return self.mesh.share(self.settings.rows_at(step - self.schedule_begins))

    def losses(self, batch: Rows, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        share = self._share(step)
        micro_batches = self.micro_batches(batch, np.arange(len(share)), self.pass_share)
        for rows in micro_batches:
            self.seed_dropout(step, share.start + int(rows[0]))
            loss, figures = self.loss(self.trimmed_rows(batch, rows), totals)
            yield Pass(loss, figures, rows is micro_batches[-1])

    @torch.no_grad()
    def evaluate(self, held_out: RowDataset[Any], limit: int | None) -> Tensor:
        """With a limit, evaluate the first rows of epoch 0, which are in random order."""
        total = self.zeros()
        rows = len(held_out) if limit is None else min(limit * self.settings.global_batch, len(held_out))
        share, ones = self.mesh.share(rows), dict.fromkeys(self.counted, 1.0)
        for positions in pieces(np.arange(share.start, share.stop), ROWS_AT_ONCE):
            batch = held_out.rows(positions)
            for micro_batch in self.micro_batches(batch, np.arange(len(positions))):
                total += self.loss(self.trimmed_rows(batch, micro_batch), ones)[1]
        return total
