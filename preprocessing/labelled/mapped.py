"""The examples of a large file in mapped arrays, and what is asked of all examples of a file at once."""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, cached_property, singledispatch
from hashlib import md5
from itertools import chain, pairwise
from json.encoder import encode_basestring
from operator import attrgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.arrays import Arrays, ArrayWriter
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.tasks.answer import AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.coreference import CoreferenceExample
from reread.preprocessing.labelled.tasks.embed import EmbedExample
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.labelled.tasks.phrases import PhrasesExample
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.labelled.tasks.tag import SplitExample, TagExample

EXAMPLES: dict[str, type[Example]] = {
    one.__name__: one
    for one in (
        *(ClassifyExample, TagExample, SplitExample, AnswerExample),
        *(ChooseExample, RankExample, PhrasesExample, CoreferenceExample, GenerateExample, EmbedExample),
    )
}
_RECENT, _RECENT_BYTES = 256, 1 << 26
"""Examples that are kept as objects, since each window of a document asks for its example, and UTF-8 bytes of the long
texts in them."""
_TOGETHER = 1 << 20
"""Bytes of records that are read or written together."""
LONG = 1 << 16
"""Characters above which a text is written beside its record, and hashed, a piece of as many at a time."""

_decode = json.JSONDecoder().raw_decode


@cache
def _getter(kind: type[Example]) -> Callable[[Example], Any]:
    return attrgetter(*(one.name for one in fields(kind)))


@cache
def _added(kind: type[Example]) -> dict[int, Any]:
    """The numbers of the fields that are `ADDED`, with their defaults."""
    return {number: one.default for number, one in enumerate(fields(kind)) if one.metadata}


def _values(example: Example) -> tuple[Any, ...]:
    """The values of the fields: id, location, and those of its kind."""
    return _getter(type(example))(example)  # type: ignore[no-any-return]


class Summary:
    """What is asked of all examples at once."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self.counts: Counter[str] = Counter()
        """The number of examples with each label, or of tokens with each tag, in the order of their first ones."""
        self.first: dict[str, str] = {}
        """Label -> the location of its first example."""
        self.unlabelled: str | None = None
        """The location of the first example without a label."""
        self.not_learned = 0
        """The number of examples that cannot be learned."""
        for one in examples:
            self.add(one)

    def add(self, example: Example) -> None:
        for name in example.classes:
            if name not in self.counts:
                self.first[name] = example.location
            self.counts[name] += 1
        if self.unlabelled is None and example.target is None:
            self.unlabelled = example.location
        self.not_learned += not example.can_be_learned

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Summary":
        """The summary whose `vars` have gone through JSON."""
        found = cls()
        vars(found).update({**values, "counts": Counter(values["counts"])})
        return found


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > LONG


def _pieces(text: str) -> Iterator[str]:
    return (text[begin : begin + LONG] for begin in range(0, len(text), LONG))


def _quoted(value: Any) -> Iterator[str]:
    """`repr` of a value; that of a long text in pieces."""
    if not _is_long(value):
        yield repr(value)
        return
    quote, other = ('"', "'") if "'" in value and '"' not in value else ("'", '"')
    yield quote
    for piece in _pieces(value):
        yield repr(other + piece)[2:-1]  # the other mark before it makes `repr` choose this one
    yield quote


class Fingerprint:
    """A hash of examples, independent of the location of their file."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._digest = md5()
        for one in examples:
            self.add(type(one), _values(one))

    def add(self, kind: type[Example], values: Sequence[Any]) -> None:
        """Add the example of this class with these `_values`; `ADDED` fields count if they have another value."""
        identity, _, *others = values
        if added := _added(kind):
            others = [one for number, one in enumerate(others, 2) if number not in added or one != added[number]]
        if not any(map(_is_long, others)):
            self._digest.update(repr((identity, others)).encode(errors="surrogatepass"))
            return
        before = f"({identity!r}, ["
        for one in others:
            for part in chain((before,), _quoted(one)):
                self._digest.update(part.encode(errors="surrogatepass"))
            before = ", "
        self._digest.update(b"])")

    def hex(self) -> str:
        return self._digest.hexdigest()


