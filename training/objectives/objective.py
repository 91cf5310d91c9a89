"""What a form of data asks of a model: which batches it reads, what it minimises, what it remembers between steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from preprocessing.errors import UserError
from training.config import TrainSettings
from training.data import random
from training.data.loader import Loader, Rows
from training.parallel.layout import Slice
from training.parallel.mesh import Mesh


class Pass(NamedTuple):
    """One forward pass that may have a backward pass."""

    loss: Tensor | None
    """This pass' share of the global batch's loss; None where nothing is learned."""
    figures: Tensor
    """float64 [len(Task.figures)], without gradient."""
    is_last: bool
    """Whether its backward pass is the last one of this rank in the step."""


class Task(ABC):
    """A model, the rows it learns from and the state that both carry from step to step.

    The loss of a step is a sum over its predictions divided by their number in the whole global batch, so it is the
    same however the batch is split over ranks and micro-batches.
    """

    figures: ClassVar[tuple[str, ...]]
    """What is summed up for the log; sums add over passes and ranks. `rows` and `tokens` are among them."""
    shown: ClassVar[Mapping[str, str]]
    """Short name in the progress line -> figure of `summary`."""

    def __init__(self, model: PreTrainedModel, settings: TrainSettings, mesh: Mesh, source: Any, held_out: Any) -> None:
        """`source` and `held_out` are what `open_source` gives for the train and the validation split."""
        self.model: Any = model
        self.settings, self.mesh = settings, mesh
        self.data: Any = settings.data
        self.source, self.held_out = source, held_out
        self.lanes = mesh.share(self.total_lanes())
        if settings.global_batch < mesh.data_size:
            raise UserError(
                f"train.global_batch: {settings.global_batch} rows are fewer than the {mesh.data_size} data-parallel "
                "processes; raise it, or start fewer processes"
            )

    def total_lanes(self) -> int:
        """Rows of the global batch, over all processes."""
        return self.settings.global_batch

    @abstractmethod
    def batches(self, step: int) -> Loader:
        """This rank's rows of each global batch from `step` on."""

    @abstractmethod
    def counts(self, batch: Rows) -> NDArray[np.float64]:
        """What the loss is divided by, for this rank's rows; the first is the number of predictions."""

    @abstractmethod
    def losses(self, batch: Rows, counts: list[float], step: int) -> Iterator[Pass]:
        """The passes of a step, one after the other; `counts` are sums over all ranks."""

    @abstractmethod
    def evaluate(self, limit: int | None) -> Tensor:
        """`figures` summed over this rank's share of the held-out text: of all of it, or of a sample.

        A sample costs about `limit` global batches, is spread over the text and the same each time; what it reads
        exactly is the task's own. The model is in evaluation mode and no gradient is recorded.
        """

    @staticmethod
    @abstractmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        """What the log shows of figures summed over all ranks and `steps` steps: means over what was counted.

        `loss` is the mean over predicted tokens, whatever is minimised beside it, so that every step has it and steps
        compare; each other loss has a name of its own. What nothing was counted for is left out.
        """

    def state(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """Tensors to save beside the weights, by name, and where each lies; loading fills them in place."""
        return {}, {}

    def seed_dropout(self, step: int, *words: int) -> None:
        """Dropout depends on the step and the rows, not on the number of steps since the last start."""
        torch.manual_seed(int(random.key(self.settings.seed, step, *words, 0)) >> 1)

    def put(self, array: NDArray[Any]) -> Tensor:
        """An array of integers on the device, int64; booleans stay booleans."""
        if array.dtype != np.bool_:
            array = array.astype(np.int64)
        tensor = torch.from_numpy(array)
        if self.mesh.device.type == "cuda":  # a copy from pageable memory would wait for all that the device has to do
            tensor = tensor.pin_memory()
        return tensor.to(self.mesh.device, non_blocking=True)

    def sums(self, **values: Tensor | float) -> Tensor:
        """`figures` by name, as `Pass` has them; those not given are 0."""
        figures = self.zeros()
        for name, value in values.items():
            figures[self.figures.index(name)] = value
        return figures

    def zeros(self) -> Tensor:
        return torch.zeros(len(self.figures), dtype=torch.float64, device=self.mesh.device)


def pieces(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`rows` cut into pieces of at most `size`."""
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]
