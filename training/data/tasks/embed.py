"""Texts whose vectors are learned: each text of an example is read by itself, in windows of its own.

A step has the texts of its examples: a query each, one of its positives (the query again, if it has none: Gao, Yao and
Chen 2021, "SimCSE"), and hard negatives. In the next epoch an example shows its next positive and negatives.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, singledispatchmethod
from hashlib import md5
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.embed import EmbedExample
from reread.training.data.batch import Rows
from reread.training.data.order.order import locate
from reread.training.data.rows.trimming import PASS_SHARE, by_length, micro_batches
from reread.training.data.tasks.dataset import SHOWN, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Row
from reread.training.scoring.retrieval import Found, Library, cosine, nearest
from reread.training.scoring.task_scores import scores

log = logging.getLogger("reread")

Measure = Literal["similarity", "retrieval"]


class EmbedSettings(TaskSettings):
    """Texts that mean the same, with others that do not, or texts alone (the same text twice, with other dropout)."""

    may_change = TaskSettings.file_fields | {"measure"}

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {
        *("pooling", "temperature", "symmetric", "sizes", "negatives", "least_score", "measure")
    }

    kind: Literal["embed"]
    pooling: Literal["mean", "cls"] = "mean"
    """The vector of a text: the mean of the last layer's states of all tokens of its windows, special ones too, or of
    their [CLS] alone. `task.predict=last` takes the last window's, which with a memory has read the whole text."""
    temperature: float = Field(default=0.05, gt=0, le=10)
    """The number by which cosines are divided before the softmax over the batch."""
    symmetric: bool = False
    """Also learn to find the query of each positive among all queries of the batch; the loss is the mean of both."""
    sizes: list[Annotated[int, Field(ge=1)]] = []
    """Matryoshka sizes, each the number of a vector's first elements that have a loss of their own, whose mean with
    that of whole vectors is learned (Kusupati et al. 2022), so that shorter vectors serve, too."""
    negatives: int = Field(default=1, ge=0, le=1000)
    """Hard negatives of an example that a step reads; later epochs read the next ones."""
    least_score: float | None = None
    """The score from which on a training pair that has one is a positive pair; others are not learned from."""
    measure: Measure | None = None
    """What chooses the checkpoint: the correlation of cosines with scores, or the documents that queries find; null:
    `reread finetune` takes what task.dev holds."""

    @model_validator(mode="after")
    def _one_choice_of_windows(self) -> "EmbedSettings":
        if self.learns != "all":
            raise ValueError("learns: the windows of which a vector is made are those of `predict`; leave `learns` out")
        return self

    @property
    def scored_as(self) -> str:
        return f"embed-{self.measure or 'retrieval'}"

    def found_in(self, train: Sequence[EmbedExample]) -> dict[str, Any]:
        check_learned(self, train)
        held_out = examples_of(self, "validation")
        measure = measure_of(held_out) if held_out else None
        if held_out and measure is None:
            raise UserError(
                f"task.dev: {self.dev}: texts alone, by which no vector can be scored; give pairs, pairs with scores "
                "or qrels, or leave task.dev out"
            )
        return {"measure": self.measure or measure}


def check_learned(settings: EmbedSettings, examples: Sequence[EmbedExample]) -> None:
    """Raises `UserError` for training pairs with scores if nothing says which of them are positive ones."""
    scored = next((one for one in examples if one.score is not None), None)
    if settings.least_score is None and scored is not None:
        raise UserError(
            f"{scored.location}: a pair with a score, {scored.score:g}; say from which score on two texts mean the "
            "same, by task.least_score, such as 4 of 5, or 1 where it is 0 or 1"
        )


def measure_of(examples: Sequence[EmbedExample]) -> Measure | None:
    """What held-out examples can be scored by; None for texts alone. Raises `UserError` if only some have scores."""
    scored, alone = 0, None
    for one in examples:
        scored += one.score is not None
        alone = alone or (one if one.score is None else None)
    if scored and alone is not None:
        raise UserError(f"{alone.location}: a pair without a score, where others have one; give it one")
    if scored:
        return "similarity"
    return "retrieval" if any(one.positives or one.ids for one in examples) else None


def vector_of(outputs: Outputs) -> NDArray[np.float32]:
    """The vector [D] of a text from the sum of the states of each window and their number, [D + 1]."""
    total = np.sum([outputs[row] for row in sorted(outputs)], axis=0)
    return (total[:-1] / max(total[-1], 1.0)).astype(np.float32)  # type: ignore[no-any-return]


