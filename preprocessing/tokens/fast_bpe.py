"""Byte-level BPE with a cache of pieces: gives the ids and starts of `tokenizers`, many times faster on English.

GPT-2's regular expression takes, from left to right, the first match of

    's 't 're 've 'm 'll 'd | ?letters | ?numbers | ?others | white space not followed by more text | white space

and BPE works within each match. Here the text is cut only at positions at which a match always ends, whatever follows.
Therefore a piece alone is encoded as it is within the text. The text is cut

- after letters, numbers or others, before a character of another of these kinds or white space; but not between "'" and
  a letter, which may be one match ("'s") or two ("''s");
- after a single white space character before another kind, except after a blank, which joins the following word.

Other white space is not cut, since its last blank belongs to the following word. Characters that Unicode 3.2 lacks, or
whose category has changed since, are of unknown kind and are only cut from white space. The kinds of all others are the
same in every version.
"""

import re
import unicodedata
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from reread.preprocessing.tokens.base import Encoding, encode_in_pieces, join_encodings, local_starts, split_text
from reread.preprocessing.tokens.piece_cache import PieceCache

_UNSURE, _UNKNOWN, _LETTER, _NUMBER, _OTHER, _APOSTROPHE, _BLANK, _SPACE = range(8)
_VISIBLE = (_UNKNOWN, _LETTER, _NUMBER, _OTHER, _APOSTROPHE)
_WHITE_SPACE = [*map(ord, "\t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"), *range(0x2000, 0x200B)]
_UNSURE_SPACE = [0x1C, 0x1D, 0x1E, 0x1F, 0x180E]  # white space according to some libraries only

_CUT, _CUT_IF_SINGLE = 1, 2
_PAIRS = np.zeros((8, 8), np.uint8)
"""[kind, kind of the next character]: whether the text may be cut between them."""
for _kind in _VISIBLE:
    _PAIRS[_kind, [_BLANK, _SPACE]] = _CUT
    _PAIRS[_SPACE, _kind] = _CUT_IF_SINGLE
for _kinds in ((_LETTER,), (_NUMBER,), (_OTHER, _APOSTROPHE)):
    for _kind in _kinds:
        _PAIRS[_kind, [other for other in _VISIBLE[1:] if other not in _kinds]] = _CUT
_PAIRS[_APOSTROPHE, _LETTER] = 0

_PLAIN = re.compile(r" ?(?:[A-Za-z]+|[0-9]+|[!-/:-@\[-`{-~]+)")
"""One match of GPT-2's expression whose characters, except the blank, byte-level BPE does not replace."""
_BLANK_BYTE = "Ġ"

_PROBE = """It wasn't Élan or naïve; it's what he'll say 'tis ''s 'stop, we'd've 3.14% of $1,000 [MASK]<s>
 two\t\ttabs \n\n lines \n
x'S 'é ’s 1st2nd ½ Ⅳ ²a中文，一回。 한국어 e\u0301\u0316 हिन्दी 😀👍🏽
\u200b\ufeff\xad \x00\x07\x1c\x1fa \u180e a\u3000b\u2028\x85c\xa0
  """