class MappedExamples(Sequence[Any]):
    """Examples in arrays, each made when it is asked for; `chosen` ones alone, and each as `change` returns it."""

    def __init__(
        self,
        mapped: Arrays,
        chosen: NDArray[np.int64] | None = None,
        change: Callable[[Any], Any] | None = None,
    ) -> None:
        self.mapped, self._chosen, self._change = mapped, chosen, change
        self._records, self._begins, self._texts = (mapped.arrays[name] for name in ("records", "begins", "texts"))
        self._kinds = [EXAMPLES[name] for name in mapped.facts["kinds"]]
        self._recent: dict[int, tuple[Any, int]] = {}
        """Index -> example, and bytes of its long texts; the latest that was asked for is the last."""
        self._recent_bytes = 0

    def where(self, wanted: Callable[[Any], bool]) -> "MappedExamples":
        """The examples that are `wanted`."""
        kept = np.array([number for number, one in enumerate(self) if wanted(one)], np.int64)
        return MappedExamples(self.mapped, kept if self._chosen is None else self._chosen[kept], self._change)

    def changed(self, change: Callable[[Any], Any]) -> "MappedExamples":
        """The examples as `change` returns them."""
        return MappedExamples(self.mapped, self._chosen, change)

    @cached_property
    def summary(self) -> Summary:
        return Summary.read(self.mapped.facts["summary"]) if self._is_whole else Summary(self)

    @cached_property
    def fingerprint(self) -> str:
        return self.mapped.facts["fingerprint"] if self._is_whole else Fingerprint(self).hex()

    @property
    def _is_whole(self) -> bool:
        return self._chosen is None and self._change is None

    def __len__(self) -> int:
        return len(self._begins) - 1 if self._chosen is None else len(self._chosen)

    def __iter__(self) -> Iterator[Any]:
        return self._several(range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        numbers = range(len(self))[index]
        return self._one(numbers) if isinstance(numbers, int) else list(self._several(numbers))

    def _one(self, index: int) -> Any:
        """An example, which is made if it is not among the recent ones."""
        if (found := self._recent.pop(index, None)) is None:
            record = self._record(index)
            size = sum(one["end"] - one["begin"] for one in record if isinstance(one, dict))
            self._recent_bytes += size
            while self._recent and (len(self._recent) >= _RECENT or self._recent_bytes > _RECENT_BYTES):
                self._recent_bytes -= self._recent.pop(next(iter(self._recent)))[1]
            found = self._made(record), size
        self._recent[index] = found
        return found[0]

    def _several(self, numbers: range) -> Iterator[Any]:
        """Each is made when it is asked for, of records that are read together."""
        if self._chosen is not None or numbers.step != 1:
            yield from (self._made(self._record(number)) for number in numbers)
            return
        first = numbers.start
        while first < numbers.stop:
            enough = int(self._begins[first]) + _TOGETHER
            last = int(np.searchsorted(self._begins[: numbers.stop + 1], enough, "right")) - 1
            begins = self._begins[first : max(first + 1, last) + 1].tolist()
            data = self._records[begins[0] : begins[-1]].tobytes()
            for begin, end in pairwise(begins):
                yield self._made(_values_of(data[begin - begins[0] : end - begins[0]]))
            first += len(begins) - 1

    def _record(self, index: int) -> list[Any]:
        number = index if self._chosen is None else self._chosen[index]
        begin, end = self._begins[number : number + 2].tolist()
        return _values_of(self._records[begin:end].tobytes())

    def _made(self, record: list[Any]) -> Any:
        kind, *values = record
        example = self._kinds[kind].of([self._text(one) if isinstance(one, dict) else one for one in values])
        return example if self._change is None else self._change(example)

    def _text(self, place: dict[str, int]) -> str:
        return str(self._texts[place["begin"] : place["end"]].data, "utf-8", "surrogatepass")


def _values_of(record: bytes) -> list[Any]:
    return _decode(record.decode("utf-8", "surrogatepass"))[0]  # type: ignore[no-any-return]


@singledispatch
def summary_of(examples: Iterable[Example]) -> Summary:
    return Summary(examples)


@summary_of.register
def _(examples: MappedExamples) -> Summary:
    return examples.summary


@singledispatch
def fingerprint_of(examples: Iterable[Example]) -> str:
    return Fingerprint(examples).hex()


@fingerprint_of.register
def _(examples: MappedExamples) -> str:
    return examples.fingerprint


@singledispatch
def where(examples: Sequence[Any], wanted: Callable[[Any], bool]) -> Sequence[Any]:
    """The examples that are `wanted`, mapped ones as mapped ones."""
    return list(filter(wanted, examples))


@where.register
def _(examples: MappedExamples, wanted: Callable[[Any], bool]) -> Sequence[Any]:
    return examples.where(wanted)


@singledispatch
def changed(examples: Sequence[Any], change: Callable[[Any], Any]) -> Sequence[Any]:
    """The examples as `change` returns them, mapped ones as mapped ones."""
    return list(map(change, examples))


@changed.register
def _(examples: MappedExamples, change: Callable[[Any], Any]) -> Sequence[Any]:
    return examples.changed(change)


class _Texts:
    """The long texts of examples as UTF-8, in an array of their own."""

    def __init__(self, writer: ArrayWriter) -> None:
        self._writer, self._end = writer, 0
        writer.append("texts", np.empty(0, np.uint8))

    def encoded(self, value: Any) -> str:
        """A value as JSON: of a long text its place. Most are texts or None, for which json.dumps takes longer."""
        if _is_long(value):
            begin = self._end
            for piece in _pieces(value):
                data = np.frombuffer(piece.encode("utf-8", "surrogatepass"), np.uint8)
                self._writer.append("texts", data)
                self._end += len(data)
            return json.dumps({"begin": begin, "end": self._end})
        if isinstance(value, str):
            return encode_basestring(value)
        return "null" if value is None else json.dumps(value, ensure_ascii=False)


def write_examples(examples: Iterable[Example], writer: ArrayWriter) -> MappedExamples:
    """Write examples as they come."""
    begins, kinds, summary, fingerprint = array("q", [0]), dict[str, int](), Summary(), Fingerprint()
    records, texts = bytearray(), _Texts(writer)
    for one in examples:
        values = _values(one)
        kind = str(kinds.setdefault(type(one).__name__, len(kinds)))
        before = len(records)
        records += f"[{','.join([kind, *map(texts.encoded, values)])}]".encode("utf-8", "surrogatepass")
        begins.append(begins[-1] + len(records) - before)
        if len(records) >= _TOGETHER:
            writer.append("records", np.frombuffer(records, np.uint8))
            records = bytearray()
        summary.add(one)
        fingerprint.add(type(one), values)
    writer.append("records", np.frombuffer(records, np.uint8))
    writer.append("begins", np.frombuffer(begins, np.int64))
    facts = {"kinds": [*kinds], "summary": vars(summary), "fingerprint": fingerprint.hex()}
    return MappedExamples(Arrays(writer.mapped(), facts))
