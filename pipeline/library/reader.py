"""`reread.load`: a trained model for programs, which predicts, embeds and fills in."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from reread.pipeline.library.command import path_of
from reread.pipeline.recipe.load import drop_chosen, recipe_of
from reread.pipeline.recipe.schema import train_section
from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.read import examples_in
from reread.training.assembly import resolve, resolved_with
from reread.training.config import TrainSettings
from reread.training.data.kinds import KINDS, open_examples
from reread.training.data.tasks.classify import ClassifySettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.settings import TaskSettings, task_of
from reread.training.embedding import EmbeddingDataset, EncoderEmbedding, LearnedEmbedding, vectors
from reread.training.exchange.sentence_transformers import POOLING, pooling_of
from reread.training.filling import Fill, fill_masks, framed_tokenizer
from reread.training.models.build import model_config
from reread.training.models.spec import ModelSpec
from reread.training.objectives import as_task
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from reread.training.prediction import described, exported_model, task_of_export
from reread.training.run.auto import settings_of_run
from reread.training.run.files import RunFile, find_run
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from reread.training.trainer import local_device

log = logging.getLogger("reread")

READ_BY = ("pooling", "sequence_length", "step", "longest", "predict", "retrospective")
"""Settings of `task` by which a model that learned vectors makes them."""
LEARNED = ("kind", "labels", "frame", "tokenizer")
"""Settings of `task` that `predict` cannot change."""
LONGEST_WINDOW = 512
"""Tokens of a window of `embed` where positions do not end."""

Text = str | Mapping[str, Any]


def load(model: str | Path, *, step: int | None = None, device: str | None = None) -> "Reader":
    """The model of a run (its folder or name), or of an exported or converted folder.

    step: of a run, which checkpoint; by default the best or the last. device: "cpu" or "cuda"; by default a GPU if
    there is one. No code that lies in the folder is executed. Raises `UserError` for what is no model of ours.

    ```python
    reader = reread.load("runs/nezha-chnsenticorp")
    print(reader.predict("房间很干净，服务也好。"))
    ```
    """
    folder = find_run(path_of(model, "reread.load"))
    put = _device(device or local_device())
    if RunFile.RECIPE.of(folder).exists():
        settings = settings_of_run(train_section(recipe_of(folder, step=step)), folder)
        kept = read_run_model(folder, settings)
        weights, _ = restore_model(folder, kept, step)
        task = settings if task_of(settings.data) else None
        return Reader(folder, weights.to(put), kept.spec, kept.objective.name, kept.tokenizer_folder, task)  # type: ignore[arg-type]
    config, spec, heads = described(folder)
    if step is not None:
        raise UserError(f"{folder}: an exported model has one step; leave `step` out")
    if spec is None:
        kind = config.get("model_type")
        raise UserError(f"{folder}: a model of type {kind}, which is none of ours; `reread convert` may make one of it")
    learned = heads[0] if heads else next(iter(spec.heads))
    task = TrainSettings.parse(task_of_export(folder), str(folder)) if _is_task(spec, heads) else None
    settled = resolve(task, 1, folder).config if task else model_config(spec, {}, 1, folder)  # a head has its labels
    weights = exported_model(spec.heads[learned], settled, folder)
    return Reader(folder, weights.to(put), spec, learned, folder, task)  # type: ignore[arg-type]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"reread.load: device: {name!r} cannot be used here ({first_line(error)}); cpu can, or leave it out"
        ) from None
    return device


def _is_task(spec: ModelSpec, heads: Sequence[str]) -> bool:
    """Whether a head of these objectives is that of a task."""
    return any(KINDS[head].task is not None for head in heads if head in KINDS)


class Reader:
    """A trained model with its tokenizer. Texts may have any length, and one text or many are given.

    `model` is the transformers model on its device, `objective` the name of what it learned: a task's kind, or
    masked_lm, documents or causal_lm.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        spec: ModelSpec,
        objective: str,
        tokenizer_folder: Path,
        task: TrainSettings | None,
    ) -> None:
        self.folder, self.model, self.objective = folder, model.eval(), objective
        self._spec, self._tokenizer_folder, self._task = spec, tokenizer_folder, task
        self._mesh = Mesh(device=model.device)

    def __repr__(self) -> str:
        return f"Reader({str(self.folder)!r}, {self.objective}, on {self.model.device})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which puts special tokens around a text as the model reads it."""
        return framed_tokenizer(self._tokenizer_folder, self.model)

    @overload
    def predict(self, texts: Text, *, batch_size: int = 32, **task: Any) -> dict[str, Any]: ...

    @overload
    def predict(self, texts: Sequence[Text], *, batch_size: int = 32, **task: Any) -> list[dict[str, Any]]: ...

    def predict(self, texts: Text | Sequence[Text], *, batch_size: int = 32, **task: Any) -> Any:
        """What `reread predict` writes for each text: its label and probabilities, tags, answer, option or ranking.

        texts: a text, or a dict with the fields of the task's examples, such as `text` and `question`; or several.
        batch_size: rows in a forward pass. task: settings of `task` that differ from training: `question="Who?"`.

        Raises `UserError` for a model without the head of a task, for texts that lack what the task needs, and for
        settings that cannot work.
        """
        if self._task is None:
            raise UserError(
                f"{self.folder}: has the head of {self.objective}, which predicts no labels; fine-tune it with "
                "`reread finetune`" + (", or use fill" if self._fills else "")
            )
        values = self._task.model_dump(mode="json")
        for name in LEARNED:
            if (given := task.get(name, values["data"][name])) != values["data"][name]:
                raise UserError(
                    f"{self.folder}: {name}: the model has learned with {values['data'][name]!r}, not {given!r}; leave "
                    "this setting out"
                )
        values |= {"global_batch": batch_size, "micro_batch": batch_size}
        learned = values["data"]
        values["data"] = {**learned, "columns": {}, "format": None, "train": "text", **task}
        drop_chosen(values["data"], learned)
        settings = TrainSettings.parse(values, str(self.folder))
        data = task_of(settings.data)
        assert data is not None
        one = isinstance(texts, str | Mapping)
        examples = self._examples(texts, data)
        if not examples:
            return []
        dataset = open_examples(data, examples)
        dataset.check_predicted()
        learned = as_task(resolved_with(settings, self.model.config).objective)
        found = self._found(learned(self.model, settings, self._mesh, dataset), dataset)
        written = [dataset.written(number, found[number]) for number in range(len(dataset))]
        return written[0] if one else written

    def embed(
        self, texts: Text | Sequence[Text], *, length: int | None = None, batch_size: int = 32
    ) -> NDArray[np.float32]:
        """A vector [D] of a text, or [n, D] of several: the mean of the last layer's states of its tokens, special
        ones too, as sentence-transformers computes it; or what a model that learned vectors (`embed`) was trained with.

        A text longer than a window (length: its tokens; by default as many as the model has positions, and at most 512
        where they do not end) is read in windows side by side; a model with memory reads it twice, segment by segment.
        """
        data = self.reading(**({"sequence_length": length} if length else {}))
        one = isinstance(texts, str | Mapping)
        none = np.empty((0, self.model.config.hidden_size), np.float32)
        found = np.concatenate([none, *self.vectors(data, self._examples(texts, data), batch_size)])
        return found[0] if one else found

    def reading(self, **task: Any) -> ClassifySettings:
        """How `embed` reads texts; task: settings of `task` that differ, such as those of a file.

        Raises `UserError` for settings that cannot work, and for windows that are longer than the model's positions.
        """
        values = {
            "kind": "classify",
            "train": "text",
            "tokenizer": str(self._tokenizer_folder),
            "frame": self._spec.frame,
            "sequence_length": self._window,
            "retrospective": bool(getattr(self.model.config, "slots", 0)),
        }
        learned = getattr(self.model.config, "task", None) or {}
        if learned.get("kind") == "embed":
            values |= {name: learned[name] for name in READ_BY if name in learned}
        elif "pooling" not in task and (pooling := pooling_of(self.folder)):
            log.info("%s: pooled by %s, as its %s says", self.folder, pooling, POOLING)
            values["pooling"] = pooling
        data = ClassifySettings.parse({**values, **task}, "embed")
        longest = self._spec.longest(self.model.config)
        if longest is not None and data.sequence_length > longest:
            raise UserError(
                f"{self.folder}: windows of {data.sequence_length:,} tokens, but its positions end at {longest:,}"
            )
        return data

    def vectors(
        self,
        data: ClassifySettings,
        examples: Sequence[Example],
        batch_size: int = 32,
        begin: int = 0,
        part: int | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """The vectors [n, D] of `embed` for the examples from `begin` on, read as `data` says: `part` at a time."""
        if begin >= len(examples):
            return
        values = {
            "steps": 0,
            "global_batch": batch_size,
            "micro_batch": batch_size,
            "optimizer": {"learning_rate": 1.0},
        }
        model = {"type": self._spec.name}
        settings = TrainSettings.parse({**values, "model": model, "data": data.model_dump(mode="json")}, "embed")
        dataset = EmbeddingDataset(data, 0, examples)  # type: ignore[arg-type]
        kind = LearnedEmbedding if self.objective == "embed" else EncoderEmbedding
        objective = kind(self.model, settings, self._mesh, dataset)
        step = part or len(examples)
        for first in range(begin, len(examples), step):
            yield vectors(self._found(objective, dataset, np.arange(first, min(first + step, len(examples)))))

    def fill(self, text: str, *, top: int = 5) -> Fill:
        """The `top` likeliest tokens for the first [MASK] of a text with their probabilities.

        Raises `UserError` for a model without the head of masked words, for a text without [MASK], and for a `top`
        below 1.
        """
        if not isinstance(text, str):
            raise UserError(f"fill: {text!r} is a {type(text).__name__}; give one text with [MASK]")
        if not isinstance(top, int) or top < 1:
            raise UserError(f"fill: top: {top!r} is no whole number from 1 on")
        if not self._fills:
            raise UserError(f"{self.folder}: has the head of {self.objective}, which fills in no [MASK]")
        return next(fill_masks(self.model, self.tokenizer, [text], top))[1]

    @property
    def _fills(self) -> bool:
        return self.objective in ("masked_lm", "documents")

    @property
    def _window(self) -> int:
        return (
            getattr(self.model.config, "segment_length", None)
            or self._spec.longest(self.model.config)
            or LONGEST_WINDOW
        )

    def _examples(self, texts: Text | Sequence[Text], data: TaskSettings) -> list[Example]:
        if not isinstance(texts, Iterable):
            raise UserError(f"{texts!r} is a {type(texts).__name__}; give a text, a dict, or several of them")
        given = [texts] if isinstance(texts, str | Mapping) else list(texts)
        return examples_in(given, data.kind, labels=data.label_form, given=data.given) if given else []

    def _found(
        self,
        objective: TaskObjective[Any],
        dataset: TaskDataset[Any, Any],
        examples: NDArray[np.int64] | None = None,
    ) -> dict[int, Any]:
        """The prediction for each of the `examples`, by default for all, by its number."""
        found = objective.predict(dataset, examples)
        self.model.eval()
        return found
