"""`answer`: a question about a text, answered by spans of the text."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator

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


class Fact(NamedTuple):
    """A sentence, by numbers from 0."""

    paragraph: int
    sentence: int


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
    paragraphs: tuple[tuple[int, ...], ...] = field(default=(), metadata=ADDED)
    """The paragraphs that make up the text: of each the characters at which its title and each of its sentences begin.
    A part ends where the next one begins."""
    evidence: tuple[Fact, ...] | None = field(default=None, metadata=ADDED)
    """The sentences that support the answer. HotpotQA's may name some that are not there."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> "AnswerExample":
        identity, location, text, question, answers, question_id, paragraphs, evidence = values
        found = None if answers is None else tuple(Answer(*one) for one in answers)
        facts = None if evidence is None else tuple(Fact(*one) for one in evidence)
        return cls(identity, location, text, question, found, question_id, tuple(map(tuple, paragraphs)), facts)

    @property
    def parts(self) -> list[list[str]]:
        """The title and the sentences of each paragraph."""
        begins = [*chain.from_iterable(self.paragraphs), len(self.text)]
        found = iter([self.text[begin:end] for begin, end in pairwise(begins)])
        return [[next(found) for _ in one] for one in self.paragraphs]

    @property
    def learnable(self) -> tuple[Answer, ...]:
        """The answers that can be learned."""
        return tuple(answer for answer in self.answers or () if answer.start not in (MISPLACED, ELSEWHERE))

    @property
    def target(self) -> tuple[Answer, ...] | None:
        return None if self.paragraphs and self.evidence is None else self.answers

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


def _spans(answers: Any) -> Any:
    """`datasets` of Hugging Face writes the answers of SQuAD as two lists."""
    if isinstance(answers, dict) and answers.keys() == {"text", "answer_start"}:
        texts, starts = answers["text"], answers["answer_start"]
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return [{"start": start, "text": text} for start, text in zip(starts, texts, strict=True)]
    if not isinstance(answers, list | tuple | None):
        raise ValueError('a list of {"start": .., "text": ..}, character and text of each')
    return answers


class AnswerLine(TaskLine):
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("context",)}

    text: str
    question: str | None = None
    answers: Annotated[tuple[_AnswerSpan, ...] | None, BeforeValidator(_spans)] = None
    question_id: str | int | None = None
    paragraphs: tuple[tuple[int, ...], ...] = ()
    evidence: tuple[tuple[int, int], ...] | None = None

    def example(self, source: LabelledFile, identity: str, location: str) -> AnswerExample:
        spans = None if self.answers is None else tuple(Answer(span.start, span.text) for span in self.answers)
        group = None if self.question_id is None else str(self.question_id)
        facts = None if self.evidence is None else tuple(Fact(*one) for one in self.evidence)
        if problem := self._problem:
            raise ValueError(problem)
        question = asked(source, self.question)
        return AnswerExample(identity, location, self.text, question, spans, group, self.paragraphs, facts)

    @property
    def _problem(self) -> str | None:
        """A mistake in paragraphs and evidence."""
        begins = list(chain.from_iterable(self.paragraphs))
        if not all(self.paragraphs) or begins != sorted(begins) or begins[:1] not in ([], [0]):
            return (
                "paragraphs: not the characters, in order and from 0 on, at which each one's title and sentences begin"
            )
        if begins and begins[-1] > len(self.text):
            return f"paragraphs: a part begins at character {begins[-1]}, and the text has {len(self.text)}"
        if begins and self.question_id is not None:
            return "paragraphs and question_id: a question with evidence is about one text"
        for paragraph, sentence in self.evidence or ():
            if not (0 <= paragraph < len(self.paragraphs) and 0 <= sentence < len(self.paragraphs[paragraph]) - 1):
                return f"evidence: no paragraph {paragraph} with a sentence {sentence}; both are counted from 0"
        return None


def choices_of(train: Sequence[AnswerExample]) -> list[str]:
    """The answers of the training examples that are no part of their texts, such as YES and NO."""
    answers = {answer for example in train for answer in example.answers or ()}
    return [choice for choice in CHOICES if (NOWHERE, choice) in answers]
