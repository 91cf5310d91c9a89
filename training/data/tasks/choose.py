"""One of several options: each is read with the text, and the option with the highest logit is chosen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.training.data.batch import Rows
from reread.training.data.tasks.classify import softmax
from reread.training.data.tasks.dataset import SHOWN, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.settings import PooledSettings, TaskSettings
from reread.training.data.tasks.windows import Row
from reread.training.scoring.baselines import longest_option, majority, most_shared_option


class ChooseSettings(PooledSettings):
    """One of several options."""

    may_change = TaskSettings.file_fields | {"question", "options"}

    kind: Literal["choose"]
    question: str | None = None
    """The question about each text that has none of its own, such as raw text."""
    options: list[str] = []
    """The options of each text that has none of its own."""

    @property
    def given(self) -> Given:
        return Given(question=self.question, options=tuple(self.options))


class ChooseDataset(TaskDataset[ChooseSettings, ChooseExample]):
    def encode(self, examples: Sequence[ChooseExample]) -> list[TaskDocument]:
        options = iter(self.ids([option for example in examples for option in example.options]))
        questions = self.ids([example.question for example in examples])
        texts = self.ids([example.text for example in examples])
        documents = []
        for example, question, text in zip(examples, questions, texts, strict=True):
            asked = [question] if len(question) else []
            documents.append(self.document(text, [[*asked, next(options)] for _ in example.options]))
        return documents

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """is_right bool [B]."""
        return {"is_right": np.array([self.examples[one.example].label == one.option for one in members])}

    def gold(self, example: ChooseExample) -> Any:
        return example.label

    def label_of(self, example: ChooseExample, option: int) -> str:
        return "right" if example.label == option else "wrong"

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The mean over windows of the probabilities of the options [K]."""
        options = range(len(self.documents[example].options))
        windows = sorted({window for _, window in outputs})
        logits = np.array([[outputs[option, window][0] for option in options] for window in windows])
        return softmax(logits).mean(0)  # type: ignore[no-any-return]

    def scored(self, example: int, prediction: NDArray[np.float64]) -> int:
        return int(prediction.argmax())

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        groups = {one.id: one.group for one in self.examples if one.group is not None}
        return self._scores(predictions, **({"groups": groups} if groups else {}))

    def written(self, example: int, prediction: NDArray[np.float64]) -> dict[str, Any]:
        number = self.scored(example, prediction)
        return {
            "option": number,
            "text": self.examples[example].options[number],
            "probabilities": [round(float(p), 6) for p in prediction],
        }

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        example, guess = self.examples[index], self.scored(index, prediction)
        assert example.label is not None
        if guess == example.label:
            return None
        gold, made = (f"{example.options[one]} ({prediction[one]:.2f})" for one in (example.label, guess))
        text = f"{example.question}\n{example.text[:SHOWN]}"
        return Mistake(float(prediction[guess] - prediction[example.label]), text, gold, made)

    def baselines(self, train: Sequence[ChooseExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        usual = majority(one.label for one in train if one.label is not None)
        rules: dict[str, Callable[[Any], int]] = {
            "best fixed option": lambda one: min(usual, len(one.options) - 1),
            "longest option": lambda one: longest_option(one.options),
            "option with most characters in the text": lambda one: most_shared_option(one.text, one.options),
        }
        for name, rule in rules.items():
            yield name, {index: np.eye(len(one.options))[rule(one)] for index, one in enumerate(self.examples)}
