"""`rank`: a query and passages, each with a grade that says how relevant it is.

A line of `jsonl` has a query with all its passages, or with one passage, like a row of a table. Rows with the same
query id, or with the same query if they have no ids, belong together, wherever they are in the file.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine


@dataclass(frozen=True, slots=True)
class RankExample(Example):
    """A query and its passages."""

    read = ("query", "passages")

    query: str
    passages: tuple[str, ...]
    grades: tuple[float, ...] | None = None
    """0: not relevant; above: the higher, the more relevant. None: unlabelled."""
    passage_ids: tuple[str, ...] = ()
    """Empty: the passages have none."""

    @property
    def target(self) -> tuple[float, ...] | None:
        return self.grades

    @property
    def texts(self) -> dict[str, str]:
        return {"query": self.query, **{f"passage {number}": text for number, text in enumerate(self.passages)}}

    @property
    def content(self) -> Hashable:
        return self.query

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(self.query, passage) for passage in self.passages]

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        yield "id", self.id
        yield from (("passage id", one) for one in self.passage_ids)

    @property
    def problem(self) -> str | None:
        count = len(self.passages)
        if count < 2:
            return f"{count} passage{'s' * (count != 1)}; a ranking needs two or more"
        for name, values in (("grades", self.grades), ("passage_ids", self.passage_ids or None)):
            if values is not None and len(values) != count:
                return f"{len(values)} {name} for {count} passages; give each passage one"
        twice = next((name for name, times in Counter(self.passage_ids).items() if times > 1), None)
        return None if twice is None else f"passage id `{twice}` stands twice; give one of the two another"

    @property
    def can_be_learned(self) -> bool:
        return self.grades is None or any(self.grades)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Grade = Annotated[float, Field(ge=0)]
_Texts = Annotated[tuple[str, ...] | None, BeforeValidator(_as_list)]


class RankLine(TaskLine):
    cells: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "query": ("query", "question", "anchor"),
        "passage": ("passage", "document", "doc", "text"),
        "grade": ("grade", "label", "score", "relevance"),
        "id": ("query_id", "query-id", "qid", "id"),
        "passage_id": ("passage_id", "corpus-id", "pid", "docid", "doc_id"),
    }
    needed: ClassVar[tuple[str, ...]] = ("query", "passage")
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **cells,
        "passages": ("passages", "documents", "docs"),
        "grades": ("grades", "labels", "scores"),
        "positives": ("positives", "positive", "pos"),
        "negatives": ("negatives", "negative", "neg"),
    }
    """They include the names of FlagEmbedding (pos, neg), sentence-transformers and BEIR."""

    query: str
    passages: tuple[str, ...] | None = None
    grades: tuple[_Grade, ...] | None = None
    passage_ids: tuple[str | int, ...] | None = None
    positives: _Texts = None
    negatives: _Texts = None
    passage: str | None = None
    grade: Annotated[_Grade | None, BeforeValidator(lambda value: None if value == "" else value)] = None
    passage_id: str | int | None = None

    @classmethod
    def completed(
        cls, source: LabelledFile, lines: "Iterator[tuple[int, RankLine]]"
    ) -> "Iterator[tuple[int, RankLine]]":
        """Join the rows of each query."""
        rows: dict[Hashable, list[tuple[int, RankLine]]] = {}
        found = list[tuple[int, RankLine]]()
        for number, line in lines:
            if line.passage is None:
                found.append((number, line))
            else:
                rows.setdefault(line.query if line.id is None else ("id", line.id), []).append((number, line))
        found += [joined for group in rows.values() if (joined := cls._joined(source, group))]
        yield from sorted(found, key=lambda one: one[0])

    @classmethod
    def _joined(cls, source: LabelledFile, rows: "list[tuple[int, RankLine]]") -> "tuple[int, RankLine] | None":
        """One line for the rows of a query; None if one of them is a mistake."""
        first, of_query = rows[0]
        for name, reason in (("grade", "has a grade"), ("passage_id", "has a passage id")):
            missing = [number for number, row in rows if getattr(row, name) is None]
            if 0 < len(missing) < len(rows):
                source.mistake(
                    source.location(missing[0]), f"{name}: another passage of the query {reason}; give it one"
                )
                return None
        for number, row in rows:
            if row.query != of_query.query:
                other = (
                    f"query id `{row.id}` has another query at {source.location(first)}; give one of them another id"
                )
                source.mistake(source.location(number), other)
                return None
        values: dict[str, Any] = {
            "query": of_query.query,
            "id": of_query.id,
            "passages": tuple(row.passage for _, row in rows),
        }
        if of_query.grade is not None:
            values["grades"] = tuple(row.grade for _, row in rows)
        if of_query.passage_id is not None:
            values["passage_ids"] = tuple(row.passage_id for _, row in rows)
        return first, cls.model_construct(**values)

    def example(self, source: LabelledFile, identity: str, location: str) -> RankExample:
        passages, grades = self.passages, self.grades
        if self.positives is not None or self.negatives is not None:
            if passages is not None:
                raise ValueError("both `passages` and `positives` or `negatives`; delete one of the two")
            relevant, others = self.positives or (), self.negatives or ()
            passages, grades = relevant + others, (1.0,) * len(relevant) + (0.0,) * len(others)
        if passages is None:
            raise ValueError("passages: field required, or `positives` and `negatives`, or a `passage` a line")
        ids = tuple(str(one) for one in self.passage_ids or ())
        return RankExample(identity, location, self.query, passages, grades, ids)
