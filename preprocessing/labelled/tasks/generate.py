"""`generate`: a text, the source, and the text that is to be written of it, such as its title."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine


@dataclass(frozen=True, slots=True)
class GenerateExample(Example):
    """A source and its target."""

    text: str
    """The source."""
    target: str | None = None
    """None: unlabelled."""

    @property
    def texts(self) -> dict[str, str]:
        return {"source": self.text, **({} if self.target is None else {"target": self.target})}

    @property
    def content(self) -> Hashable:
        return self.text

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [tuple(self.texts.values())]


class GenerateLine(TaskLine):
    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("source", "text", "document", "article", "content"),
        "target": ("target", "title", "headline", "summary"),
        "id": ("id",),
    }
    names: ClassVar[Mapping[str, tuple[str, ...]]] = cells

    text: str
    target: str | None = None

    def example(self, source: LabelledFile, identity: str, location: str) -> GenerateExample:
        return GenerateExample(identity, location, self.text, self.target)
