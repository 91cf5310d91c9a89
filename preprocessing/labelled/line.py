"""The base class of the lines of our own format `jsonl`; each kind of task has its own class in `tasks`."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.settings import Settings

AnyLine = TypeVar("AnyLine", bound="TaskLine")


class TaskLine(Settings):
    """One JSON object; its fields are those of the task's example."""

    copied: ClassVar[Mapping[str, str]] = {}
    """Fields that copy another field -> that field; they are ignored if it is given."""

    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The columns that a table may have -> their names in published tables; empty if the task reads no tables."""
    needed: ClassVar[tuple[str, ...]] = ("text",)
    """Columns of `cells` without which a table is refused."""
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields -> their names in published JSON lines."""

    id: str | int | None = None

    @classmethod
    def completed(
        cls: type[AnyLine], source: LabelledFile, lines: Iterator[tuple[int, AnyLine]]
    ) -> Iterator[tuple[int, AnyLine]]:
        """The lines of a file with their numbers, completed by what follows from all lines together."""
        return lines

    @abstractmethod
    def example(self, source: LabelledFile, identity: str, location: str) -> Example:
        """Raises ValueError for a line that lacks what its task needs."""


def examples_from(
    source: LabelledFile, model: type[TaskLine], lines: Iterator[tuple[int, TaskLine]]
) -> Iterator[Example]:
    """The examples of numbered lines of the class `model`; a line without an id has its number as id."""
    for number, line in model.completed(source, lines):
        identity, location = str(number if line.id is None else line.id), source.location(number)
        try:
            yield line.example(source, identity, location)
        except ValueError as error:
            source.mistake(location, str(error))


def asked(source: LabelledFile, question: str | None = None) -> str:
    """The question of a text. Raises ValueError if there is none."""
    found = source.given.question if question is None else question
    if found is None:
        raise ValueError("a text without a question; give all such texts one by task.question='...'")
    return found
