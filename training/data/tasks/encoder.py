"""Tokenises the texts of examples: short ones many at a time, long ones piece by piece."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from re import Pattern
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.tokens import long_text
from reread.preprocessing.tokens.fast_wordpiece import FastWordPiece
from reread.preprocessing.tokens.long_text import cuts_of, grouped, pieces_of
from reread.training.data.tasks.documents import Tokens
from reread.training.data.tasks.kept import gathered

log = logging.getLogger("reread")

NO_OFFSETS = np.empty((0, 2), np.int32)
TOGETHER = 1 << 16
"""Characters that `tokenizers` encodes together: what it returns takes hundreds of bytes a token."""
LONG = 1 << 20
"""Characters of a text from which no more than a piece of its tokens is held."""
MANY, _MUCH = 1000, 1 << 18
"""Examples, or characters, from which `FastWordPiece` pays."""


class TextEncoder:
    """Tokenises the texts of `examples` as `backend` does, without special tokens."""

    def __init__(self, backend: Backend, folder: Path, examples: Sequence[Any]) -> None:
        """`folder` names the tokenizer in messages."""
        backend.no_truncation()
        backend.no_padding()
        self._backend, self._folder, self._examples = backend, folder, examples

    def tokens(self, texts: Sequence[str], *, offsets: bool = True) -> list[tuple[Tokens, NDArray[np.int32]]]:
        """The ids [n] of each text, and the characters [n, 2] that each token comes from; [0, 2] without `offsets`."""
        found: dict[int, NDArray[np.int32]] = {}
        for number, text in enumerate(texts):
            if len(text) > LONG:
                found[number] = gathered(self._examples, (rows for _, rows in self._rows([text], offsets)))
        short, parts = (
            [number for number in range(len(texts)) if number not in found],
            defaultdict[int, list[Any]](list),
        )
        for number, rows in self._rows([texts[number] for number in short], offsets):
            parts[short[number]].append(rows)
        found |= {number: np.concatenate(rows) for number, rows in parts.items()}
        ordered = (found[number] for number in range(len(texts)))
        return [(rows[:, 0], rows[:, 1:] if offsets else NO_OFFSETS) for rows in ordered]

    def ids(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of texts whose offsets nobody needs."""
        is_much = len(self._examples) > MANY or sum(map(len, texts)) > _MUCH
        fast = self._fast if is_much else None
        if fast is None or not texts:
            return [ids for ids, _ in self.tokens(texts, offsets=False)]
        added = [token.content for token in self._backend.get_added_tokens_decoder().values()]
        slow = [number for number, text in enumerate(texts) if any(token in text for token in added)]
        long = [number for number, text in enumerate(texts) if len(text) > LONG]
        short = sorted({*range(len(texts))} - {*slow, *long})
        theirs = self.tokens([texts[number] for number in slow], offsets=False)
        found: dict[int, Any] = {number: ids for number, (ids, _) in zip(slow, theirs, strict=True)}
        if short:
            found |= zip(short, fast.encode_each([texts[number] for number in short]), strict=True)
        for number in long:
            if number not in found:
                found[number] = gathered(self._examples, fast.encode_by_pieces(texts[number]))
        return [found[number] for number in range(len(texts))]

    def words(self, texts: Iterable[Sequence[str]]) -> Iterator[Encoding]:
        """The encodings of texts that are split into words already."""
        for few in grouped(map(list, texts), len, TOGETHER):
            yield from self._encoded(few, is_pretokenized=True)

    def _rows(self, texts: Sequence[str], offsets: bool) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Of each piece of a text the text's number and, for each token, its id and, with `offsets`, its characters."""
        cut = self._cut if any(len(text) > long_text.PIECE_CHARACTERS for text in texts) else None
        pieces = ((number, *piece) for number, text in enumerate(texts) for piece in pieces_of(text, cut))
        for few in grouped(pieces, lambda one: len(one[2]), TOGETHER):
            for (number, begin, _), encoding in zip(few, self._encoded([one[2] for one in few]), strict=True):
                ids = np.array(encoding.ids, np.int32)[:, None]
                if offsets:
                    places = np.array(encoding.offsets, np.int32).reshape(-1, 2) + np.int32(begin)
                    yield number, np.concatenate([ids, places], axis=1)
                else:
                    yield number, ids

    def _encoded(self, texts: list[Any], **how: bool) -> list[Encoding]:
        """Raises `UserError` for a tokenizer that cannot read the texts, such as one without [UNK]."""
        try:
            return self._backend.encode_batch(texts, add_special_tokens=False, **how)
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise UserError(
                f"{self._folder}: its tokenizer cannot read the texts ({first_line(error)}); export the run again"
            ) from None

    @cached_property
    def _cut(self) -> Pattern[str] | None:
        """Where long texts are cut for the tokenizer."""
        cut, reason = cuts_of(self._backend)
        if reason:
            log.info("%s: texts are tokenised whole, which takes 600 bytes a token: %s", self._folder, reason)
        return cut

    @cached_property
    def _fast(self) -> FastWordPiece | None:
        """Made where there is much text: that takes a second, and gives the same tokens."""
        return FastWordPiece.of(self._backend)
