"""Steps of the trainer, one by one: the only place where benchmarks reach inside it."""

from pathlib import Path
from typing import Any

import torch

from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.progress import ProgressFigures
from reread.training.trainer import Trainer


class TrainerSteps:
    """A recipe on the trainer's own assembly and step."""

    def __init__(self, settings: TrainSettings, run: Path, device: torch.device | str = "cpu") -> None:
        self.trainer = trainer = Trainer(settings, run, Mesh(device=torch.device(device)))
        self.batches = trainer.objective.batches(0)
        self.parameters = sum(parameter.numel() for parameter in trainer.assembly.model.parameters())

    def window(self) -> ProgressFigures:
        return ProgressFigures(
            self.trainer.assembly.spec, self.trainer.assembly.config, self.trainer.objective, self.trainer.step
        )

    def step(self, batch: Any, window: ProgressFigures) -> tuple[float, float]:
        """Returns the learning rate and the norm of the gradient."""
        drawn = self.trainer._counted(batch)
        done = self.trainer._train_step(drawn, drawn.local, window)
        self.trainer.step += 1
        return done.rate, done.norm

    def figures(self, count: int) -> dict[str, Any]:
        """Means over `count` steps, as a progress line shows them."""
        window = self.window()
        for _ in range(count):
            with window.waiting_for_data():
                batch = next(self.batches)
            rate, norm = self.step(batch, window)
        sums = self.trainer.objective.summed(window.sums).tolist()
        values = window.close(self.trainer.step, rate, norm, self.trainer.scale.value, sums)
        return {**values, "skipped_steps": self.trainer.skipped_steps}

    def totals(self, window: ProgressFigures) -> dict[str, float]:
        return self.trainer.objective.totals_of(window.sums)

    def flops(self, totals: dict[str, float]) -> float:
        return self.trainer.objective.flops(self.trainer.assembly.spec, self.trainer.assembly.config, totals)

    def lane_memory(self) -> int:
        """Bytes that all lanes carry from step to step."""
        memory = self.trainer.objective.memory
        return sum(tensor.nbytes for tensor in memory.mems) if memory else 0
