"""Classification of one text or a pair: one label, a set of labels, or a number."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.settings import Retired
from reread.training.data.batch import Rows
from reread.training.data.tasks.class_weights import ClassWeights
from reread.training.data.tasks.dataset import SHOWN, Member, Mistake, Names, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.settings import PooledSettings
from reread.training.data.tasks.windows import Row
from reread.training.scoring.baselines import BagOfGrams, majority
from reread.training.scoring.thresholds import HALF, shared_threshold, threshold_of_each

MANY_LABELS = 20
"""With more labels the bag of characters is a support vector machine, which is much faster there."""


class ClassifySettings(PooledSettings):
    """One text or a pair, and its label, its set of labels or its number."""

    may_change = PooledSettings.file_fields | {"pairs", "thresholds"}  # which leave the rows as they are

    beside_tokens: ClassVar[frozenset[str]] = PooledSettings.beside_tokens | {
        *("class_weights", "threshold", "thresholds")
    }

    retired = {"positive": Retired((None,), "the second of `task.labels` is the positive one")}

    kind: Literal["classify"]
    answer: Literal["one", "set", "number"] = "one"
    """The label of a text: one label, a set of labels, or a number. Of two labels the second in `labels` is the one
    whose F1 is `positive-f1`."""
    label_separator: str | None = Field(default=None, min_length=1)
    """Separator of the labels of a set in one cell or text; null: a comma in a table."""
    class_weights: ClassWeights = None
    """The factor of each class in the loss, in the order of `labels`: numbers, or `balanced` by how often each is in
    the training examples. Of a set it is that of texts with the label, relative to texts without it."""
    threshold: Annotated[float, Field(gt=0, lt=1)] | Literal["shared", "each"] = 0.5
    """The probability above which a label of a set is predicted: a number; or chosen on `dev` after training, `shared`
    by all labels for the best micro-F1, or for `each` label for its own best F1."""
    thresholds: list[Annotated[float, Field(ge=0, le=1)]] = []
    """The threshold of each label, which a run keeps once they are chosen (RUN/chosen.json)."""
    pairs: bool | None = None
    """Whether a text to predict for needs a second one; null: `reread finetune` finds out whether all training examples
    have one. Runs of earlier versions have null, and predict for any text."""

    @property
    def label_form(self) -> Literal["one", "set", "number"]:
        return self.answer

    @property
    def has_classes(self) -> bool:
        return self.answer != "number"

    @property
    def scored_as(self) -> str:
        return f"classify-{self.answer}"

    def found_in(self, train: Sequence[ClassifyExample]) -> dict[str, Any]:
        return {"pairs": all(one.second is not None for one in train) if self.pairs is None else self.pairs}

    @property
    def unchosen(self) -> "ClassifySettings | None":
        return self.model_copy(update={"thresholds": []}) if isinstance(self.threshold, str) else None

    @property
    def remarks(self) -> list[str]:
        return ["task.pairs: a text to predict for needs a second one, as those of task.train have"] * bool(self.pairs)


class ClassifyDataset(TaskDataset[ClassifySettings, ClassifyExample]):
    def encode(self, examples: Sequence[ClassifyExample]) -> list[TaskDocument]:
        others = iter(self.encoder.ids([example.second for example in examples if example.second is not None]))
        return [
            self.document(ids, [[] if example.second is None else [next(others)]])
            for example, ids in zip(examples, self.encoder.ids([one.text for one in examples]), strict=True)
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

    def check_predicted(self) -> None:
        if self.settings.unchosen == self.settings:
            raise UserError(
                f"task.threshold: {self.settings.threshold}, but none is chosen yet; `reread evaluate RUN` chooses "
                "thresholds on dev; or give a number"
            )
        alone = next((one for one in self.examples if one.second is None), None)
        if self.settings.pairs and alone is not None:
            raise UserError(
                f"{alone.location}: one text, and the model learned from pairs; give it a second one, `second` beside "
                "`text` in a line of JSON or a column of a table (task.columns.second=NAME); or predict for one by "
                "task.pairs=false"
            )

    def gold(self, example: ClassifyExample) -> Any:
        return example.label

    def label_of(self, example: ClassifyExample, option: int) -> str:
        return "label " + (", ".join(example.label) if isinstance(example.label, tuple) else str(example.label))

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The mean over windows of the probabilities [K], or of the number [1]."""
        logits = np.stack([outputs[row] for row in sorted(outputs)])
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
        """The label, the labels above their thresholds, or the number."""
        if self.settings.answer == "number":
            return float(prediction[0])
        if self.settings.answer == "one":
            return self.settings.labels[int(prediction.argmax())]
        each = zip(self.settings.labels, prediction, self._thresholds, strict=True)
        return tuple(label for label, p, threshold in each if p > threshold)

    _chosen: Sequence[float] = ()

    @property
    def _thresholds(self) -> Sequence[float]:
        settings = self.settings
        number = HALF if isinstance(settings.threshold, str) else settings.threshold
        return settings.thresholds or self._chosen or [number] * len(settings.labels)

    @property
    def chosen(self) -> dict[str, Any]:
        return {"thresholds": list(self._chosen)} if self._chosen else {}

    def _choose(self, predictions: Mapping[int, Any]) -> None:
        chances = np.array([predictions[index] for index in range(len(self))])
        is_gold = np.array([[label in (one.label or ()) for label in self.settings.labels] for one in self.examples])  # type: ignore[operator]
        choose = shared_threshold if self.settings.threshold == "shared" else threshold_of_each
        self._chosen = choose(chances, is_gold)

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        settings = self.settings
        if settings.answer == "set" and settings.unchosen == settings:
            self._choose(predictions)
        given: dict[str, Any] = {"labels": settings.labels} if settings.answer == "one" else {}
        if settings.answer == "one" and len(settings.labels) == 2:
            chances = {self.examples[example].id: float(values[1]) for example, values in predictions.items()}
            given |= {"positive": settings.labels[1], "probabilities": chances}
        return self._scores(predictions, **given)

    @property
    def has_confusion(self) -> bool:
        return self.settings.answer == "one"

    def named(self, index: int, prediction: Any) -> tuple[Names, Names]:
        if self.settings.answer == "number":
            return (), ()
        gold, guess = self.examples[index].label, self.scored(index, prediction)
        if self.settings.answer == "one":
            return {(gold,)}, {(guess,)}
        return {(label,) for label in gold}, {(label,) for label in guess}  # type: ignore[union-attr]

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        kinds = {"one": self._wrong_label, "set": self._wrong_set, "number": self._error}
        return kinds[self.settings.answer](self.examples[index], self.scored(index, prediction), prediction)

    def _wrong_label(self, example: Any, guess: Any, prediction: Any) -> Mistake | None:
        chances = dict(zip(self.settings.labels, map(float, prediction), strict=True))
        if guess == example.label:
            return None
        gold = chances[example.label]
        return Mistake(
            chances[guess] - gold, _pair(example), f"{example.label} ({gold:.2f})", f"{guess} ({chances[guess]:.2f})"
        )

    @staticmethod
    def _wrong_set(example: Any, guess: Any, prediction: Any) -> Mistake | None:
        differ = set(example.label) ^ set(guess)
        gold, made = (", ".join(sorted(labels)) or "none" for labels in (example.label, guess))
        return Mistake(len(differ), _pair(example), gold, made) if differ else None

    @staticmethod
    def _error(example: Any, guess: Any, prediction: Any) -> Mistake:
        return Mistake(abs(guess - example.label), _pair(example), f"{example.label:g}", f"{guess:.4g}")

    def baselines(self, train: Sequence[ClassifyExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        kinds = {"one": self._usual_label, "set": self._usual_set, "number": self._mean}
        yield from kinds[self.settings.answer](train)

    def _usual_label(self, train: Sequence[ClassifyExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        chances = dict(zip(self.settings.labels, np.eye(len(self.settings.labels)), strict=True))
        labels = [str(one.label) for one in train]
        yield "majority", dict.fromkeys(range(len(self)), chances[majority(labels)])
        if any(one.second is not None for one in train):
            return  # a bag cannot tell in which of the two texts a character is
        unit, name = ("char", "characters") if _mostly_chinese(train) else ("word", "words")
        model = "logistic" if len(chances) <= MANY_LABELS else "svm"
        bag = BagOfGrams((one.text for one in train), labels, unit=unit, model=model)  # type: ignore[arg-type]
        found = bag.predict(one.text for one in self.examples)
        yield f"bag of {name}", {index: chances[label] for index, label in enumerate(found)}

    def _usual_set(self, train: Sequence[Any]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        usual = set(majority("\0".join(sorted(one.label)) for one in train).split("\0"))
        chances = np.array([float(label in usual) for label in self.settings.labels])
        yield "majority", dict.fromkeys(range(len(self)), chances)

    def _mean(self, train: Sequence[Any]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        mean = statistics.fmean(one.label for one in train)
        yield "mean", dict.fromkeys(range(len(self)), np.array([mean]))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last dimension."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def _pair(example: ClassifyExample) -> str:
    return "\n".join(text[:SHOWN] for text in (example.text, example.second) if text)


def _mostly_chinese(examples: Sequence[ClassifyExample]) -> bool:
    text = "".join(one.text for one in islice(examples, 1000))
    return 2 * len(re.findall(r"[\u4e00-\u9fff]", text)) > len(re.findall(r"\w", text))
