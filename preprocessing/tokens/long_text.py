"""Long texts by pieces: where a tokenizer's rule parts words, both sides have the tokens that they have in the whole.

What `tokenizers` returns takes hundreds of bytes a token, so a book must not be tokenised at once.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tokenizers import Tokenizer as Backend

T = TypeVar("T")

PIECE_CHARACTERS = 1 << 14
"""A piece has at least so many characters, and ends at the next place where it may."""

_BEFORE_SPACE = r"(?<=\S)(?=[ \n])"
_BEFORE_BLANK = r"(?<=\S)(?= )"
_BETWEEN_HAN = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"


def cuts_of(backend: Backend) -> tuple[re.Pattern[str] | None, str]:
    """The places where a text may be cut for a tokenizer, or None and the reason why there are none.

    BERT's normaliser and pre-tokeniser, and GPT-2's pre-tokeniser, put no white space into a word behind a visible
    character. BERT makes each ideograph a word, too, unless words of several are added tokens. With
    `add_prefix_space` a piece has to begin with a blank, or one would be put before it.
    """
    values = json.loads(backend.to_str())
    in_chinese = _BETWEEN_HAN
    for token in values["added_tokens"]:
        # Of white space an added token may only take that before it, which no cut takes away from it.
        if token["rstrip"] or token["single_word"] or re.search(r"\s", token["content"]):
            return None, f"its token `{token['content']}` may reach over any place"
        if re.search(_BETWEEN_HAN, token["content"]):
            in_chinese = ""
    normaliser, split = (values[name] or {} for name in ("normalizer", "pre_tokenizer"))
    kinds = normaliser.get("type"), split.get("type")
    if kinds == ("BertNormalizer", "BertPreTokenizer"):
        cuts = (_BEFORE_SPACE, in_chinese if normaliser["handle_chinese_chars"] else "")
        return re.compile("|".join(filter(None, cuts))), ""
    if kinds == (None, "ByteLevel") and split.get("use_regex", True):
        return re.compile(_BEFORE_BLANK if split["add_prefix_space"] else _BEFORE_SPACE), ""
    return None, f"nothing is known of words that {kinds[1] or 'no pre-tokeniser'} makes after {kinds[0] or 'nothing'}"


def pieces_of(text: str, cut: re.Pattern[str] | None) -> Iterator[tuple[int, str]]:
    """(first character, piece) of each piece of a text."""
    begin = 0
    while cut and len(text) - begin > PIECE_CHARACTERS and (found := cut.search(text, begin + PIECE_CHARACTERS)):
        yield begin, text[begin : found.start()]
        begin = found.start()
    yield begin, text[begin:]


def grouped(values: Iterable[T], size: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """The values in groups, each of which ends where the sizes in it add up to `enough`."""
    group: list[T] = []
    total = 0
    for value in values:
        group.append(value)
        total += size(value)
        if total >= enough:
            yield group
            group, total = [], 0
    if group:
        yield group
