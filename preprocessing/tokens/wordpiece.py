"""BERT's WordPiece, from a vocab.txt or a tokenizer.json."""

import json
import logging
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.base import (
    SPECIAL_NAMES,
    BackedTokenizer,
    Encoding,
    encode_in_pieces,
    read_tokenizer_json,
)
from reread.preprocessing.tokens.fast_wordpiece import FastWordPiece

logger = logging.getLogger("reread")


class WordPiece(BackedTokenizer):
    """BERT's tokenizer: uses the table-driven encoder if it agrees with `tokenizers`, else `tokenizers` itself."""

    type = "wordpiece"

    def __init__(self, path: Path, tokens: list[str], lowercase: bool) -> None:
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
        super().__init__(path, backend, {role: names[0] for role, names in SPECIAL_NAMES.items()}, [tokens, lowercase])
        self.tokens, self.lowercase = tokens, lowercase

    @cached_property
    def _fast(self) -> FastWordPiece | None:
        """The table-driven encoder, made when text is first encoded: it is slow to make, and most stages need none."""
        encoder = FastWordPiece(self.backend)
        if encoder.agrees():
            return encoder
        logger.info("tokenizer: the fast WordPiece differs from `tokenizers` on the test text; `tokenizers` is used")
        return None

    def encode(self, text: str) -> Encoding:
        if self._fast:
            return self._fast.encode(text)
        return encode_in_pieces(self.backend, text, " \n")

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


def read_wordpiece_json(path: Path) -> tuple[list[str], bool]:
    """The tokens of a tokenizer.json in id order, and whether it lower-cases."""
    values = read_tokenizer_json(path)
    parts = [values.get(name) for name in ("normalizer", "pre_tokenizer")]
    if [part.get("type") for part in parts if isinstance(part, dict)] != ["BertNormalizer", "BertPreTokenizer"]:
        raise UserError(f"{path}: a WordPiece without BERT's normaliser and pre-tokeniser; no others are supported")
    vocabulary = values["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: its ids have gaps; write the vocabulary as a vocab.txt")
    return tokens, values["normalizer"]["lowercase"]
