"""`choose`: a question about a text, answered by one of several options."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator

from reread.preprocessing.labelled.examples import ADDED, Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine, asked


@dataclass(frozen=True, slots=True)
class ChooseExample(Example):
    """A question about a text, answered by one of several options; it may name a blank in the text as `[BLANK3]`."""

    read = ("text", "question", "options")

    text: str
    question: str
    options: tuple[str, ...]
    label: int | None = None
    """The right option, counted from 0. None: unlabelled."""
    group: str | None = None
    """The passage: questions with the same group belong together."""
    starts: tuple[int, ...] = field(default=(), metadata=ADDED)
    """The characters at which each document of the text but the first begins; empty: it is one document."""

    @property
    def documents(self) -> list[str]:
        """The parts of the text, without blanks at their ends."""
        return [self.text[begin:end].rstrip() for begin, end in pairwise((0, *self.starts, len(self.text)))]

    @property
    def target(self) -> int | None:
        return self.label

    @property
    def texts(self) -> dict[str, str]:
        return {"text": self.text, **{f"option {number}": option for number, option in enumerate(self.options)}}

    @property
    def others(self) -> dict[str, str]:
        """The question, which is empty in CAIL2019-SCM."""
        return {"question": self.question}

    @property
    def content(self) -> Hashable:
        return self.text, self.question

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(self.text, self.question, option) for option in self.options]

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        yield "id", self.id
        if self.group is not None:
            yield "group", self.group

    @property
    def problem(self) -> str | None:
        count = len(self.options)
        if count < 2:
            return f"{count} options; a choice needs two or more"
        if self.label is not None and not 0 <= self.label < count:
            return f"label {self.label} for {count} options; they are counted from 0 to {count - 1}"
        if self.starts and any(begin >= end for begin, end in pairwise((0, *self.starts, len(self.text)))):
            return f"starts {list(self.starts)}: not the characters, in order, at which documents of its text begin"
        return None


def _number(label: Any) -> Any:
    if isinstance(label, str) and not label.strip().isdecimal():
        raise ValueError("the number of the right option, counted from 0, and not its letter or its text")
    return label


class ChooseLine(TaskLine):
    text: str
    question: str | None = None
    options: tuple[str, ...] | None = None
    label: Annotated[int | None, BeforeValidator(_number)] = None
    group: str | None = None
    starts: tuple[int, ...] = ()

    def example(self, source: LabelledFile, identity: str, location: str) -> ChooseExample:
        question, options = asked(source, self.question), _offered(source, self.options)
        more = self.label, self.group, self.starts
        return ChooseExample(identity, location, self.text, question, options, *more)


def _offered(source: LabelledFile, options: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The options of a question. Raises ValueError if there are none."""
    found = source.given.options if options is None else options
    if options is None and not found:
        raise ValueError("a text without options; give all such texts the same by task.options='[..., ...]'")
    return found
