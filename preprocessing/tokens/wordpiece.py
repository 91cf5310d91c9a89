"""BERT's WordPiece, from a vocab.txt or a tokenizer.json."""

import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.text.characters import codes_of
from reread.preprocessing.tokens.base import (
    SPECIAL_NAMES,
    BackedTokenizer,
    Encoding,
    encode_in_pieces,
    join_encodings,
    read_tokenizer_json,
    split_text,
)
from reread.preprocessing.tokens.fast_wordpiece import FastWordPiece

logger = logging.getLogger("reread")


class WordPiece(BackedTokenizer):
    """BERT's tokenizer: uses the table-driven encoder if it agrees with `tokenizers`, else `tokenizers` itself.

    `joined` are those of `tokens` that are found in the text before all others, from the left, the longest first:
    words of several Han characters, which the pre-tokeniser parts.
    """

    type = "wordpiece"

    def __init__(self, path: Path, tokens: list[str], lowercase: bool, joined: Sequence[str] = ()) -> None:
        vocabulary = {token: number for number, token in enumerate(tokens)}
        for role, (name, *_) in SPECIAL_NAMES.items():
            if name not in vocabulary:
                raise UserError(f"{path}: the {role} token {name} is missing; put it into the vocabulary")
        backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        names = {role: known[0] for role, known in SPECIAL_NAMES.items()}
        super().__init__(path, backend, names, [tokens, lowercase, *([joined] if joined else [])])
        self.tokens, self.lowercase, self.joined = tokens, lowercase, joined
        # A tokenizer without a vocabulary gives a token to joined words alone, and finds them as transformers does.
        self._finder = Backend(models.BPE())
        self._finder.add_tokens(_added(joined))
        self._joined_ids = np.array([vocabulary[word] for word in joined], np.uint32)

    @cached_property
    def _fast(self) -> FastWordPiece | None:
        """The table-driven encoder, made when text is first encoded: it is slow to make, and most stages need none."""
        encoder = FastWordPiece(self.backend)
        if encoder.agrees():
            return encoder
        logger.info("tokenizer: the fast WordPiece differs from `tokenizers` on the test text; `tokenizers` is used")
        return None

    def encode(self, text: str) -> Encoding:
        if not self.joined:
            return self._encode_others(text)
        return join_encodings((self._encode_piece(piece), len(piece)) for piece in split_text(text, " \n"))

    def _encode_piece(self, text: str) -> Encoding:
        # Blanks in the place of joined words part what is beside them as the words do.
        found = self._finder.encode(text, add_special_tokens=False)
        spans = np.array(found.offsets, np.int64).reshape(-1, 2)
        edges = np.zeros(len(text) + 1, np.int8)
        np.add.at(edges, spans[:, 0], 1)
        np.add.at(edges, spans[:, 1], -1)
        codes = np.where(np.cumsum(edges[:-1]) > 0, np.uint32(ord(" ")), codes_of(text))
        ids, starts = self._encode_others(codes.tobytes().decode("utf-32-le", "surrogatepass"))
        ids = np.append(ids, self._joined_ids[np.array(found.ids, np.int64)])
        starts = np.append(starts, spans[:, 0])
        order = np.argsort(starts, kind="stable")
        return ids[order], starts[order]

    def _encode_others(self, text: str) -> Encoding:
        if self._fast:
            return self._fast.encode(text)
        return encode_in_pieces(self.backend, text, " \n")

    def _copy(self) -> Backend:
        copy = super()._copy()
        copy.add_tokens(_added(self.joined))
        return copy

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "lowercase": self.lowercase}

    def _configuration(self) -> dict[str, Any]:
        return {"do_lower_case": self.lowercase, "strip_accents": None, "tokenize_chinese_chars": True}

    def _save_vocabulary(self, folder: Path) -> None:
        write_atomically(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens).encode())


def check_lowercase(path: Path, lowercase: bool) -> None:
    """Raises `UserError` if a tokenizer_config.json beside the vocabulary contradicts `lowercase`."""
    try:
        stated = json.loads(path.with_name("tokenizer_config.json").read_text(encoding="utf-8")).get("do_lower_case")
    except (OSError, ValueError):
        return
    if stated is not None and stated != lowercase:
        word = str(stated).lower()
        raise UserError(
            f"tokenizer.lowercase: {path.parent}/tokenizer_config.json says {word}; write `lowercase: {word}`"
        )


def warn_of_capitals(path: Path, tokens: Sequence[str]) -> None:
    """Log a line if over a thousand tokens have capitals, which no text that is lower-cased has."""
    capitals = sum(token.isascii() and token.isalpha() and not token.islower() for token in tokens)
    if capitals > 1000:
        logger.warning(
            "tokenizer: %s has %d tokens with capitals, but text is lower-cased; if its model is a cased one, write "
            "tokenizer.lowercase=false",
            *(path, capitals),
        )


def _added(words: Sequence[str]) -> list[AddedToken]:
    return [AddedToken(word, normalized=False, special=False) for word in words]


def read_wordpiece_json(path: Path) -> tuple[list[str], bool, list[str]]:
    """The tokens of a tokenizer.json in id order, whether it lower-cases, and those that are found in the text before
    all others."""
    values = read_tokenizer_json(path)
    parts = [values.get(name) for name in ("normalizer", "pre_tokenizer")]
    if [part.get("type") for part in parts if isinstance(part, dict)] != ["BertNormalizer", "BertPreTokenizer"]:
        raise UserError(f"{path}: a WordPiece without BERT's normaliser and pre-tokeniser; no others are supported")
    added = [token for token in values.get("added_tokens") or () if not token["special"]]
    vocabulary = values["model"]["vocab"] | {token["content"]: token["id"] for token in added}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: its ids have gaps; write the vocabulary as a vocab.txt")
    return tokens, values["normalizer"]["lowercase"], [token["content"] for token in added]
