"""BERT's WordPiece, from a vocab.txt or a tokenizer.json."""

import json
import logging
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from preprocessing.tokens.base import SPECIAL_NAMES, BackedTokenizer, Encoding, encode_in_pieces
from preprocessing.tokens.fast_wordpiece import FastWordPiece

logger = logging.getLogger("reread")


class WordPiece(BackedTokenizer):
    """BERT's tokenizer: the table-driven encoder where it agrees with `tokenizers`, else `tokenizers` itself."""

    type = "wordpiece"

    def __init__(self, path: Path, tokens: list[str], lowercase: bool, fast: bool) -> None:
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
        self.tokens, self.lowercase, self.fast = tokens, lowercase, fast

    @cached_property
    def _fast(self) -> FastWordPiece | None:
        """Made when text is first encoded: its tables cost more than the rest, and most stages encode nothing."""
        if not self.fast:
            return None
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
    values = json.loads(path.read_text(encoding="utf-8"))
    normalizer = values.get("normalizer") or {}
    if (
        normalizer.get("type") != "BertNormalizer"
        or (values.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer"
    ):
        raise UserError(f"{path}: a WordPiece without BERT's normaliser and pre-tokeniser; only BERT's own are read")
    vocabulary = values["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: its ids have gaps; write the vocabulary as a vocab.txt")
    return tokens, normalizer["lowercase"]
