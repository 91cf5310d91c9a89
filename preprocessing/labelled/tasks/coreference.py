"""`coreference`: the mentions of a document, in clusters that each name one thing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reread.preprocessing.labelled.examples import Split
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine
from reread.preprocessing.labelled.tasks.tag import IDEOGRAPH
from reread.preprocessing.labelled.words import SplitText

Span = tuple[int, int]
"""[start, end)"""
Cluster = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class CoreferenceExample(SplitText):
    """A document and its clusters of mentions; `coreference_example` and `of_tokens` check them."""

    clusters: tuple[Cluster, ...] | None = None
    """The characters of each mention, those of one mention too. None: unlabelled."""

    @property
    def spans(self) -> list[Span]:
        """The characters of each word."""
        return [(start, start + len(word)) for word, start in zip(self.words, self.starts, strict=True)]

    @property
    def linked(self) -> tuple[Cluster, ...]:
        """The clusters of two mentions or more."""
        return tuple(one for one in self.clusters or () if len(one) > 1)

    @property
    def target(self) -> tuple[Cluster, ...] | None:
        return self.clusters


def coreference_example(
    identity: str, location: str, text: str, clusters: Iterable[Sequence[Span]] | None, into: Split
) -> CoreferenceExample:
    """The example of a text. A mention that stands twice in its cluster counts once. Raises ValueError for one that is
    outside the text or in two clusters."""
    if clusters is None:
        return CoreferenceExample(identity, location, text, into)
    found = _checked(clusters, len(text), "characters")
    return CoreferenceExample(identity, location, text, into, found)


def of_tokens(
    identity: str, location: str, sentences: Sequence[Sequence[str]], clusters: Iterable[Sequence[Span]] | None
) -> CoreferenceExample:
    """The example of tokens, whose numbers the spans are. The text has a line for each sentence, and blanks between
    tokens, which are its words; in Chinese or Japanese nothing, and characters are.

    Raises ValueError as `coreference_example`, and for a token that is empty or holds a blank."""
    tokens = [token for sentence in sentences for token in sentence]
    if wrong := next((token for token in tokens if token.split() != [token]), None):
        raise ValueError(f"token {tokens.index(wrong) + 1} is {wrong!r}; a token is neither empty nor holds a blank")
    letters = [token for token in tokens if any(map(str.isalpha, token))]
    is_chinese = 2 * sum(bool(IDEOGRAPH.search(token)) for token in letters) > len(letters)
    text, spans = "", []
    for sentence in sentences:
        text += "\n" if text else ""
        for number, token in enumerate(sentence):
            apart = number and not (is_chinese and any(map(IDEOGRAPH.search, (sentence[number - 1][-1], token[0]))))
            text += " " if apart else ""
            spans.append((len(text), len(text) + len(token)))
            text += token
    found = None
    if clusters is not None:
        by_token = _checked(clusters, len(tokens), "tokens")
        found = tuple(tuple((spans[start][0], spans[end - 1][1]) for start, end in one) for one in by_token)
    return CoreferenceExample(identity, location, text, "characters" if is_chinese else "blanks", found)


def _checked(clusters: Iterable[Sequence[Span]], length: int, units: str) -> tuple[Cluster, ...]:
    """The clusters, each in the order of the text; empty ones are left out."""
    found = tuple(tuple(sorted(set(one))) for one in clusters if one)
    for number, one in enumerate(found, 1):
        for start, end in one:
            if start == end:
                raise ValueError(f"cluster {number}: [{start}, {end}] is empty; a span ends behind its last unit")
            if not 0 <= start < end <= length:
                raise ValueError(f"cluster {number}: [{start}, {end}] is outside the text, which has {length} {units}")
    counts = Counter(span for one in found for span in one)
    if twice := next((span for span, count in counts.items() if count > 1), None):
        raise ValueError(f"the mention {list(twice)} is in two clusters; leave it in one")
    return found


class CoreferenceLine(TaskLine):
    text: str | None = None
    tokens: tuple[str, ...] | None = None
    clusters: tuple[tuple[Span, ...], ...] | None = None
    """[start, end) of each mention, in characters of `text`, or in `tokens`."""

    def example(self, source: LabelledFile, identity: str, location: str) -> CoreferenceExample:
        if self.tokens is not None and self.text is not None:
            raise ValueError("both `text` and `tokens`; spans are those of one of them, so leave the other out")
        if self.tokens is not None:
            return of_tokens(identity, location, [self.tokens], self.clusters)
        if self.text is None:
            raise ValueError("neither `text` nor `tokens`")
        return coreference_example(identity, location, self.text, self.clusters, source.given.split or "words")
