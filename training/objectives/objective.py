"""The interface of an objective: its batches, losses, counts, figures and state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.dataset import Dataset
from reread.training.data.loader import Loader
from reread.training.data.order import random
from reread.training.data.rows.trimming import PASS_SHARE, micro_batches, pieces, trimmed
from reread.training.data.settings import DataSettings
from reread.training.kernels.head import Undecoded
from reread.training.models.spec import ModelSpec
from reread.training.objectives.memory import LaneMemory
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.tensor import vocab_argmax, vocab_cross_entropy

AnyData = TypeVar("AnyData", bound=DataSettings)
AnyDataset = TypeVar("AnyDataset", bound=Dataset[Any])
AnyBatch = TypeVar("AnyBatch")
"""This rank's rows of a step: `Rows`, or those of each forward pass."""


class Pass(NamedTuple):
    """One forward pass that may have a backward pass."""

    loss: Tensor | None
    """The part of the global batch's loss that this pass has; None for a pass without a loss."""
    figures: Tensor
    """float64 [len(Objective.figures)], without gradient."""
    is_last: bool
    """Whether its backward pass is the last one of this rank in the step."""


class Card(NamedTuple):
    """Entries of an exported model's card that depend on the objective."""

    auto_class: str
    """transformers' Auto class that loads the model with its head."""
    pipeline: str
    """transformers' pipeline for the model."""
    tag: str


