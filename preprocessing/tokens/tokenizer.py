"""Loads tokenizers from vocabulary files, and the interface that they have in common.

No tokenizer finds special tokens in text: a literal "[MASK]" is a bracket, four letters and a bracket. There are two
exceptions. When transformers loads the saved folder, it turns the text into the mask, as it always does. And in a
vocabulary of whole words, a literal `<unk>` is the unknown token (`wordlevel`).
"""

import json
from pathlib import Path
from typing import Any, Protocol

from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.tokens.base import Encoding
from reread.preprocessing.tokens.bpe import ByteLevelBpe, merges_of
from reread.preprocessing.tokens.unigram import SentencePiece
from reread.preprocessing.tokens.vocabulary import read_vocabulary
from reread.preprocessing.tokens.wordlevel import Words, read_words_json
from reread.preprocessing.tokens.wordpiece import WordPiece, check_lowercase, read_wordpiece_json, warn_of_capitals

FAIRSEQ = "sentencepiece.bpe.model"
"""The name of a model's pieces in folders whose ids are in fairseq's order."""


class Tokenizer(Protocol):
    """The interface of all tokenizers."""

    vocab_size: int
    """The number of ids, including special tokens that had to be appended."""
    special: dict[str, int]
    """The ids of pad, unk, cls, sep and mask by role; those of unk and eos if tokens are whole words."""
    cuts_at_lines: bool = False
    """Whether a single line end between visible characters is a token by itself and changes no other token."""

    def encode(self, text: str) -> Encoding:
        """Token ids [n], and the first character [n] of each token in `text`, after a leading space.

        No special token is added, except an `<eos>` for each line if tokens are whole words, which counts as beginning
        at the line's last character.
        """

    def describe(self) -> dict[str, Any]:
        """The values of `manifest.tokenizer`: type, fingerprint (an MD5), vocab_size, and the ids of special tokens."""

    def save(self, folder: Path) -> None:
        """Write a folder that transformers' AutoTokenizer loads; the bytes depend on the vocabulary alone."""


def load_tokenizer(path: Path, settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer of a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder that holds one of them.

    Raises `UserError` if the file is missing or damaged.
    """
    # Find the file, and its type.
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"tokenizer.path: {path} is not there, and nothing is downloaded; get the vocabulary from its owners and "
            "set tokenizer.path=PATH, or train a new one: tokenizer.path=null tokenizer.train.size=30000"
        )
    path = _file_in(path, settings.type) if path.is_dir() else path
    try:
        kind = settings.type if settings.type != "auto" else _type_of(path)
        # Load it by its type; WordPiece is left.
        if path.name == FAIRSEQ:
            raise UserError(
                f"{path}: XLM-R's and CamemBERT's ids are not those of this file, and no corpus is made for them; "
                "`reread convert` and `reread finetune` take such a model"
            )
        if kind == "sentencepiece":
            return SentencePiece(path)
        if kind == "bpe":
            return ByteLevelBpe(path)
        if kind == "words":
            if path.suffix == ".json":
                return Words(path, *read_words_json(path))
            return Words(path, read_vocabulary(path), settings.split_punctuation)
        if path.suffix == ".json":
            return WordPiece(path, *read_wordpiece_json(path))
        check_lowercase(path, settings.lowercase)
        tokens = read_vocabulary(path)
        if settings.lowercase:
            warn_of_capitals(path, tokens)
        return WordPiece(path, tokens, settings.lowercase)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of deep nesting
        raise UserError(f"{path}: not readable as JSON ({first_line(error)})") from None


def _file_in(folder: Path, kind: str) -> Path:
    found = {"sentencepiece": sorted(folder.glob("*.model")), "wordpiece": [folder / "vocab.txt"]}
    found["bpe"] = [folder / "vocab.json", folder / "encoder.json"]
    kinds = list(found) if kind == "auto" else [kind]
    found["words"] = [folder / "tokenizer.json", folder / "vocab.txt"]
    for path in [path for kind in kinds for path in found[kind]] + [folder / "tokenizer.json"]:
        if path.exists():
            return _with_joined(path)
    raise UserError(f"tokenizer.path: {folder} holds no vocab.txt, *.model, vocab.json or tokenizer.json")


def _with_joined(path: Path) -> Path:
    """The tokenizer.json beside a vocab.txt, if only that says which words are found in the text before others."""
    beside = path.with_name("tokenizer.json")
    if path.name != "vocab.txt" or not beside.exists():
        return path
    values = json.loads(beside.read_text(encoding="utf-8"))
    added = values.get("added_tokens") if isinstance(values, dict) else None
    return beside if added and any(not token["special"] for token in added) else path


def _type_of(path: Path) -> str:
    if path.suffix == ".model":
        return "sentencepiece"
    if path.suffix != ".json":
        return "wordpiece"
    if path.name in ("vocab.json", "encoder.json") and merges_of(path).exists():
        return "bpe"
    values = json.loads(path.read_text(encoding="utf-8"))
    model = values.get("model") if isinstance(values, dict) else None
    stated = model.get("type") if isinstance(model, dict) else None  # else a vocab.json alone
    if stated == "Unigram":
        raise UserError(f"{path}: a Unigram model; give the SentencePiece .model that it was made from")
    return "wordpiece" if stated == "WordPiece" else "words" if stated == "WordLevel" else "bpe"
