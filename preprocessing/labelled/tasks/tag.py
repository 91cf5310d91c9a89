"""`tag`: a tag for each word or character, and how raw text to tag is split."""

import logging
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

from reread.preprocessing.labelled.examples import Example, Split
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.line import TaskLine
from reread.preprocessing.labelled.words import split

log = logging.getLogger("reread")
IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_FEW = 0.01


@dataclass(frozen=True, slots=True)
class TagExample(Example):
    """Words or characters with a tag each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """None: unlabelled."""
    joiner: str = ""
    """The separator of two tokens in the text: a blank or nothing."""

    @property
    def text(self) -> str:
        """The tokens as one text."""
        return self.joiner.join(self.tokens)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters [begin, end) of the text that each token is."""
        begins = accumulate((len(token) + len(self.joiner) for token in self.tokens), initial=0)
        return [(begin, begin + len(token)) for begin, token in zip(begins, self.tokens, strict=False)]

    @property
    def target(self) -> tuple[str, ...] | None:
        return self.tags

    @property
    def texts(self) -> dict[str, str]:
        return {"text": self.text}

    @property
    def content(self) -> Hashable:
        return self.tokens

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(self.text,)]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.tags or ()

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        yield "id", self.id
        yield from (("tag", tag) for tag in set(self.classes))

    @property
    def problem(self) -> str | None:
        if not all(self.tokens):
            return "a token is empty; give it a character, such as a blank"
        if self.tags is not None and len(self.tags) != len(self.tokens):
            return f"{len(self.tags)} tags for {len(self.tokens)} tokens; give each token one tag"
        return None


@dataclass(frozen=True, slots=True)
class SplitExample(TagExample):
    """A text without tags, split into words or characters."""

    starts: tuple[int, ...] = ()
    """The character of the text at which each token begins."""
    whole: str = ""

    @property
    def text(self) -> str:
        """The text as it was given, with all that is between its tokens."""
        return self.whole

    @property
    def spans(self) -> list[tuple[int, int]]:
        """As in `TagExample`."""
        return [(start, start + len(token)) for start, token in zip(self.starts, self.tokens, strict=True)]


class TagLine(TaskLine):
    copied: ClassVar[Mapping[str, str]] = {"text": "tokens"}

    text: str | None = None
    tokens: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    joiner: Literal["", " "] | None = None

    @classmethod
    def completed(cls, source: LabelledFile, lines: "Iterator[tuple[int, TagLine]]") -> "Iterator[tuple[int, TagLine]]":
        parsed = list(lines)
        joiner = joiner_of(source, (line.tokens or () for _, line in parsed if line.joiner is None))
        for number, line in parsed:
            yield number, line.model_copy(update={"joiner": joiner}) if line.joiner is None else line

    def example(self, source: LabelledFile, identity: str, location: str) -> TagExample:
        if self.tokens is not None:
            return TagExample(identity, location, self.tokens, self.tags, self.joiner or "")
        if self.text is None or self.tags is not None:
            raise ValueError("tokens: field required" if self.tags is not None else "neither `tokens` nor `text`")
        return _tagged(source, identity, location, self.text)


def _tagged(source: LabelledFile, identity: str, location: str, text: str) -> SplitExample:
    """A text to tag. Raises ValueError if `task.split` is not set."""
    if source.given.split is None:
        raise ValueError(
            "a text without `tokens`; task.split=words, or characters, says what it is split into, as were the texts "
            "that the model learned from"
        )
    tokens, starts = split(text, source.given.split)
    return SplitExample(identity, location, tokens, starts=starts, whole=text)


def split_of(train: Sequence[TagExample]) -> Split | None:
    """What the training examples are split into, if raw text can be split so: characters, or BERT's basic words.

    None if their tokens are longer, such as Chinese words.
    """
    tokens = [token for example in train for token in example.tokens]
    chinese = [token for token in tokens if IDEOGRAPH.search(token)]
    if sum(len(token) > 1 for token in chinese) > _FEW * len(chinese):
        return None
    return "words" if sum(len(token) > 1 for token in tokens) > _FEW * len(tokens) else "characters"


def joiner_of(source: LabelledFile, sentences: Iterable[tuple[str, ...]]) -> str:
    """What joins the tokens to a text: nothing if most tokens with letters are Chinese or Japanese, else a blank."""
    chinese = others = 0
    for token, count in Counter(token for tokens in sentences for token in tokens).items():
        if IDEOGRAPH.search(token):
            chinese += count
        elif any(map(str.isalpha, token)):
            others += count
    if not chinese and not others:
        return ""
    joiner, name = ("", "nothing") if chinese > others else (" ", "a blank")
    reason = f"{chinese:,} tokens have Chinese or Japanese characters, {others:,} other letters"
    log.info(f"{source.path}: {name} between tokens ({reason})")
    return joiner
