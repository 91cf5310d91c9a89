"""Measures and sums the figures of a progress line."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PretrainedConfig

from reread.training.models.spec import ModelSpec
from reread.training.objectives.objective import Objective
from reread.training.run.metrics import peak_flops

log = logging.getLogger("reread")

LOW_MFU = 0.1


class ProgressFigures:
    """The figures of the steps since the last progress line; nothing here waits for the device."""

    def __init__(self, spec: ModelSpec, config: PretrainedConfig, objective: Objective, first_step: int) -> None:
        self.spec, self.config, self.objective, self.mesh = spec, config, objective, objective.mesh
        self.peak = peak_flops(objective.settings.peak_tflops, self.mesh.device) * self.mesh.world
        self.sums = objective.zeros()
        self.begin = time.perf_counter()
        self.waited = 0.0
        self.first_step = self.began = first_step
        self.hinted = False

    def add(self, figures: Tensor) -> None:
        self.sums += figures

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begin

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.begin += time.perf_counter() - begin

    def close(self, step: int, rate: float, norm: float, scale: float, sums: list[float]) -> dict[str, float]:
        """The progress line's figures since the last call, from `Objective.summed` of `sums`."""
        totals, waited = dict(zip(self.objective.figures, sums, strict=True)), self.waited
        seconds = time.perf_counter() - self.begin
        steps = step - self.first_step
        settings = self.objective.settings
        mfu = self.objective.flops(self.spec, self.config, totals) / seconds / self.peak
        self._hint_at_threads(mfu)
        self.sums.zero_()
        self.begin, self.waited, self.first_step = time.perf_counter(), 0.0, step
        return {
            **self.objective.summary(totals, steps),
            "learning_rate": rate,
            "gradient_norm": norm,
            "loss_scale": scale,
            "tokens": totals["tokens"],
            "tokens_per_second": totals["tokens"] / seconds,
            "seconds_per_step": seconds / steps,
            "data_wait_share": waited / seconds,
            "mfu": mfu,
            "seconds_left": (settings.steps - step) * seconds / steps,
        }

    def _hint_at_threads(self, mfu: float) -> None:
        """Log one line if several threads reach little of a CPU: on busy cores they wait for each other.

        The first progress line of an attempt does not count, since memory is allocated before it.
        """
        several = self.mesh.device.type == "cpu" and torch.get_num_threads() > 1
        if several and mfu < LOW_MFU and not self.hinted and self.first_step > self.began:
            self.hinted = True
            log.info(
                "MFU %.1f%% is low for a CPU: on busy cores %d threads wait for each other; try train.threads=1",
                *(100 * mfu, torch.get_num_threads()),
            )
