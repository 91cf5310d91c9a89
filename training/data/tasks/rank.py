"""The passages of a query in the order of their scores: each is read with the query, in a row of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.labelled.checks import FEW
from reread.preprocessing.labelled.mapped import changed
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.training.data.batch import Rows
from reread.training.data.tasks.dataset import SHOWN, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import PooledSettings
from reread.training.data.tasks.windows import Row
from reread.training.scoring.ranking import Bm25


class RankSettings(PooledSettings):
    """A query and passages, each with a grade."""

    may_change = PooledSettings.file_fields | {"irrelevant"}  # which leaves the examples as they are

    beside_tokens: ClassVar[frozenset[str]] = PooledSettings.beside_tokens | {"loss"}

    kind: Literal["rank"]
    passages: int | None = Field(default=16, ge=2, le=100_000)
    """Passages of a query that training reads at most, since all of them share a forward pass: relevant ones (at most
    half, if there are enough others) and others, each in the file's order; null: all. Predictions read all."""

    loss: Literal["softmax", "binary"] = "softmax"
    """`softmax`: one cross entropy over the passages of a query, whose scores only give an order. `binary`: one for
    each passage, of being relevant or not, so that a score above 0 means that it is."""

    irrelevant: float = Field(default=FEW, ge=0, le=1)
    """Share of the training file's queries that may have no relevant passage. Nothing is learned from such a query;
    held-out ones are scored, by 0."""

    def shortened(self, example: RankExample) -> RankExample:
        """An example to learn from, with at most `passages` passages."""
        count, most, grades = len(example.passages), self.passages, example.grades or ()
        if most is None or count <= most:
            return example
        relevant, others = ([one for one in range(count) if (grades[one] > 0) is kind] for kind in (True, False))
        chosen = relevant[: max(most // 2, most - len(others))]
        kept = sorted(chosen + others[: most - len(chosen)])
        return replace(
            example,
            passages=tuple(example.passages[one] for one in kept),
            grades=tuple(grades[one] for one in kept),
            passage_ids=tuple(example.passage_ids[one] for one in kept) if example.passage_ids else (),
        )


class RankDataset(TaskDataset[RankSettings, RankExample]):
    splits_options = True

    @classmethod
    def open(cls, settings: RankSettings, seed: int, split: str) -> "RankDataset":
        examples = examples_of(settings, split)
        return cls(settings, seed, changed(examples, settings.shortened) if split == "train" else examples)

    def encode(self, examples: Sequence[RankExample]) -> list[TaskDocument]:
        """The query is the text, and each passage stands beside it; one that is too long is cut."""
        passages = iter(self.encoder.ids([passage for example in examples for passage in example.passages]))
        queries = self.encoder.ids([example.query for example in examples])
        return [
            self.document(query, [[next(passages)] for _ in one.passages])
            for one, query in zip(examples, queries, strict=True)
        ]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """share float32 [B]: a passage's grade, divided by the sum of its query's; 0 if that is 0."""
        grades = [self.examples[one.example].grades or () for one in members]
        shares = [of_query[one.option] / (sum(of_query) or 1) for one, of_query in zip(members, grades, strict=True)]
        return {"share": np.array(shares, np.float32)}

    def gold(self, example: RankExample) -> Any:
        return example.grades

    def label_of(self, example: RankExample, option: int) -> str:
        return f"grade {(example.grades or ())[option]:g}"

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The score of each passage [K], the mean over windows of its logits."""
        scores = [
            np.mean([logits[0] for (option, _), logits in sorted(outputs.items()) if option == passage])
            for passage in range(len(self.documents[example].options))
        ]
        return np.array(scores)

    def scored(self, example: int, prediction: NDArray[np.float64]) -> list[float]:
        return [float(one) for one in prediction]

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions)

    def written(self, example: int, prediction: NDArray[np.float64]) -> dict[str, Any]:
        """All passages, the best first; one without an id has its number in the file, from 0."""
        ids = self.examples[example].passage_ids or range(len(prediction))
        order = np.argsort(-prediction, kind="stable").tolist()
        return {"ranking": [{"passage": ids[one], "score": round(float(prediction[one]), 6)} for one in order]}

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        """The first passage is not relevant, though another one is."""
        example, first = self.examples[index], int(prediction.argmax())
        grades = example.grades or ()
        relevant = [one for one, grade in enumerate(grades) if grade > 0]
        if not relevant or grades[first] > 0:
            return None
        best = max(relevant, key=lambda one: float(prediction[one]))
        gold, made = (f"{example.passages[one][:SHOWN]} ({prediction[one]:.2f})" for one in (best, first))
        return Mistake(float(prediction[first] - prediction[best]), example.query[:SHOWN], gold, made)

    def baselines(self, train: Sequence[RankExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        """The file's own order, unless its relevant passages lead everywhere, and BM25."""
        if any(one.grades != tuple(sorted(one.grades or (), reverse=True)) for one in self.examples):
            yield (
                "order of the file",
                {index: -np.arange(len(one.passages), dtype=float) for index, one in enumerate(self.examples)},
            )
        bm25 = Bm25(passage for one in self.examples for passage in one.passages)
        yield (
            "BM25",
            {
                index: np.array([bm25.score(one.query, passage) for passage in one.passages])
                for index, one in enumerate(self.examples)
            },
        )
