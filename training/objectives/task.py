"""The base class of the objectives of fine-tuning: forward passes over windows, predictions by example, and scores."""

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.splits import class_counts
from reread.training.config import TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.loader import Loader
from reread.training.data.tasks.class_weights import check_class_weights, class_weights
from reread.training.data.tasks.dataset import AnyTask, Outputs, TaskDataset
from reread.training.data.tasks.mistakes import analysis
from reread.training.data.tasks.settings import TaskSettings, check_groups
from reread.training.models.ernie_doc.configuration_ernie_doc import MOST_SKIMMED
from reread.training.models.spec import ModelSpec
from reread.training.objectives.memory import LaneMemory
from reread.training.objectives.objective import Objective, Pass
from reread.training.parallel.mesh import Mesh

Passes = list[tuple[int, Rows]]
"""The number of its group and the rows of each forward pass of a step."""


def reading_of(data: TaskSettings) -> dict[str, Any]:
    """`reading` of a configuration: how exported models cut long documents into windows."""
    return {
        "length": data.sequence_length,
        "step": data.step,
        "predict": data.predict,
        "retrospective": data.retrospective,
    }


class TaskObjective(Objective[AnyTask, TaskDataset[AnyTask, Any], Passes]):
    """Learns the labels of documents. A document is read within a step: all its windows at once, or one after the other
    with memory that is empty at its beginning.

    The loss is a mean over the windows of a step that learn (ERNIE-Doc's code), or over the predictions that a subclass
    counts. Held-out examples are predicted one by one and scored together. A step has `global_batch` examples, and a
    forward pass has about `micro_batch` rows.
    """

    counted = ("predicted",)
    figures = ("loss_sum", "correct", "predicted", "rows", "skimmed", "tokens")
    shown = {"acc": "accuracy"}
    has_global_tokens = True

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainSettings,
        mesh: Mesh,
        dataset: TaskDataset[Any, Any] | None = None,
        held_out: TaskDataset[Any, Any] | None = None,
    ) -> None:
        super().__init__(model, settings, mesh, dataset, held_out)
        for one in (dataset, held_out):
            self._check_windows(one)

    def _check_windows(self, dataset: TaskDataset[Any, Any] | None) -> None:
        """Raises `UserError` for a text of more windows than the model's skim can keep."""
        if dataset is None or getattr(self.model.config, "recurrence", None) != "full":
            return
        if (most := int(dataset.documents.windows.max(initial=0))) > MOST_SKIMMED:
            raise UserError(
                f"model.recurrence: full keeps the states of {MOST_SKIMMED} windows of a text, but one of the "
                f"{len(dataset)} examples has {most}; lower task.longest, raise task.step, or set it to enhanced"
            )

    @property
    def own_inputs(self) -> tuple[str, ...]:
        """Rows that its model reads beside tokens, mask and types."""
        return ()

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The model's inputs, made from rows [B, L]."""
        return inputs

    @abstractmethod
    def predicted(self, rows: Rows) -> int:
        """The number of predictions that the rows of a forward pass learn from."""

    @abstractmethod
    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        """The summed loss of the predictions of a forward pass, and the number of right predictions."""

    def read(self, reader: "WindowReader", rows: Rows, special: Mapping[str, int]) -> Any:
        """What is predicted from, of the rows of a forward pass; `special` are the ids of special tokens."""
        return reader.forward(rows)

    @abstractmethod
    def outputs(self, output: Any) -> Tensor:
        """What `read` returned, for each row [B, ...]."""

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The weight of each class [K] in the loss of training; None if all weigh the same."""
        if getattr(self.data, "class_weights", None) is None:
            return None
        found = class_weights(self.data, class_counts(self.dataset.examples), len(self.dataset))
        return self.mesh.put(torch.tensor(found, dtype=torch.float64))

    @staticmethod
    def check(config: Any, data: AnyTask) -> None:
        check_class_weights(data)
        if data.retrospective and data.frame != "segments":
            raise UserError("task.retrospective: true, but this model has no memory to carry on; set it to false")
        if getattr(config, "recurrence", None) == "full" and not data.retrospective:
            raise UserError(
                "task.retrospective: false, but model.recurrence=full attends to what a first reading left; set it to "
                "true, or model.recurrence to enhanced"
            )
        known = inspect.signature(type(config)).parameters
        if data.pooled_by and "classifier_pooling" not in known:
            raise UserError(
                f"task.pooling: {data.pooled_by}, but a model of type {config.model_type} pools in its own way "
                "(docs/models.md, Fine-tuning); leave task.pooling out"
            )
        if getattr(config, "character_filters", 0) and not getattr(data, "characters", False):
            raise UserError(
                f"model.character_filters: {config.character_filters}, but rows of the task {data.kind} hold no "
                "characters, which `tag` alone has; set it to 0"
            )

    @staticmethod
    def configure(config: Any, data: AnyTask) -> None:
        """Set the fields of the configuration that exported models need: labels; `reading`, by which they read long
        documents in windows; and `task`, by which `reread predict` predicts as the run does."""
        if data.head_dropout is not None:
            config.classifier_dropout = data.head_dropout
        if data.pooled_by:
            config.classifier_pooling = data.pooled_by
        if data.own_tokens:
            config.own_tokens = list(data.own_tokens)  # whose rows a start lacks (`build_model`)
        if data.labels:
            config.id2label = dict(enumerate(data.labels))
            config.label2id = {label: number for number, label in enumerate(data.labels)}
        config.reading = reading_of(data)
        config.task = data.travelling

    def batches(self, step: int) -> Loader[Passes]:
        size, micro_batch, ranks = self.settings.global_batch, self.settings.micro_batch, self.mesh.data_size
        try:
            check_groups(size, micro_batch, ranks)
        except UserError as error:  # the same on all ranks
            raise self.mesh.reported_once(error) from None

        def draw() -> Iterator[Passes]:
            number = step
            while True:
                rank, share = self.mesh.data_rank, self.pass_share
                passes = self.dataset.step_passes(number, size, micro_batch, ranks, rank, share)
                yield list(passes)
                number += 1

        return Loader(draw())

    def largest(self) -> Passes:
        for passes in self.dataset.longest(self.settings.micro_batch, self.settings.global_batch):
            if learning := [rows for rows in passes if self.predicted(rows)]:
                break  # else these examples have no answer to learn
        return [(0, max(learning or passes, key=lambda rows: rows["input_ids"].size))]

    def counts(self, batch: Passes) -> dict[str, int]:
        return {"predicted": sum(self.predicted(rows) for _, rows in batch)}

    def losses(self, batch: Passes, totals: Mapping[str, float], step: int) -> Iterator[Pass]:
        reader = WindowReader(self)
        predicted = [self.predicted(rows) for _, rows in batch]
        last = max((number for number, count in enumerate(predicted) if count), default=-1)
        for number, (group, rows) in enumerate(batch):
            # Seeded by group and forward pass, not by rank: dropout is the same on any number of data-parallel ranks
            self.seed_dropout(step, group, number - reader.begin(group, number))
            counted = "rows" if predicted[number] else "skimmed"
            figures = self.sums(tokens=float(rows["attention_mask"].sum()), **{counted: len(rows["learns"])})
            if not predicted[number]:
                self.skim(reader, rows)
                yield Pass(None, figures, False)
                continue
            loss, right = self.loss(reader.forward(rows), rows)
            figures += self.sums(loss_sum=loss.detach(), correct=right, predicted=predicted[number])
            yield Pass(loss / totals["predicted"], figures, number == last)

    def skim(self, reader: "WindowReader", rows: Rows) -> None:
        """A forward pass without a prediction, for its memory."""
        with torch.no_grad():
            reader.forward(rows)

    def flops(self, spec: ModelSpec, config: Any, totals: Mapping[str, float]) -> float:
        """Rows count by their mean length; no token goes through a head over the vocabulary."""
        rows = max(totals["rows"] + totals["skimmed"], 1.0)
        return spec.flops(config, round(totals["tokens"] / rows), {**totals, "predicted": 0.0})

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        predicted = max(totals["predicted"], 1.0)
        return {"loss": totals["loss_sum"] / predicted, "accuracy": totals["correct"] / predicted}

    predictions: Mapping[int, Any] = {}
    """Predictions of the latest evaluation, by held-out example."""

    def held_out_summary(self, limit: int | None) -> dict[str, float]:
        """The scores of all held-out examples, whatever the limit (collective)."""
        self.predictions = self.predict(self.held_out)
        return self.held_out.scores(self.predictions)

    def mistakes(self) -> dict[str, Any]:
        return analysis(self.held_out, self.predictions)

    @torch.no_grad()
    def predict(self, dataset: TaskDataset[Any, Any], examples: NDArray[np.int64] | None = None) -> dict[int, Any]:
        """The prediction for each of the `examples`, by default for all, on all ranks (collective)."""
        self._check_windows(dataset)
        self.model.eval()
        mine: dict[int, Any] = {}
        examples = np.arange(len(dataset)) if examples is None else examples
        groups = dataset.groups(examples, self.settings.micro_batch)
        for group in groups[self.mesh.data_rank :: self.mesh.data_size]:
            mine.update(self._predict(dataset, group))
        self.model.train()
        if self.mesh.data_size == 1:
            return mine
        everyone: list[Any] = [None] * self.mesh.data_size
        dist.all_gather_object(everyone, mine, group=self.mesh.data_group)
        return {example: prediction for found in everyone for example, prediction in found.items()}

    def _predict(self, dataset: TaskDataset[Any, Any], group: list[int]) -> dict[int, Any]:
        reader = WindowReader(self)
        found: dict[int, dict[tuple[int, int], NDArray[np.float64]]] = {example: {} for example in group}
        for number, rows in enumerate(dataset.passes(group, self.settings.micro_batch, training=False)):
            reader.begin(0, number)
            values = self.outputs(self.read(reader, rows, dataset.special)).double().cpu().numpy()
            real = rows["attention_mask"] == 1
            for row in np.flatnonzero(rows["learns"]):
                value = values[row][real[row]] if values.ndim == 3 else values[row].copy()  # not a tensor's memory
                key = int(rows["option"][row]), int(rows["window"][row])
                dataset.keep(found[int(rows["example"][row])], key, value)
        return {example: self.decoded(dataset, example, outputs) for example, outputs in found.items()}

    def decoded(self, dataset: TaskDataset[Any, Any], example: int, outputs: Outputs) -> Any:
        """The prediction for an example from the outputs for all its rows."""
        return dataset.decode(example, outputs)


class WindowReader:
    """Forward passes over the windows of a group of documents, with their memory if the model has one."""

    def __init__(self, objective: TaskObjective[Any]) -> None:
        self.objective, self.model = objective, objective.model
        self.group, self.first = -1, 0
        self.memory: LaneMemory | None = None

    def begin(self, group: int, number: int) -> int:
        """Begin forward pass `number`, of `group`; returns the first pass of the group. A new group has no memory."""
        if group != self.group:
            self.group, self.first, self.memory = group, number, None
        return self.first

    def forward(self, rows: Rows) -> Any:
        put = self.objective.put
        names = ["input_ids", "attention_mask"]
        # RoBERTa has one type, of both parts of a pair, and ModernBERT none.
        types = getattr(self.model.config, "type_vocab_size", 1)
        if types > 1 and not self.objective.data.text_only and rows["token_type_ids"].any():
            names.append("token_type_ids")
        names += self.objective.own_inputs
        inputs = self.objective.inputs({name: put(rows[name]) for name in names})
        if "lane" not in rows:
            return self.model(**inputs)
        if self.memory is None:
            self.memory = LaneMemory(self.model, int(rows["lanes"][0]), int(rows["windows"][0]))
        lanes = put(rows["lane"])
        with self.model.skimming() if rows["skims"][0] else nullcontext():
            output = self.model(**inputs, mems=self.memory.of(lanes))
        self.memory.keep(lanes, output.mems)
        return output
