"""The examples that fine-tuning learns from and is scored on, one class for each kind of task."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Example:
    """The fields that all kinds share."""

    id: str
    """Unique within its file."""
    place: str
    """Where it is, for messages: `FILE:LINE` or `FILE: article 12`."""


@dataclass(frozen=True, slots=True)
class ClassifyExample(Example):
    """A text or a pair of texts, with one label, a set of labels (a tuple, maybe empty) or a number."""

    text: str
    second: str | None = None
    label: str | tuple[str, ...] | float | None = None
    """None: unlabelled."""


@dataclass(frozen=True, slots=True)
class TagExample(Example):
    """Words or characters with a tag each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """None: unlabelled."""
    joiner: str = ""
    """What stands between two tokens in the text: a blank or nothing."""

    @property
    def text(self) -> str:
        """The tokens as one text."""
        return self.joiner.join(self.tokens)


class Answer(NamedTuple):
    start: int
    """In characters of the context."""
    text: str


@dataclass(frozen=True, slots=True)
class AnswerExample(Example):
    """A question about a text, answered by spans of the text."""

    text: str
    question: str
    answers: tuple[Answer, ...] | None = None
    """Empty: the text does not answer the question. None: unlabelled."""


@dataclass(frozen=True, slots=True)
class ChooseExample(Example):
    """A question about a text, answered by one of several options; it may name a place in the text as `[BLANK3]`."""

    text: str
    question: str
    options: tuple[str, ...]
    label: int | None = None
    """The right option, counted from 0. None: unlabelled."""
    group: str | None = None
    """The passage: questions with the same group belong together."""