class FastBpe:
    """Encodes as `backend`, which has a `ByteLevel` pre-tokeniser with GPT-2's expression and no normaliser."""

    def __init__(self, backend: Tokenizer, add_prefix_space: bool) -> None:
        self._expected, self._add_prefix_space = backend, add_prefix_space
        self._backend = Tokenizer(backend.model)
        self._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._cache = PieceCache(self._encode_pieces)

    def agrees(self) -> bool:
        """Whether a short text of difficult characters gives the same tokens as `backend`."""
        expected = encode_in_pieces(self._expected, _PROBE, "")
        ids, starts = self.encode(_PROBE)
        return np.array_equal(ids, expected[0]) and np.array_equal(starts, expected[1])

    def encode(self, text: str) -> Encoding:
        """Token ids [n], and the first character [n] of each token in `text`, after leading white space."""
        if not text:
            return join_encodings(iter(()))
        prefix = self._add_prefix_space and text[0] != " "
        ids, starts = join_encodings(
            (self._encode_part(part), len(part)) for part in split_text(" " + text if prefix else text, " \n")
        )
        return ids, np.maximum(starts - prefix, 0)

    def _encode_part(self, text: str) -> Encoding:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        return self._cache.encode(text, codes, piece_begins(codes))

    def _encode_pieces(self, pieces: list[str]) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        plain = [number for number, piece in enumerate(pieces) if _PLAIN.fullmatch(piece)]
        others = sorted(set(range(len(pieces))).difference(plain))
        parts = [self._encode_plain(pieces, plain)]
        if others:
            parts.append(self._encode_any(pieces, others))
        owners, ids, starts = (np.concatenate(values) for values in zip(*parts, strict=True))
        order = np.argsort(owners, kind="stable")
        return owners[order], ids[order].astype(np.uint32), starts[order]

    def _encode_plain(self, pieces: list[str], numbers: list[int]) -> NDArray[np.int64]:
        """[3, n]: piece, id and start of the tokens of pieces that match `_PLAIN`, by the BPE model alone."""
        tokenize = self._backend.model.tokenize
        found = [
            (number, token.id, *token.offsets)
            for number in numbers
            for token in tokenize(pieces[number].replace(" ", _BLANK_BYTE))
        ]
        owners, ids, begins, ends = np.array(found, np.int64).reshape(-1, 4).T
        has_blank = np.array([piece[0] == " " for piece in pieces])[owners]  # it has two bytes in `_BLANK_BYTE`
        alone = len(_BLANK_BYTE.encode())
        return np.stack([owners, ids, np.where(begins > 0, begins - has_blank, has_blank & (ends > alone))])

    def _encode_any(self, pieces: list[str], numbers: list[int]) -> NDArray[np.int64]:
        """[3, n]: piece, id and start of the tokens of any pieces."""
        chosen = [pieces[number] for number in numbers]
        encoding = self._backend.encode(chosen, is_pretokenized=True, add_special_tokens=False)
        words = np.array(encoding.word_ids, np.int64)
        lengths = np.fromiter(map(len, chosen), np.int64, len(chosen))
        begins = (np.cumsum(lengths) - lengths)[words]
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) + begins[:, None]
        return np.stack([np.array(numbers)[words], encoding.ids, local_starts("".join(chosen), offsets) - begins])


def piece_begins(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """[pieces]: the first character of each piece of a text with code points `codes` [n > 0]."""
    kinds = _character_kinds().take(codes, mode="clip")
    pairs = _PAIRS.ravel().take(kinds[:-1] * 8 + kinds[1:])
    cut = pairs == _CUT
    single = np.flatnonzero(pairs == _CUT_IF_SINGLE)
    cut[single[(single == 0) | cut[single - 1]]] = True  # white space after a cut is the first of its run
    return np.concatenate(([0], np.flatnonzero(cut) + 1))


@cache
def _character_kinds() -> NDArray[np.uint8]:
    """[65537]: the kind of each character; the last entry is for all beyond the Basic Multilingual Plane."""
    kinds = np.full((1 << 16) + 1, _UNKNOWN, np.uint8)
    kinds[0x4E00:0x9FA6] = kinds[0xAC00:0xD7A4] = _LETTER
    for code in chain(range(0x4E00), range(0xA000, 0xAC00), range(0xF900, 1 << 16)):
        character = chr(code)
        category = unicodedata.category(character)[0]
        if category == unicodedata.ucd_3_2_0.category(character)[0]:
            kinds[code] = {"L": _LETTER, "N": _NUMBER, "M": _OTHER, "P": _OTHER, "S": _OTHER}.get(category, _UNKNOWN)
    kinds[ord("'")], kinds[ord(" ")] = _APOSTROPHE, _BLANK
    kinds[_WHITE_SPACE] = _SPACE
    kinds[_UNSURE_SPACE] = _UNSURE
    return kinds
