"""Splits raw text into the units that a task predicts, and the examples whose words are made so."""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Regex, pre_tokenizers

from reread.preprocessing.labelled.examples import Example, Split

_WORDS = pre_tokenizers.Sequence(
    [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")]
)
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs."""


def split(text: str, into: Split) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The units of a text, none of them blank, and the character at which each begins.

    `words` are those of BERT's basic tokenisation (Devlin et al. 2019, tokenization.py): blanks separate them, and
    punctuation marks and ideographs stand alone. `blanks` separate words by blanks alone.
    """
    found: Iterable[tuple[str, int]]
    if into == "words":
        whole = _HALVES.sub("\ufffd", text)  # `tokenizers` takes none; a text with one is refused (`checks`)
        found = [(word, begin) for word, (begin, _) in _WORDS.pre_tokenize_str(whole)]
    else:
        unit = r"\S" if into == "characters" else r"\S+"
        found = [(match[0], match.start()) for match in re.finditer(unit, text)]
    return tuple(one for one, _ in found), tuple(begin for _, begin in found)


_split = lru_cache(maxsize=64)(split)
"""Words take twenty times the memory of their text, so those of the last few documents alone are kept."""


@dataclass(frozen=True, slots=True)
class SplitText(Example):
    """A text that is split into words when they are needed."""

    text: str
    into: Split
    """What its words are."""

    @property
    def words(self) -> tuple[str, ...]:
        return _split(self.text, self.into)[0]

    @property
    def starts(self) -> tuple[int, ...]:
        """The character of the text at which each word begins."""
        return _split(self.text, self.into)[1]

    @property
    def texts(self) -> dict[str, str]:
        return {"text": self.text}

    @property
    def content(self) -> Hashable:
        return self.text

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [(self.text,)]
