"""`answer`: a question about a text, answered by spans of the text."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reread.preprocessing.labelled.examples import ADDED, Example, Notes
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine, asked
from reread.preprocessing.settings import Settings

NOWHERE, MISPLACED, ELSEWHERE = -1, -2, -3
"""`start` of an answer that is no part of the text, of a misplaced one, which is not where its file says, and of one
that the text need not hold."""
CHOICES = ("YES", "NO")
"""The answers that are no part of a text (CAIL2019)."""
_SHOWN = 60
"""Characters of a wrong answer that its line shows."""


class Answer(NamedTuple):
    start: int
    """In characters of the context. `NOWHERE` for one of `CHOICES`, and for "" if an annotator found no answer;
    `MISPLACED` and `ELSEWHERE` for an answer that is scored but not learned."""
    text: str


@dataclass(frozen=True, slots=True)
class AnswerExample(Example):
    """A question about a text, answered by spans of the text."""

    read = ("text", "question")

    text: str
    question: str
    answers: tuple[Answer, ...] | None = None
    """Empty if the text does not answer the question, None if it is unlabelled."""
    question_id: str | None = field(default=None, metadata=ADDED)
    """Questions of one id are one question about several texts, which has one answer. None: a question of its own."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> "AnswerExample":
        identity, location, text, question, answers, question_id = values
        found = None if answers is None else tuple(Answer(*one) for one in answers)
        return cls(identity, location, text, question, found, question_id)

    @property
    def learnable(self) -> tuple[Answer, ...]:
        """The answers that can be learned."""
        return tuple(answer for answer in self.answers or () if answer.start not in (MISPLACED, ELSEWHERE))

    @property
    def target(self) -> tuple[Answer, ...] | None:
        return self.answers

    @property
    def texts(self) -> dict[str, str]:
        return {"text": self.text, "question": self.question}

    @property
    def others(self) -> dict[str, str]:
        return {f"answer {number}": answer.text for number, answer in enumerate(self.answers or (), 1)}

    @property
    def content(self) -> Hashable:
        return self.text, self.question

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(self.text, self.question)]

    @property
    def can_be_learned(self) -> bool:
        return bool(self.learnable) or not self.answers

    def checked(self, notes: Notes) -> "AnswerExample | None":
        if not self.answers:
            return self
        kept = []
        for number, answer in enumerate(self.answers, 1):
            which = f"answer {number} of {len(self.answers)}"
            if answer.start == ELSEWHERE or (answer.start == NOWHERE and answer.text in ("", *CHOICES)):
                kept.append(answer)
            elif not answer.text:
                notes.mistake(self.location, f"{which} is empty")
            elif answer.start >= 0 and self.text.startswith(answer.text, answer.start):
                kept.append(answer)
            else:
                elsewhere = self.text.find(answer.text)
                hint = f"it stands at {elsewhere}" if elsewhere >= 0 else "the text does not hold it"
                quoted = answer.text if len(answer.text) <= _SHOWN else answer.text[:_SHOWN] + "..."
                reason = f"{which}, `{quoted}`, does not stand at character {answer.start}; {hint}"
                notes.misplace(self.location, reason)
                kept.append(Answer(MISPLACED, answer.text))
        return replace(self, answers=tuple(kept)) if kept else None


class _AnswerSpan(Settings):
    start: int
    text: str


class AnswerLine(TaskLine):
    text: str
    question: str | None = None
    answers: tuple[_AnswerSpan, ...] | None = None
    question_id: str | int | None = None

    def example(self, source: LabelledFile, identity: str, location: str) -> AnswerExample:
        spans = None if self.answers is None else tuple(Answer(span.start, span.text) for span in self.answers)
        group = None if self.question_id is None else str(self.question_id)
        return AnswerExample(identity, location, self.text, asked(source, self.question), spans, group)


def choices_of(train: Sequence[AnswerExample]) -> list[str]:
    """The answers of the training examples that are no part of their texts, such as YES and NO."""
    answers = {answer for example in train for answer in example.answers or ()}
    return [choice for choice in CHOICES if (NOWHERE, choice) in answers]
