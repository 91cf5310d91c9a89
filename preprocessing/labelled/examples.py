"""What the examples of all kinds of task share; each kind has its own class in `tasks`."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

Split = Literal["words", "characters"]


class Given(NamedTuple):
    """What a task says of all texts that come alone."""

    split: Split | None = None
    """What a text to tag is split into."""
    question: str | None = None
    options: tuple[str, ...] = ()


NOTHING = Given()


class Notes(Protocol):
    """Where mistakes are reported (`LabelledFile`)."""

    def mistake(self, location: str, reason: str) -> None: ...

    def misplace(self, location: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Example(ABC):
    """The fields that all kinds share."""

    id: str
    """Unique within its file."""
    location: str
    """Where it is, for messages: `FILE:LINE` or `FILE: article 12`."""

    read: ClassVar[tuple[str, ...]] = ("text",)
    """The fields that a model reads."""

    @property
    @abstractmethod
    def target(self) -> object:
        """The label, tags, answers or grades; None: unlabelled."""

    @property
    @abstractmethod
    def texts(self) -> dict[str, str]:
        """The texts that must not be empty, by name."""

    @property
    @abstractmethod
    def content(self) -> Hashable:
        """What makes two examples the same question, whatever their labels are."""

    @property
    @abstractmethod
    def rows(self) -> list[tuple[str, ...]]:
        """The texts of each row that the example makes; windows cut the first, the others stand beside each window."""

    @property
    def others(self) -> dict[str, str]:
        """The texts that may be empty, by name."""
        return {}

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        """What becomes part of other files' lines, with its kind: ids, labels, tags."""
        yield "id", self.id

    @property
    def classes(self) -> tuple[str, ...]:
        """Its labels among `task.labels`, in order; empty for tasks without classes."""
        return ()

    @property
    def problem(self) -> str | None:
        """What is wrong with it beside its texts and names."""
        return None

    @property
    def can_be_learned(self) -> bool:
        """Whether a labelled example has something to learn from; others are scored alone."""
        return True

    def checked(self, notes: Notes) -> "Example | None":
        """The example with what is wrong in a part of it reported and marked; None if no part is of use."""
        return self
