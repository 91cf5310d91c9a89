"""A span of the text that answers a question."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from preprocessing.labelled.examples import AnswerExample
from training.data.rows import Rows
from training.data.tasks.dataset import Document, Mark, Member, Outputs, TaskDataset
from training.data.tasks.settings import AnswerSettings
from training.data.tasks.windows import Row
from training.scoring.spans import Decoded, Window, decode


class AnswerDataset(TaskDataset[AnswerSettings, AnswerExample]):
    is_question = True

    def encode(self, examples: Sequence[AnswerExample]) -> list[Document]:
        questions = self.tokens([example.question for example in examples])
        texts = self.tokens([example.text for example in examples])
        return [
            self.document(text, np.array(text.offsets).reshape(-1, 2), [[question.ids]])
            for question, text in zip(questions, texts, strict=True)
        ]

    def units(self, example: int, last_only: bool) -> list[list[Member]]:
        units = super().units(example, last_only)
        if self.settings.one_softmax:
            return [[member for unit in units for member in unit]]
        return units

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """starts, ends bool [B, L]: the places that are right; [CLS], or none, in a softmax without an answer."""
        starts, ends = np.zeros(shape, bool), np.zeros(shape, bool)
        units = [member.example if self.settings.one_softmax else row for row, member in enumerate(members)]
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            for first, last in self._answers(member, built.content):
                starts[row, first] = ends[row, last] = True
        if self.settings.without == "cls" and not self.settings.bare:
            answered = {units[row] for row in np.flatnonzero(starts.any(1))}
            none = [unit not in answered for unit in units]
            place = self._cls(shape[1])
            starts[none, place] = ends[none, place] = True
        return {"starts": starts, "ends": ends}

    def _cls(self, length: int) -> int:
        return length - 1 if self.settings.frame == "segments" else 0

    def _answers(self, member: Member, content: int) -> list[tuple[int, int]]:
        """The places in a row of the first and the last token of the answers to learn that its window holds;
        `content` is the place of the window's first token."""
        document = self.documents[member.example]
        window, offsets = document.window(member.window), document.offsets
        answers = self.examples[member.example].answers or ()
        found = []
        for answer in answers if self.settings.occurrences == "all" else answers[:1]:
            end = answer.start + len(answer.text)
            inside = np.flatnonzero((offsets[:, 1] > answer.start) & (offsets[:, 0] < end))
            if len(inside) and window.start <= inside[0] and inside[-1] < window.stop:
                found.append((content + int(inside[0]) - window.start, content + int(inside[-1]) - window.start))
        return found

    def gold(self, example: AnswerExample) -> Any:
        return None if example.answers is None else [answer.text for answer in example.answers]

    def label_of(self, example: AnswerExample, option: int) -> str:
        return "answers: " + (", ".join(dict.fromkeys(one.text for one in example.answers or ())) or "none")

    def marks(self, row: Rows) -> list[Mark]:
        """The answers in the window; where the window's answer is [CLS], that."""
        place = int(np.flatnonzero(row["starts"][0])[0]) if row["starts"].any() else -1
        if place == self._cls(row["starts"].shape[1]) and not self.settings.bare:
            return [Mark(place, place, "no answer here")]
        member = Member(int(row["example"][0]), 0, int(row["window"][0]))
        return [Mark(first, last, "answer") for first, last in self._answers(member, self._content(member))]

    def decode(self, example: int, outputs: Outputs) -> Decoded:
        """`outputs` are start and end logits [L, 2]."""
        document = self.documents[example]
        windows = []
        for (_, number), logits in sorted(outputs.items()):
            content = self._content(Member(example, 0, number))
            window = document.window(number)
            inside = slice(content, content + window.stop - window.start)
            offsets = np.full((len(logits), 2), -1)
            offsets[inside] = document.offsets[window]
            is_best = np.zeros(len(logits), bool)
            is_best[inside] = document.owners[window] == number
            asked = self.settings.no_answer is not None and not self.settings.bare
            null = float(logits[self._cls(len(logits))].sum()) if asked else None
            windows.append(Window(logits[:, 0], logits[:, 1], offsets, is_best, null))
        return decode(
            windows,
            self.examples[example].text,
            longest=self.settings.answer_length,
            null_threshold=self.settings.no_answer or 0.0,
        )

    def scored(self, example: int, prediction: Decoded) -> str:
        best = prediction.best
        return "" if best is None else self.examples[example].text[best.start : best.end]

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions, style=self.settings.style)

    def written(self, example: int, prediction: Decoded) -> dict[str, Any]:
        text = self.examples[example].text
        spans = [
            {"text": text[one.start : one.end], "start": one.start, "end": one.end, "probability": one.probability}
            for one in prediction.n_best[:5]
        ]
        return {"answer": self.scored(example, prediction), "spans": spans}
