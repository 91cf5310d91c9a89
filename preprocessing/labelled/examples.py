"""The base class of all examples; each kind of task has its own class in `tasks`."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

Split = Literal["words", "characters", "blanks"]
"""The units of raw text (`words.split`)."""


class Given(NamedTuple):
    """Values of a task for all examples that lack them, such as raw texts, and what it reads beside text and label."""

    split: Split | None = None
    """The units into which a text is split."""
    question: str | None = None
    options: tuple[str, ...] = ()
    evidence: bool = False
    """Whether the task reads the paragraphs and sentences of a text, and which of them support its answer."""


NOTHING = Given()

ADDED = {"added": True}
"""Metadata of a field that examples had not at first; at its default it does not count in their fingerprint."""


class Notes(Protocol):
    """The receiver of reports about mistakes (`LabelledFile`)."""

    def mistake(self, location: str, reason: str) -> None: ...

    def misplace(self, location: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Example(ABC):
    """One labelled or unlabelled item of a file."""

    id: str
    """Unique within its file."""
    location: str
    """Its location for messages: `FILE:LINE` or `FILE: article 12`."""

    read: ClassVar[tuple[str, ...]] = ("text",)
    """The fields that a model reads."""

    misplaced: ClassVar[tuple[str, str, str]] = ("questions", "an answer that is not where the file says", "answers")
    """Names, for messages, of its kind's examples, of what is wrong in misplaced ones, and of their parts."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Example":
        """The example whose fields have these values after they have gone through JSON."""
        fields: list[Any] = [_as_tuple(one) if isinstance(one, list) else one for one in values]
        return cls(*fields)

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
        """Equal for two examples that ask the same, whatever their labels are."""

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
        """(kind, text) of the ids, labels and tags, which become part of lines of other files."""
        yield "id", self.id

    @property
    def classes(self) -> tuple[str, ...]:
        """Its labels among `task.labels`, in order; empty for tasks without classes."""
        return ()

    @property
    def problem(self) -> str | None:
        """A mistake in it, other than in its texts and names; None if there is none."""
        return None

    @property
    def can_be_learned(self) -> bool:
        """Whether a model can learn from a labelled example; other examples are only scored."""
        return True

    def checked(self, notes: Notes) -> "Example | None":
        """The example with mistakes in its parts reported and marked; None if no part can be used."""
        return self


def _as_tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(_as_tuple(one) if isinstance(one, list) else one for one in values)