class EmbedDataset(TaskDataset[EmbedSettings, EmbedExample]):
    """Documents, windows and outputs are numbered by text: an example's own, its positives, its negatives; then the
    next example's. A prediction is the vectors of an example's texts, float32 [texts, D]."""

    def __init__(self, settings: EmbedSettings, seed: int, examples: Sequence[EmbedExample]) -> None:
        super().__init__(settings, seed, examples)
        counts = [(len(one.positives), len(one.negatives)) for one in examples]
        self._positives, self._negatives = np.array(counts, np.int64).reshape(-1, 2).T
        self._begins = np.concatenate([[0], np.cumsum(1 + self._positives + self._negatives)])

    @classmethod
    def open(cls, settings: EmbedSettings, seed: int, split: str) -> "EmbedDataset":
        examples = examples_of(settings, split)
        if split == "train":
            check_learned(settings, examples)
        return cls(settings, seed, examples)

    def encode(self, examples: Sequence[EmbedExample]) -> list[TaskDocument]:
        texts = [text for one in examples for (text,) in one.rows]
        return [self.document(ids, [[]]) for ids in self.encoder.ids(texts)]

    def texts_of(self, example: int) -> NDArray[np.int64]:
        """The numbers of an example's texts."""
        return np.arange(*self._begins[example : example + 2])

    @cached_property
    def first_with(self) -> NDArray[np.int64]:
        """For each text the number of the first one with the same tokens."""
        known: dict[bytes, int] = {}
        return np.array([known.setdefault(self._key(one), one) for one in range(self._begins[-1])], np.int64)

    def _key(self, text: int) -> bytes:
        return md5(self.documents[text].ids.tobytes()).digest()

    def step_passes(
        self, step: int, global_batch: int, micro_batch: int, ranks: int, rank: int, pass_share: float = PASS_SHARE
    ) -> Iterator[tuple[int, Rows]]:
        """As of all tasks, with at most `micro_batch` texts in a group. `example` of a row is the number of its text in
        the step: queries come first, then a positive of each, then negatives. Rows also have `count` [1], the number of
        queries, and `keys` [texts], equal for equal texts."""
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        texts = self._drawn(*locate(positions, len(self), self.seed))
        yield from self._passes_of(texts, global_batch, micro_batch, ranks, rank, pass_share)

    def _drawn(self, epochs: NDArray[np.int64], examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The texts of a step: a query and a positive of each of `examples`, then hard negatives."""
        queries, positives, negatives = self._begins[examples], self._positives[examples], self._negatives[examples]
        chosen = np.where(positives > 0, queries + 1 + epochs % np.maximum(positives, 1), queries)
        hard = [
            query + 1 + right + (epoch * taken + np.arange(taken)) % wrong
            for query, right, wrong, epoch in zip(queries, positives, negatives, epochs, strict=True)
            if (taken := min(self.settings.negatives, wrong))
        ]
        return np.concatenate([queries, chosen, *hard])

    def _passes_of(
        self, texts: NDArray[np.int64], count: int, micro_batch: int, ranks: int, rank: int, pass_share: float
    ) -> Iterator[tuple[int, Rows]]:
        step = copy(self)
        step.__dict__["documents"] = [self.documents[text] for text in texts.tolist()]
        keys = np.array([int.from_bytes(self._key(text)[:8], "little", signed=True) for text in texts.tolist()])
        lengths, numbers = self.documents.lengths[texts], np.arange(len(texts))
        groups = micro_batches(numbers, lengths, self.settings.sequence_length, micro_batch, pass_share)
        for number, group in enumerate(groups):
            if number % ranks == rank:
                for rows in step.passes(group.tolist(), micro_batch, training=False):
                    yield number, {**rows, "count": np.array([count]), "keys": keys}

    def longest(self, size: int, global_batch: int) -> Iterator[list[Rows]]:
        """The forward passes over the `size` longest texts, as if they were a step."""
        lengths = self.documents.lengths
        texts = by_length(np.arange(len(lengths)), lengths)[::-1]
        count = -(-size // 2)  # pairs
        step = self._passes_of(np.resize(texts, 2 * count), count, size, 1, 0, PASS_SHARE)
        yield [rows for _, rows in step]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        return {}

    @property
    def row_tokens(self) -> NDArray[np.int64]:
        """Tokens of all rows that a step has of each example in the first epoch."""
        tokens, everyone = super().row_tokens, np.arange(len(self))
        taken = np.minimum(self.settings.negatives, self._negatives)
        drawn = self._drawn(np.zeros(len(self), np.int64), everyone)
        owners = np.concatenate([everyone, everyone, np.repeat(everyone, taken)])
        return np.bincount(owners, weights=tokens[drawn], minlength=len(self)).astype(np.int64)

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Titles and rows [1, L] of each text's windows."""
        for number, example in enumerate(self.examples):
            names = [*example.texts]
            for place, text in enumerate(self.texts_of(number).tolist()):
                for rows in self.passes([text], 1, training=False):
                    for row in range(len(rows["learns"])):
                        one = {name: values[row : row + 1] for name, values in rows.items()}
                        window = f"window {int(one['window'][0]) + 1} of {self.documents[text].windows}"
                        likeness = "" if example.score is None else f", score {example.score:g}"
                        yield f"{example.location}, id {example.id}, {names[place]}, {window}{likeness}", one

    def label_of(self, example: EmbedExample, option: int) -> str:
        return "" if example.score is None else f"score {example.score:g}"

    def gold(self, example: EmbedExample) -> Any:
        return example.score

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float32]:
        return vector_of(outputs)

    @cached_property
    def measure(self) -> Measure | None:
        """What these examples can be scored by."""
        return measure_of(self.examples)

    @cached_property
    def library(self) -> Library:
        """The queries, the documents that they search, and which are right."""
        library = Library()
        for number, one in enumerate(self.examples):
            texts = [self.first_with[text].item() for text in self.texts_of(number)]
            names = one.ids or texts[1:]
            if one.document:
                library.add(one.id.partition(" ")[2], (number, 0))
            else:
                grades = [*(one.grades or [1.0] * len(one.positives)), *[0.0] * len(one.negatives)]
                library.ask(one.id if one.ids else texts[0], (number, 0), dict(zip(names, grades, strict=True)))
            for place, name in enumerate(names, 1):
                library.add(name, (number, place))
        return library

    def _text(self, place: tuple[int, int]) -> str:
        return self.examples[place[0]].rows[place[1]][0]

    def found(self, predictions: Mapping[int, NDArray[np.float32]]) -> Found:
        """What vectors say: by example the cosine of a pair with a score, or what each query of the library finds."""
        if self.measure == "similarity":
            return Found({number: float(cosine(*vectors)) for number, vectors in predictions.items()})
        queries, documents = (
            np.stack([predictions[number][place] for number, place in places])
            for places in (self.library.queries, self.library.documents)
        )
        return Found(searched=nearest(queries, documents))

    def scored(self, example: int, prediction: Any) -> Any:
        return prediction

    @singledispatchmethod
    def scores(self, predictions: Any) -> dict[str, float]:
        """Of vectors, or of what a baseline has `Found`; none for texts alone."""
        return self.scores(self.found(predictions)) if self.measure else {}

    @scores.register
    def _(self, found: Found) -> dict[str, float]:
        if self.measure == "similarity":
            gold: dict[str, Any] = {one.id: one.score for one in self.examples}
            guesses: dict[str, Any] = {self.examples[number].id: one for number, one in found.likeness.items()}
        else:
            gold, guesses = self.library.ranked(found.searched)
        return scores(f"embed-{self.measure}", gold, guesses)

    def written(self, example: int, prediction: NDArray[np.float32]) -> dict[str, Any]:
        """The vector of a text alone, else the cosines with its positives and negatives."""
        text, *others = prediction
        if not others:
            return {"vector": [round(float(one), 6) for one in text]}
        found = [round(float(cosine(text, one)), 6) for one in others]
        return {"similarity": found[0]} if len(found) == 1 else {"similarities": found}

    def mistake(self, index: int, prediction: NDArray[np.float32]) -> Mistake | None:
        """A negative of the example that is nearer than its positive."""
        one, (text, *others) = self.examples[index], prediction
        count = len(one.positives)
        near = [float(cosine(text, other)) for other in others]
        if not count or not one.negatives or max(near[count:]) < max(near[:count]):
            return None
        right, wrong = int(np.argmax(near[:count])), int(np.argmax(near[count:]))
        gold, made = one.positives[right][:SHOWN], one.negatives[wrong][:SHOWN]
        gold, made = f"{gold} ({near[right]:.2f})", f"{made} ({near[count + wrong]:.2f})"
        return Mistake(near[count + wrong] - near[right], one.text[:SHOWN], gold, made)

    def baselines(self, train: Sequence[EmbedExample]) -> Iterator[tuple[str, Any]]:
        """Bag of words, and for retrieval BM25; a line is logged for one whose package is missing."""
        from reread.training.scoring.bags import Bag, bm25  # jieba's dictionary takes a second

        makers: dict[str, Callable[[], Found]] = {}
        if self.measure == "similarity":
            left, right = zip(*((one.text, one.positives[0]) for one in self.examples), strict=True)
            makers["bag of words"] = lambda: Found(dict(enumerate(Bag([*left, *right]).likeness(left, right).tolist())))
        elif self.measure == "retrieval":
            queries, documents = (
                [self._text(place) for place in places] for places in (self.library.queries, self.library.documents)
            )
            makers["bag of words"] = lambda: Found(searched=Bag(documents).search(queries))
            makers["BM25"] = lambda: Found(searched=bm25(documents, queries))
        for name, make in makers.items():
            try:
                found = make()
            except UserError as error:
                log.info("a baseline is left out: %s", error)
            else:
                yield name, found
