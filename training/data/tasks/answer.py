"""A span of the text that answers a question."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from preprocessing.labelled.examples import AnswerExample
from training.data.rows import Rows
from training.data.tasks.dataset import Document, Mark, Member, Outputs, TaskDataset
from training.data.tasks.settings import AnswerSettings
from training.data.tasks.tag import best_window
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
            window = self.documents[member.example].window(member.window)
            for first, last in self._answers(member.example):
                if window.start <= first and last < window.stop:
                    starts[row, built.content + first - window.start] = True
                    ends[row, built.content + last - window.start] = True
        if self.settings.without == "cls" and not self.settings.bare:
            answered = {units[row] for row in np.flatnonzero(starts.any(1))}
            none = [unit not in answered for unit in units]
            place = self._cls(shape[1])
            starts[none, place] = ends[none, place] = True
        return {"starts": starts, "ends": ends}

    def _cls(self, length: int) -> int:
        return length - 1 if self.settings.frame == "segments" else 0

    def _answers(self, example: int) -> list[tuple[int, int]]:
        """The first and the last token of the answers to learn."""
        offsets = self.documents[example].offsets
        answers = self.examples[example].answers or ()
        found = []
        for answer in answers if self.settings.occurrences == "all" else answers[:1]:
            end = answer.start + len(answer.text)
            inside = np.flatnonzero((offsets[:, 1] > answer.start) & (offsets[:, 0] < end))
            if len(inside):
                found.append((int(inside[0]), int(inside[-1])))
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
        window, content = self.documents[member.example].window(member.window), self._row(member).content
        return [
            Mark(content + first - window.start, content + last - window.start, "answer")
            for first, last in self._answers(member.example)
            if window.start <= first and last < window.stop
        ]

    def decode(self, example: int, outputs: Outputs) -> Decoded:
        """`outputs` are start and end logits [L, 2]."""
        document = self.documents[example]
        best = best_window(document)
        windows = []
        for (_, number), logits in sorted(outputs.items()):
            content = self._row(Member(example, 0, number)).content
            window = document.window(number)
            inside = slice(content, content + window.stop - window.start)
            offsets = np.full((len(logits), 2), -1)
            offsets[inside] = document.offsets[window]
            is_best = np.zeros(len(logits), bool)
            is_best[inside] = best[window] == number
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
        return self._scores("answer", predictions, style=self.settings.style)

    def written(self, example: int, prediction: Decoded) -> dict[str, Any]:
        text = self.examples[example].text
        spans = [
            {"text": text[one.start : one.end], "start": one.start, "end": one.end, "probability": one.probability}
            for one in prediction.n_best[:5]
        ]
        return {"answer": self.scored(example, prediction), "spans": spans}
