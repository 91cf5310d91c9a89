"""`phrases`: the key phrases of a document, runs of its words."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from reread.preprocessing.labelled.examples import Notes, Split
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine
from reread.preprocessing.labelled.words import SplitText, split

Phrase = tuple[str, ...]
"""The words of a phrase in lower case, by which phrases are compared."""
ABSENT = -1
"""The place of a phrase that its text does not hold."""
_SEPARATOR = re.compile("[;；]")
_SHOWN = 60
"""Characters of a wrong phrase that its line shows."""


@dataclass(frozen=True, slots=True)
class PhrasesExample(SplitText):
    """A document and its key phrases; `phrases_example` makes it."""

    misplaced = ("texts", "a key phrase that they do not hold", "phrases")

    phrases: tuple[str, ...] | None = None
    """As the file has them, without those that are empty or stand twice. None: unlabelled."""
    keys: tuple[Phrase, ...] = ()
    """The words of each phrase."""
    places: tuple[int, ...] = ()
    """The first word of the first occurrence of each phrase, or `ABSENT`."""

    @property
    def lower(self) -> Phrase:
        """The words in lower case."""
        return tuple(map(str.lower, self.words))

    def span(self, first: int, count: int) -> tuple[int, int]:
        """The characters [start, end) of `count` words."""
        words, starts = self.words, self.starts
        last = first + count - 1
        return starts[first], starts[last] + len(words[last])

    @property
    def target(self) -> tuple[str, ...] | None:
        return self.phrases

    @property
    def others(self) -> dict[str, str]:
        return {f"key phrase {number}": phrase for number, phrase in enumerate(self.phrases or (), 1)}

    @property
    def problem(self) -> str | None:
        return "no key phrases; give it some, or delete the example" if self.phrases == () else None

    @property
    def can_be_learned(self) -> bool:
        return self.phrases is None or any(place != ABSENT for place in self.places)

    def checked(self, notes: Notes) -> "PhrasesExample":
        for number, (phrase, place) in enumerate(zip(self.phrases or (), self.places, strict=True), 1):
            if place == ABSENT:
                shown = phrase if len(phrase) <= _SHOWN else phrase[:_SHOWN] + "..."
                notes.misplace(
                    self.location, f"key phrase {number} of {len(self.places)}, `{shown}`, is not in the text"
                )
        return self


def phrases_example(
    identity: str, location: str, text: str, phrases: Iterable[str] | None, into: Split
) -> PhrasesExample:
    """The example of a text and its key phrases, all split in the same way."""
    if phrases is None:
        return PhrasesExample(identity, location, text, into)
    by_key: dict[Phrase, str] = {}
    for phrase in phrases:
        if key := tuple(map(str.lower, split(phrase, into)[0])):
            by_key.setdefault(key, phrase.strip())
    lower = tuple(map(str.lower, split(text, into)[0]))
    places = tuple(next(places_of(key, lower), ABSENT) for key in by_key)
    return PhrasesExample(identity, location, text, into, tuple(by_key.values()), tuple(by_key), places)


def places_of(phrase: Phrase, words: Sequence[str]) -> Iterator[int]:
    """The first word of each occurrence of a phrase among `words`, which are in lower case as it is."""
    begin, count = -1, len(phrase)
    while True:
        try:
            begin = words.index(phrase[0], begin + 1)
        except ValueError:
            return
        if tuple(words[begin : begin + count]) == phrase:
            yield begin


def _as_list(value: Any) -> Any:
    """The phrases of one text, such as a cell of a table, lie between semicolons; an empty one is no label."""
    if isinstance(value, str):
        return _SEPARATOR.split(value) if value.strip() else None
    return value


def _as_text(value: Any) -> Any:
    """A phrase may be a list of words, as OpenKP's are."""
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value


class PhrasesLine(TaskLine):
    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("text", "document", "abstract"),
        "phrases": ("phrases", "KeyPhrases", "keyphrases", "key_phrases", "keywords", "keyword"),
        "id": ("id", "url"),
    }
    names: ClassVar[Mapping[str, tuple[str, ...]]] = cells
    """They include those of OpenKP (url, KeyPhrases) and of KP20k (keyword, keywords)."""

    text: str
    phrases: Annotated[tuple[Annotated[str, BeforeValidator(_as_text)], ...] | None, BeforeValidator(_as_list)] = None

    def example(self, source: LabelledFile, identity: str, location: str) -> PhrasesExample:
        return phrases_example(identity, location, self.text, self.phrases, source.given.split or "words")
