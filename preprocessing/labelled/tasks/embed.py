"""`embed`: texts whose vectors are learned: alone, with texts that mean the same, or with a score of likeness.

A line has a text, and may have `positives` and hard `negatives`, or one other text and a `score`. Of a retrieval file
(formats/beir.py) a query is such a line, and each further document of the corpus an example of its own.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine


@dataclass(frozen=True, slots=True)
class EmbedExample(Example):
    """A text, alone or with others that are near to it or far from it."""

    read = ("text", "positives", "negatives")

    text: str
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    score: float | None = None
    """How alike text and the one positive are; None: no such number is known."""
    grades: tuple[float, ...] = ()
    """How relevant each positive is; empty: 1 each."""
    ids: tuple[str, ...] = ()
    """Of positives, then of negatives, where a corpus has them."""
    document: bool = False
    """A document of a corpus that is searched, which no query is known to want."""

    @property
    def target(self) -> object:
        return self.text

    @property
    def texts(self) -> dict[str, str]:
        named = {"positive": self.positives, "negative": self.negatives}
        others = {f"{name} {number}": one for name, many in named.items() for number, one in enumerate(many)}
        return {"text": self.text, **others}

    @property
    def content(self) -> Hashable:
        return self.text, self.positives

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(one,) for one in (self.text, *self.positives, *self.negatives)]

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        yield "id", self.id
        yield from (("document id", one) for one in self.ids)

    @property
    def problem(self) -> str | None:
        if self.score is not None and (len(self.positives) != 1 or self.negatives):
            return "a score is of two texts; give it one other text, or leave the score out"
        if self.negatives and not self.positives and not self.ids:
            return "negatives without a positive; give it one"
        return None

    @property
    def can_be_learned(self) -> bool:
        return not self.document and bool(self.positives or not self.ids)


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _others(value: Any) -> Any:
    return () if value in ("", None) else _texts(value)


class EmbedLine(TaskLine):
    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "id": ("id", "_id", "guid", "idx"),
        "text": (
            *("text", "query", "anchor", "sentence1", "text_a", "question"),
            *("question1", "premise", "sentence", "sent0"),
        ),
        "positives": (
            *("positives", "positive", "pos", "sentence2", "text_b", "second"),
            *("answer", "question2", "sent1", "hypothesis", "document", "passage"),
        ),
        "negatives": ("negatives", "negative", "neg", "hard_neg"),
        "score": ("score", "similarity", "similarity_score", "relatedness_score", "label"),
    }
    """Among them those of sentence-transformers, FlagEmbedding, SimCSE's NLI triplets and the STS files."""
    needed: ClassVar[tuple[str, ...]] = ("text",)
    names: ClassVar[Mapping[str, tuple[str, ...]]] = cells

    text: str
    positives: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    negatives: Annotated[tuple[str, ...], BeforeValidator(_others)] = ()
    score: Annotated[
        Annotated[float, Field(allow_inf_nan=False)] | None,
        BeforeValidator(lambda value: None if value == "" else value),
    ] = None

    def example(self, source: LabelledFile, identity: str, location: str) -> EmbedExample:
        return EmbedExample(identity, location, self.text, self.positives, self.negatives, self.score)
