"""WordPiece by table: gives the ids and offsets of `tokenizers`' BERT pipeline, many times faster on Chinese.

BERT's normaliser and pre-tokeniser work character by character, so a text can be cut at two kinds of characters:
spaces, which are removed, and characters that are always words by themselves (Han, punctuation). These characters and
their ids are found by encoding each candidate of the Basic Multilingual Plane. Text between them (letters, digits,
marks, removed control characters, all characters beyond that plane) is a *run*. `tokenizers` encodes a run when it
first occurs; after that its tokens come from a cache.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from reread.preprocessing.text.characters import codes_of
from reread.preprocessing.tokens.piece_cache import PieceCache

PIECE_CHARACTERS = 1 << 15

_PLANE = 1 << 16
_RUN, _SPACE = -1, -2
_HAN = tuple(chain(range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00)))

# Difficult characters: accents, Hangul, controls inside words, marks after Han, full-width forms, ...
_PROBE = (
    """第一回　甄士隐梦幻识通灵，贾雨村风尘怀闺秀。《红楼梦》(1791年)——曹雪芹…“此开卷第一回也”！
It wasn't Élan or naïve İstanbul ẞ ǅ ﬁ; 3.14% of $1,000 [MASK] [UNK] ##ing _x_ e-mail@a.b ≠ \u037e
\u200bzero\u200bwidth\ufeff 中\u0301文\u0301 e\u0301\u0316\u0301x \u0301 \x00\x07\ufffd\u00ad
한국어 가\u1100\u1161 ひらがな が \u302a
㐀㐁 豈 𠀀𪚥 😀👍🏽 \U000e0041 Ａｂｃ１２３，。 ①②㈱ \u2028 \x85 \x1f \u00a0 \u3000 ǆ Ω Å ٣ हिन्दी ไทย
"""
    + "supercalifragilistic" * 6
)


class FastWordPiece:
    """Encodes as `backend` does, which consists of BertNormalizer, BertPreTokenizer and WordPiece without added tokens.

    This takes a table lookup for each character and a dictionary lookup for each run. Memory is bounded by the sizes of
    a piece and of the cache.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._kinds = _character_kinds(backend)
        self._cache = PieceCache(self._encode_runs)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "FastWordPiece | None":
        """The encoder of texts without added tokens, such as [MASK]; None for a tokenizer with another pipeline or
        without a token for unknown words, or one whose added tokens are words or found in normalised text."""
        parts = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer
        kinds = models.WordPiece, normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer
        if not all(map(isinstance, parts, kinds)):
            return None
        knows = tokenizer.model.unk_token in tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder().values()
        if not knows or any(token.normalized or not token.special for token in added):
            return None
        bare = Tokenizer(tokenizer.model)
        bare.normalizer, bare.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        encoder = cls(bare)
        return encoder if encoder.agrees() else None

    def encode_each(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids [n] of each text. All are encoded at once, since a line end parts words and has no token.

        Where tokens begin is kept of no more than a piece.
        """
        ends = np.cumsum([len(text) + 1 for text in texts])[:-1]
        ids, before = [np.zeros(0, np.uint32)], np.zeros(len(ends), np.int64)
        for piece_ids, piece_starts in self._encoded("\n".join(texts)):
            ids.append(piece_ids)
            before += np.searchsorted(piece_starts, ends)
        return np.split(np.concatenate(ids), before)

    def encode_by_pieces(self, text: str) -> Iterator[NDArray[np.int32]]:
        """The ids [n] of a long text, piece by piece."""
        return (ids.astype(np.int32) for ids, _ in self._encoded(text))

    def agrees(self) -> bool:
        """Whether a short text of difficult characters gives the same tokens as `backend`."""
        ids, starts = self.encode(_PROBE)
        expected_ids, expected_starts = encode_by_tokenizers(self._backend, _PROBE)
        return np.array_equal(ids, expected_ids) and np.array_equal(starts, expected_starts)

    def encode(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Token ids [n], and the first character [n] of each token in `text`."""
        ids, starts = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
        for piece_ids, piece_starts in self._encoded(text):
            ids.append(piece_ids)
            starts.append(piece_starts)
        return np.concatenate(ids), np.concatenate(starts)

    def _encoded(self, text: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """`encode` of each piece of the text, with characters counted from the text's beginning."""
        for begin, codes, kinds in self._pieces(text):
            ids, starts = self._encode_piece(text[begin : begin + len(codes)], codes, kinds)
            yield ids, starts + begin

    def _pieces(self, text: str) -> Iterator[tuple[int, NDArray[np.uint32], NDArray[np.int32]]]:
        """(begin, code points [n], their kinds [n]) of each piece of the text; no piece ends within a run."""
        begin, size = 0, PIECE_CHARACTERS
        while begin < len(text):
            codes = codes_of(text[begin : begin + size])
            kinds = self._kinds.take(codes, mode="clip")
            if begin + size < len(text):
                end = len(kinds) - int(np.argmax(kinds[::-1] != _RUN))
                if kinds[end - 1] == _RUN:  # a single run fills the whole piece
                    size *= 2
                    continue
                codes, kinds = codes[:end], kinds[:end]
            yield begin, codes, kinds
            begin, size = begin + len(kinds), PIECE_CHARACTERS

    def _encode_piece(
        self, text: str, codes: NDArray[np.uint32], kinds: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        # A token for each character that stands alone, and for now one for each run
        in_run = kinds == _RUN
        unit = kinds != _SPACE  # a unit is a character that stands alone, or the first character of a run
        unit[1:] &= ~(in_run[1:] & in_run[:-1])
        starts = np.flatnonzero(unit)
        values = kinds[starts]
        runs = np.flatnonzero(values == _RUN)
        if len(runs) == 0:
            return values.astype(np.uint32), starts
        # The first token of each run
        run_begins = starts[runs]
        run_ends = np.flatnonzero(in_run & ~np.append(in_run[1:], False)) + 1
        run_counts, first = self._cache.look_up(text, codes, run_begins, run_ends)
        flat_ids, flat_starts = self._cache.tokens
        counts = np.ones(len(values), np.int64)
        counts[runs] = run_counts
        values[runs] = flat_ids[first]
        starts[runs] += flat_starts[first]
        several = np.flatnonzero(run_counts != 1)
        if len(several) == 0:
            return values.astype(np.uint32), starts
        # The further tokens of runs with several, and none for runs without any
        ends = np.cumsum(counts)
        values, starts = np.repeat(values, counts), np.repeat(starts, counts)
        several_counts = run_counts[several]
        within = np.arange(several_counts.sum()) - np.repeat(np.cumsum(several_counts) - several_counts, several_counts)
        source = np.repeat(first[several], several_counts) + within
        target = np.repeat(ends[runs[several]] - several_counts, several_counts) + within
        values[target] = flat_ids[source]
        starts[target] = np.repeat(run_begins[several], several_counts) + flat_starts[source]
        return values.astype(np.uint32), starts

    def _encode_runs(self, runs: list[str]) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        begins = np.zeros(len(runs) + 1, np.int64)
        np.cumsum([len(run) + 1 for run in runs], out=begins[1:])
        ids, starts = encode_by_tokenizers(self._backend, " ".join(runs))
        owners = np.searchsorted(begins, starts, "right") - 1
        return owners, ids, starts - begins[owners]


def encode_by_tokenizers(backend: Tokenizer, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The ids [n] and first characters [n] of the tokens by `tokenizers` itself, without special tokens."""
    encoding = backend.encode(text, add_special_tokens=False)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return np.array(encoding.ids, np.uint32), offsets[:, 0]


def _character_kinds(backend: Tokenizer) -> NDArray[np.int32]:
    """[65537]: for each character `_SPACE`, `_RUN`, or its id if it is always a word by itself.

    The last entry is for all characters beyond the Basic Multilingual Plane. Each candidate is encoded between two
    letters: it is a word by itself if that gives three words of one token each, and a space if it gives two words.
    Letters, digits and marks are no candidates. Around Han characters the normaliser puts blanks, so that a lookup in
    the vocabulary is enough for them.
    """
    kinds = np.full(_PLANE + 1, _RUN, np.int32)
    tried = [code for code in range(_PLANE) if unicodedata.category(chr(code))[0] in "PSZ" or chr(code).isspace()]
    codes = np.array(tried)
    encoding = backend.encode("".join(f"a{chr(code)}a " for code in tried), add_special_tokens=False)
    starts = np.array(encoding.offsets, np.int64)[:, 0]
    words = np.array(encoding.word_ids, np.int64)
    ids = np.array(encoding.ids, np.int32)
    candidate, within = starts // 4, starts % 4
    tokens = np.bincount(candidate, minlength=len(codes))
    first = np.cumsum(tokens) - tokens
    for count, expected in ((3, [0, 1, 2]), (2, [0, 2])):
        found = np.flatnonzero(tokens == count)
        at = first[found][:, None] + np.arange(count)
        apart = (np.diff(words[at], axis=1) > 0).all(axis=1) & (within[at] == expected).all(axis=1)
        kinds[codes[found[apart]]] = ids[at[apart, 1]] if count == 3 else _SPACE
    normalised = backend.normalizer.normalize_str("a".join(map(chr, _HAN))).split("a")
    vocabulary = backend.get_vocab(with_added_tokens=False)
    unknown = vocabulary[backend.model.unk_token]
    for code, word in zip(_HAN, normalised, strict=True):
        if len(word) == 3 and word[0] == word[2] == " ":
            kinds[code] = vocabulary.get(word[1], unknown)
    return kinds