class Objective(ABC, Generic[AnyData, AnyDataset, AnyBatch]):
    """A model, its training data and the state that both carry from step to step.

    The loss of a step is a sum over its predictions divided by their number in the whole global batch, so it is the
    same however the batch is split over ranks and micro-batches.
    """

    name: ClassVar[str]
    """Name in `train.objective` and key of `ModelSpec.heads`."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of data that it can learn from, beside those whose default it is (`Kind.objective`)."""
    card: ClassVar[Card]
    counted: ClassVar[tuple[str, ...]]
    """Names of the entries of `counts`."""
    figures: ClassVar[tuple[str, ...]]
    """Names of the sums for the log, `rows` and `tokens` among them; sums are added over forward passes and ranks."""
    shown: ClassVar[Mapping[str, str]]
    """Short name in the progress line -> figure of `summary`."""

    has_global_tokens: ClassVar[bool] = False
    """Whether a model with global attention (Longformer) has tokens that see the whole text."""

    ends_in_last_column: ClassVar[bool] = False
    """Whether the last token of each row stands in the last column, behind padding."""

    first_position: int = 0
    """The row of the endless stream of data that is row 0 of step 0; below 0 if the run began at a later step with new
    data, or if the batch of earlier steps was smaller."""

    schedule_begins: int = 0
    """The step at which the schedule began: of the learning rate, the batch and the share of masked tokens."""

    pass_share: float = PASS_SHARE
    """The constant cost of a forward pass of training, as a share of that of a full one."""

    memory: LaneMemory | None = None
    """Memory that the lanes of this rank carry from step to step."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainSettings,
        mesh: Mesh,
        dataset: Dataset[Any] | None = None,
        held_out: Dataset[Any] | None = None,
    ) -> None:
        """`batches` reads `dataset`, the train split, and evaluation reads `held_out`; each is needed only for that."""
        self.model: Any = model
        self.settings, self.mesh = settings, mesh
        self.data = cast(AnyData, settings.data)  # checked by `assembly.check_data`
        self.dataset, self.held_out = cast(AnyDataset, dataset), cast(AnyDataset, held_out)
        self.total_lanes = settings.data.lanes(settings.global_batch)
        """Rows of a global batch, over all processes."""
        self.lanes = mesh.share(self.total_lanes)
        if (rows := settings.smallest_batch) < mesh.data_size:
            field = "global_batch" if rows == settings.global_batch else "batch_warmup.first"
            raise UserError(
                f"train.{field}: {rows} rows are fewer than the {mesh.data_size} data-parallel processes; raise it, or "
                "start fewer processes"
            )

    @staticmethod
    def check(config: Any, data: AnyData) -> None:
        """Raises `UserError` for a model that cannot learn this from such data. Its head and its length are checked
        in assembly.py."""
        return

    @staticmethod
    def configure(config: Any, data: AnyData) -> None:
        """Set the fields of the configuration that a user of the trained model needs."""
        return

    @staticmethod
    def begin(model: PreTrainedModel, dataset: AnyDataset) -> None:
        """Set weights of a new head by the training data, the same on all ranks."""
        return

    @staticmethod
    def unreached(data: AnyData) -> tuple[str, ...]:
        """Parts of the names of parameters that no loss on such data depends on. They are frozen, since weight decay
        alone would shrink them to nothing."""
        return ()

    def position(self, step: int) -> int:
        """The row of the endless stream of data with which a step begins."""
        return self.first_position + self._rows_before(step)

    def go_on(self, step: int, position: int, schedule_begins: int) -> None:
        """Begin with `step` at row `position` of the stream."""
        self.schedule_begins = schedule_begins
        self.first_position = position - self._rows_before(step)

    def _rows_before(self, step: int) -> int:
        begins = self.schedule_begins
        return begins * self.settings.global_batch + self.settings.rows_before(step - begins)

    @abstractmethod
    def batches(self, step: int) -> Loader[AnyBatch]:
        """This rank's rows of each global batch from `step` on."""

    @abstractmethod
    def largest(self) -> AnyBatch:
        """A batch for `losses` that consists of one micro-batch and needs as much memory as any in the run."""

    @abstractmethod
    def counts(self, batch: AnyBatch) -> dict[str, int]:
        """The divisors of the losses for this rank's rows, by the names in `counted`."""

    def targets(self, batch: AnyBatch) -> NDArray[np.int64]:
        """The masked tokens [n] that the rows of a batch learn to predict; none for objectives without masks."""
        return np.empty(0, np.int64)

    @abstractmethod
    def losses(self, batch: AnyBatch, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        """The passes of a step in order; `totals` are `counts` summed over all ranks."""

    @abstractmethod
    def held_out_summary(self, limit: int | None) -> dict[str, float]:
        """Figures of the held-out data, the same on all ranks (collective). With a limit, a sample of it may do."""

    @staticmethod
    @abstractmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        """The means for the log, from figures summed over all ranks and `steps` steps.

        `loss` is the mean over predicted tokens alone, so that every step has it and steps can be compared; other
        losses have names of their own. A mean whose count is zero is left out.
        """

    def mistakes(self) -> dict[str, Any]:
        """The mistakes of the latest evaluation (`reread.training.data.tasks.mistakes`); empty if it was no task."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """Tensors to save with the weights, by name, and the part of its whole tensor that each is.

        Loading fills them in place.
        """
        return {}, {}

    def summed(self, sums: Tensor) -> Tensor:
        """`figures` summed over the data-parallel ranks (collective)."""
        if self.mesh.data_size > 1:
            sums = sums.clone()
            dist.all_reduce(sums, group=self.mesh.data_group)
        return sums

    def totals_of(self, sums: Tensor) -> dict[str, float]:
        """`summed` as a mapping by the names of `figures`; waits for the device."""
        return dict(zip(self.figures, self.summed(sums).tolist(), strict=True))

    def flops(self, spec: ModelSpec, config: Any, totals: Mapping[str, float]) -> float:
        """Training FLOPs of the rows in `totals`, the summed `figures`, by their mean length without padding."""
        return spec.flops(config, round(totals["tokens"] / max(totals["rows"], 1.0)), totals)

    def micro_batches(
        self, batch: Rows, rows: NDArray[np.int64], pass_share: float = PASS_SHARE
    ) -> list[NDArray[np.int64]]:
        """Divide row numbers into forward passes of the least cost; `trimmed_rows` returns their values."""
        size, lengths = self.settings.micro_batch, batch["attention_mask"].sum(axis=1)
        if self.padding_counts:
            return pieces(rows, size)
        return micro_batches(rows, lengths[rows], batch["attention_mask"].shape[1], size, pass_share)

    def trimmed_rows(self, batch: Rows, rows: NDArray[np.int64]) -> Rows:
        """`rows` of a batch, trimmed to the longest of them."""
        values = {name: values[rows] for name, values in batch.items()}
        return values if self.padding_counts else trimmed(values, keeps_last=self.ends_in_last_column)

    @property
    def cuts_by_length(self) -> bool:
        """Whether the rows of a micro-batch may be cut into several passes, so that `pass_share` matters."""
        return self.settings.micro_batch > 1 and not self.padding_counts

    @property
    def padding_counts(self) -> bool:
        """Whether padding changes the model's results, as in the official RAN and ERNIE-Doc."""
        config = self.model.config
        return bool(getattr(config, "official_padding", False) or getattr(config, "official_memory", False))

    def token_losses(self, logits: Tensor | Undecoded, targets: Tensor) -> Tensor:
        """-log p of the targets [n], at least float32, from what the model's head returns: logits [..., V], which may
        be split over the vocabulary, or by kernels what it has not decoded."""
        if isinstance(logits, Tensor):
            return vocab_cross_entropy(logits.flatten(0, -2), targets, self.mesh)
        return logits.losses(targets)[0]

    def scored(self, logits: Tensor | Undecoded, targets: Tensor) -> tuple[Tensor, Tensor]:
        """`token_losses`, and whether each target has the greatest logit [n]."""
        if isinstance(logits, Tensor):
            return self.token_losses(logits, targets), vocab_argmax(logits.detach(), self.mesh) == targets
        return logits.losses(targets)

    def seed_dropout(self, step: int, *words: int) -> None:
        """Seed dropout by the step and `words`, so that it does not depend on when the run was last resumed."""
        seed = int(random.key(self.settings.seed, step, *words, 0)) >> 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a millisecond for absent devices
        if self.mesh.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def put(self, array: NDArray[Any]) -> Tensor:
        """An array of integers on the device, int64; booleans stay booleans."""
        if array.dtype != np.bool_:
            array = array.astype(np.int64)
        return self.mesh.put(torch.from_numpy(array))

    def sums(self, **values: Tensor | float) -> Tensor:
        """The tensor of `Pass.figures` from values by name; figures without a value are 0."""
        figures = self.zeros()
        for name, value in values.items():
            figures[self.figures.index(name)] = value
        return figures

    def zeros(self) -> Tensor:
        return torch.zeros(len(self.figures), dtype=torch.float64, device=self.mesh.device)


class SummedObjective(Objective[AnyData, AnyDataset, Rows]):
    """An objective whose figures of held-out text are the same sums as those of a step."""

    def largest(self) -> Rows:
        return self.data.blank(self.data.lanes(self.settings.micro_batch))

    @abstractmethod
    def evaluate(self, held_out: Any, limit: int | None) -> Tensor:
        """`figures` summed over this rank's share of held-out text or, with a limit, of a sample of it.

        A sample costs about `limit` global batches, is spread over the text and is the same each time. The model is in
        evaluation mode and no gradient is recorded.
        """

    def held_out_summary(self, limit: int | None) -> dict[str, float]:
        """`summary` of held-out text (collective); `limit` as in `evaluate`.

        For a mixture, of all corpora together and then of each corpus, whose name precedes its figures. A limit is
        divided among the corpora equally.
        """
        parts = {name: one for name, one in self.held_out.mixed.items() if len(one)} or {"": self.held_out}
        share = None if limit is None else -(-limit // len(parts))
        self.model.eval()
        sums = {name: self.summed(self.evaluate(one, share)) for name, one in parts.items()}
        self.model.train()
        figures = self._summary_of(torch.stack(list(sums.values())).sum(dim=0))
        if self.held_out.mixed:
            for name, one in sums.items():
                figures |= {f"{name}_{figure}": value for figure, value in self._summary_of(one).items()}
        return figures

    def _summary_of(self, sums: Tensor) -> dict[str, float]:
        return self.summary(dict(zip(self.figures, sums.tolist(), strict=True)), 1)
