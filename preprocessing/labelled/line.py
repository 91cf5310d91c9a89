"""What the lines of our own format `jsonl` share; each kind of task has its own class in `tasks`."""

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
    """Fields that are left out where another one is given, of which they are copies."""

    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that a row of a table may have -> the names that published tables have for them; none: tables are not
    read."""
    needed: ClassVar[tuple[str, ...]] = ("text",)
    """Those of `cells` that a table must have."""
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields -> the names that published JSON lines have for them."""

    id: str | int | None = None

    @classmethod
    def completed(
        cls: type[AnyLine], source: LabelledFile, lines: Iterator[tuple[int, AnyLine]]
    ) -> Iterator[tuple[int, AnyLine]]:
        """The lines of a file with their numbers, and with what all of them together say of each."""
        return lines

    @abstractmethod
    def example(self, source: LabelledFile, identity: str, location: str) -> Example:
        """Raises ValueError for a line that lacks what its task needs."""


def examples_from(
    source: LabelledFile, model: type[TaskLine], lines: Iterator[tuple[int, TaskLine]]
) -> Iterator[Example]:
    """The examples of lines of the class `model` with their numbers, which are the ids of those without one."""
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
        raise ValueError("a text without a question; task.question='...' asks one of all such texts")
    return found
