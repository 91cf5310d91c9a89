"""`classify`: a text or a pair of texts, with one label, a set of labels or a number."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from reread.preprocessing.labelled.columns import NAMES
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine


@dataclass(frozen=True, slots=True)
class ClassifyExample(Example):
    """A text or a pair of texts, with one label, a set of labels (a tuple, maybe empty) or a number."""

    read = ("text", "second")

    text: str
    second: str | None = None
    label: str | tuple[str, ...] | float | None = None
    """None: unlabelled."""

    @property
    def target(self) -> str | tuple[str, ...] | float | None:
        return self.label

    @property
    def texts(self) -> dict[str, str]:
        return {"text": self.text, **({} if self.second is None else {"second": self.second})}

    @property
    def content(self) -> Hashable:
        return self.text, self.second

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [tuple(self.texts.values())]

    @property
    def classes(self) -> tuple[str, ...]:
        if isinstance(self.label, tuple):
            return self.label
        return (self.label,) if isinstance(self.label, str) else ()

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        yield "id", self.id
        yield from (("label", label) for label in self.classes)


class ClassifyLine(TaskLine):
    cells = NAMES

    text: str
    second: str | None = None
    label: Any = None

    def example(self, source: LabelledFile, identity: str, location: str) -> ClassifyExample:
        return ClassifyExample(identity, location, self.text, self.second, source.label(self.label))
