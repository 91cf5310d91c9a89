"""Classification of one text or a pair: one label, a set of labels, or a number."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.labelled.examples import ClassifyExample
from training.data.rows import Rows
from training.data.tasks.dataset import Document, Member, Outputs, TaskDataset
from training.data.tasks.settings import ClassifySettings
from training.data.tasks.windows import Row


class ClassifyDataset(TaskDataset[ClassifySettings, ClassifyExample]):
    def encode(self, examples: Sequence[ClassifyExample]) -> list[Document]:
        others = iter(self.tokens([example.second for example in examples if example.second is not None]))
        return [
            self.document(encoding, np.array(encoding.offsets), [[] if example.second is None else [next(others).ids]])
            for example, encoding in zip(examples, self.tokens([one.text for one in examples]), strict=True)
        ]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """labels: int [B], one label; float [B, K], a set; float [B], a number."""
        labels = [self.examples[member.example].label for member in members]
        if self.settings.answer == "number":
            return {"labels": np.array(labels, np.float32)}
        numbers = {label: number for number, label in enumerate(self.settings.labels)}
        if self.settings.answer == "one":
            return {"labels": np.array([numbers[str(label)] for label in labels])}
        sets = np.zeros((len(labels), len(numbers)), np.float32)
        for row, found in enumerate(labels):
            sets[row, [numbers[label] for label in found or ()]] = 1  # type: ignore[union-attr]
        return {"labels": sets}

    def gold(self, example: ClassifyExample) -> Any:
        return example.label

    def label_of(self, example: ClassifyExample, option: int) -> str:
        return "label " + (", ".join(example.label) if isinstance(example.label, tuple) else str(example.label))

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The mean over windows of the probabilities [K], or of the number [1]."""
        logits = np.stack([outputs[place] for place in sorted(outputs)])
        if self.settings.answer == "number":
            return logits.mean(0)
        if self.settings.answer == "set":
            return (1 / (1 + np.exp(-logits))).mean(0)
        return softmax(logits).mean(0)

    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        if self.settings.answer == "number":
            return {"number": float(prediction[0])}
        probabilities = {label: round(float(p), 6) for label, p in zip(self.settings.labels, prediction, strict=True)}
        return {"label": self.scored(example, prediction), "probabilities": probabilities}

    def scored(self, example: int, prediction: NDArray[np.float64]) -> Any:
        """The label, the labels above one half, or the number."""
        if self.settings.answer == "number":
            return float(prediction[0])
        if self.settings.answer == "one":
            return self.settings.labels[int(prediction.argmax())]
        return tuple(label for label, p in zip(self.settings.labels, prediction, strict=True) if p > 0.5)

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        settings = self.settings
        given: dict[str, Any] = {"labels": settings.labels} if settings.answer == "one" else {}
        if settings.answer == "one" and len(settings.labels) == 2:
            positive = settings.positive or settings.labels[1]
            place = settings.labels.index(positive)
            chances = {self.examples[example].id: float(values[place]) for example, values in predictions.items()}
            given |= {"positive": positive, "probabilities": chances}
        return self._scores(predictions, **given)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last dimension."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)  # type: ignore[no-any-return]
