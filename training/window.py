"""The figures of a progress line."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers import PretrainedConfig

from training.metrics import peak_flops
from training.models.spec import ModelSpec
from training.objectives.objective import Objective


class Window:
    """Sums figures between two progress lines; nothing here waits for the device."""

    def __init__(self, spec: ModelSpec, config: PretrainedConfig, objective: Objective, first_step: int) -> None:
        self.spec, self.config, self.objective, self.mesh = spec, config, objective, objective.mesh
        self.peak = peak_flops(objective.settings.peak_tflops, self.mesh.device) * self.mesh.world
        self.sums = objective.zeros()
        self.begin = time.perf_counter()
        self.waited = 0.0
        self.first_step = first_step

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
        flops = self.objective.flops(self.spec, self.config, totals)
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
            "mfu": flops / seconds / self.peak,
            "seconds_left": (settings.steps - step) * seconds / steps,
        }
