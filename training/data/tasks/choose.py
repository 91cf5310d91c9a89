"""One of several options: each is read with the text, and the one with the highest logit is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.labelled.examples import ChooseExample
from training.data.rows import Rows
from training.data.tasks.classify import softmax
from training.data.tasks.dataset import Document, Member, Outputs, TaskDataset
from training.data.tasks.settings import ChooseSettings
from training.data.tasks.windows import Row


class ChooseDataset(TaskDataset[ChooseSettings, ChooseExample]):
    def encode(self, examples: Sequence[ChooseExample]) -> list[Document]:
        options = iter(self.tokens([option for example in examples for option in example.options]))
        questions = self.tokens([example.question for example in examples])
        texts = self.tokens([example.text for example in examples])
        documents = []
        for example, question, text in zip(examples, questions, texts, strict=True):
            asked = [question.ids] if question.ids else []
            parts = [[*asked, next(options).ids] for _ in example.options]
            documents.append(self.document(text, np.array(text.offsets).reshape(-1, 2), parts))
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
