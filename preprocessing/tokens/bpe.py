"""Byte-level BPE."""

import json
import logging
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.base import (
    SPECIAL_NAMES,
    BackedTokenizer,
    Encoding,
    encode_in_pieces,
    read_tokenizer_json,
)
from reread.preprocessing.tokens.fast_bpe import FastBpe

logger = logging.getLogger("reread")


def merges_of(path: Path) -> Path:
    """The file of merges that belongs to a vocabulary."""
    return path.with_name("vocab.bpe" if path.name == "encoder.json" else "merges.txt")


class ByteLevelBpe(BackedTokenizer):
    """Byte-level BPE (GPT-2, RoBERTa), from a tokenizer.json or from vocab.json and merges.txt beside it. Without
    merges each byte of the text is a token."""

    type = "bpe"

    def __init__(self, path: Path) -> None:
        # Load the vocabulary with its special tokens.
        backend = self._from_json(path) if path.name.endswith("tokenizer.json") else self._from_merges(path)
        bracketed = backend.token_to_id("[MASK]") is not None
        names = {role: known[0] if bracketed else known[-1] for role, known in SPECIAL_NAMES.items()}
        values = json.loads(backend.to_str())
        super().__init__(path, backend, names, values)
        self._model = values["model"]
        split = values["pre_tokenizer"]
        known = split["type"] == "ByteLevel" and split.get("use_regex", True)
        plain = known and values["normalizer"] is None and not values["added_tokens"]
        # With add_prefix_space each piece must begin with a blank, or one would be inserted before it.
        self._cuts = "" if not plain else " " if split["add_prefix_space"] else " \n"
        # Use the fast encoder if it is exact for this tokenizer.
        self._fast: FastBpe | None = None
        reason = ""
        if not known:
            reason = "its pre-tokeniser is not that of GPT-2"
        elif values["normalizer"] is not None:
            reason = f"it has a normaliser ({values['normalizer']['type']})"
        elif values["added_tokens"]:
            reason = "it has tokens that are found in the text before all others"
        elif values["model"]["dropout"]:
            reason = "it has dropout"
        else:
            self._fast = FastBpe(backend, split["add_prefix_space"])
            if not self._fast.agrees():
                self._fast, reason = None, "the fast BPE differs from it on the test text"
            self.cuts_at_lines = self._fast is not None and not split["add_prefix_space"]
        if reason:
            logger.info("tokenizer: %s: `tokenizers` itself is used, without a cache of words: %s", path, reason)

    def encode(self, text: str) -> Encoding:
        if self._fast:
            return self._fast.encode(text)
        return encode_in_pieces(self.backend, text, self._cuts)

    def _copy(self) -> Backend:
        copy = super()._copy()
        copy.add_tokens([*self.backend.get_added_tokens_decoder().values()])
        return copy

    def describe(self) -> dict[str, Any]:
        return super().describe() | ({} if self._model["merges"] else {"bytes": True})

    def _save_vocabulary(self, folder: Path) -> None:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in self._model["merges"]]
        write_atomically(folder / "vocab.json", json.dumps(self._model["vocab"], ensure_ascii=False).encode())
        write_atomically(folder / "merges.txt", "\n".join(["#version: 0.2", *merges, ""]).encode())

    @staticmethod
    def _from_json(path: Path) -> Backend:
        values = read_tokenizer_json(path)
        if "ByteLevel" not in json.dumps(values.get("pre_tokenizer")):
            raise UserError(f"{path}: a BPE that is not byte-level; only byte-level BPE is supported")
        added = values.get("added_tokens") or []
        for token in added:
            values["model"]["vocab"].setdefault(token["content"], token["id"])
        values["added_tokens"] = [token for token in added if not token["special"]]  # ModernBERT's runs of blanks
        values.update(post_processor=None, truncation=None, padding=None)
        return Backend.from_str(json.dumps(values))

    @staticmethod
    def _from_merges(path: Path) -> Backend:
        merges = merges_of(path)
        if not merges.exists():
            raise UserError(f"{path}: byte-level BPE needs the file {merges.name} in the same folder")
        try:
            backend = Backend(models.BPE.from_file(str(path), str(merges)))
        except Exception as error:  # `tokenizers` raises no narrower class
            raise UserError(f"{path}, {merges}: not the two files of a byte-level BPE ({error})") from None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        return backend
