"""Encodes cleaned text as token ids and flags, and collects statistics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END
from reread.preprocessing.text.characters import codes_of
from reread.preprocessing.text.sentences import sentence_ends
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.long_text import grouped
from reread.preprocessing.tokens.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 16
LONGEST_WORD = 16
"""Words of this many or more tokens are counted together."""

T = TypeVar("T")
Encoded = tuple[NDArray[np.uint32], NDArray[np.uint8]]


class Encoder:
    """Encodes documents and collects statistics of them."""

    def __init__(self, tokenizer: Tokenizer, words: WordSegmenter) -> None:
        self.tokenizer, self.words = tokenizer, words
        kind = tokenizer.describe()["type"]
        # WordPiece and whole words break at white space, and no word or sentence crosses a line end, so documents that
        # are joined by line ends have the same tokens as separate ones. BPE has tokens for the line end itself, which
        # are dropped again. With SentencePiece a line end changes the tokens after it.
        self.joins = kind in ("wordpiece", "words")
        self.drops_newlines = tokenizer.cuts_at_lines
        self.whole_words = kind == "words"
        self.counts: Counter[str] = Counter()
        self.word_tokens: Counter[int] = Counter()
        """Words by their length in tokens."""
        self.document_tokens: Counter[int] = Counter()
        """Documents by their length in tokens, rounded down to a power of two."""
        self.unknown_characters: Counter[str] = Counter()
        """Unknown tokens by the character they begin with."""

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """The ids uint32 [n] and flags uint8 [n] of each text; n is 0 if the tokenizer finds no token in it."""
        # Encode all texts together, joined by line ends, if that gives the same tokens
        joins = self.joins or (self.drops_newlines and all(map(_is_visible_at_its_ends, texts)))
        if not joins and len(texts) > 1:
            return [self.encode([text])[0] for text in texts]
        text = "\n".join(texts)
        if not text:
            return [(np.empty(0, np.uint32), np.empty(0, np.uint8))] * len(texts)
        ids, starts = self.tokenizer.encode(text)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        begins = np.cumsum(lengths + 1) - lengths - 1
        if self.drops_newlines and len(texts) > 1:
            kept = ~np.isin(starts, begins[1:] - 1)
            ids, starts = ids[kept], starts[kept]
        # Flags: tokens that continue a word, and the last tokens of sentences and paragraphs
        begins_word = self.words.joined_starts(text)
        word = np.cumsum(begins_word, dtype=np.int32)[starts]  # the number of the word in which each token begins
        continues = np.zeros(len(ids), np.bool_)
        if not self.whole_words:
            continues[1:] = word[1:] == word[:-1]
        flags = continues * CONTINUES_WORD
        codes = codes_of(text + "\n")
        ends = sentence_ends(text)
        last = np.searchsorted(starts, ends) - 1
        for bit, indices in ((SENTENCE_END, last), (PARAGRAPH_END, last[codes[ends] == ord("\n")])):
            flags[indices[indices >= 0]] |= bit
        # Statistics
        bounds = np.append(np.searchsorted(starts, begins), len(ids))
        codes = codes[starts]
        unknown = ids == self.tokenizer.special["unk"]
        characters, times = np.unique(codes[unknown], return_counts=True)
        self.unknown_characters.update(dict(zip(map(chr, characters.tolist()), times.tolist(), strict=True)))
        is_word = begins_word.copy()  # characters that are a word of their own
        is_word[:-1] &= begins_word[1:]
        self._count(continues, unknown, is_han(codes), ~is_word[starts])
        powers = np.frexp(np.diff(bounds))[1] - 1  # -1 for a document without tokens
        self.document_tokens.update(1 << power for power in powers.tolist() if power >= 0)
        cuts = bounds.tolist()
        return [(ids[a:b], flags[a:b]) for a, b in pairwise(cuts)]

    def _count(
        self,
        continues: NDArray[np.bool_],
        unknown: NDArray[np.bool_],
        han: NDArray[np.bool_],
        in_long_word: NDArray[np.bool_],
    ) -> None:
        """Add to the counts, by masks [n] of the tokens: those that continue a word, are unknown, begin with a Han
        character, or belong to a word of several characters.
        """
        tokens = np.diff(np.flatnonzero(np.append(~continues, True)))  # tokens of each word
        several = continues.copy()
        several[:-1] |= continues[1:]
        self.counts.update(
            words=len(tokens),
            unknown_tokens=int(np.count_nonzero(unknown)),
            han_tokens=int(np.count_nonzero(han)),
            han_tokens_in_multi_token_words=int(np.count_nonzero(han & several)),
            han_tokens_in_multi_character_words=int(np.count_nonzero(han & in_long_word)),
            tokens_in_multi_token_words=int(np.count_nonzero(several)),
        )
        lengths = np.bincount(np.minimum(tokens, LONGEST_WORD))
        self.word_tokens.update({length: int(lengths[length]) for length in np.flatnonzero(lengths).tolist()})


def _is_visible_at_its_ends(text: str) -> bool:
    return bool(text) and (text[0] + text[-1]).isprintable() and " " not in (text[0], text[-1])


def is_han(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """bool [n]: which code points [n] are Han characters (unified, compatibility, and extensions A to H)."""
    return (
        (codes >= 0x4E00) & (codes <= 0x9FFF)
        | (codes >= 0x3400) & (codes <= 0x4DBF)
        | (codes >= 0xF900) & (codes <= 0xFAFF)
        | (codes >= 0x20000) & (codes <= 0x323AF)
    )


def batches(texts: Iterable[tuple[T, str]]) -> Iterator[list[tuple[T, str]]]:
    """Batches of labelled texts of about `BATCH_CHARACTERS`, since numpy's cost per call is high for short texts.

    A label is any value that identifies a text, such as its number.
    """
    yield from grouped(texts, lambda labelled: len(labelled[1]), BATCH_CHARACTERS)
