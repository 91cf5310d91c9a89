"""Loading tokenizers: from a vocabulary file to ids, and to a folder that transformers loads.

All of them treat text as text: a literal "[MASK]" is a bracket, four letters and a bracket. (The saved folder, read by
transformers, does turn it into the mask, as everywhere else in transformers. And a literal `<unk>` is the unknown token
of a vocabulary of whole words: see `wordlevel`.)
"""

import json
from pathlib import Path
from typing import Any, Protocol

from preprocessing.config import TokenizerSettings
from preprocessing.errors import UserError
from preprocessing.tokens.base import Encoding
from preprocessing.tokens.bpe import ByteLevelBpe, merges_of
from preprocessing.tokens.unigram import SentencePiece
from preprocessing.tokens.vocabulary import read_vocabulary
from preprocessing.tokens.wordlevel import Words, read_words_json
from preprocessing.tokens.wordpiece import WordPiece, check_lowercase, read_wordpiece_json


class Tokenizer(Protocol):
    """The interface of a tokenizer that preprocessing uses."""

    vocab_size: int
    """Every id is smaller; special tokens that had to be appended are included."""
    special: dict[str, int]
    """Ids of pad, unk, cls, sep, mask; of unk and eos if tokens are whole words."""

    def encode(self, text: str) -> Encoding:
        """Token ids [n] and the character of `text` at which each begins [n], past a leading space.

        No special token is added, except the `<eos>` of each line if tokens are whole words; its place is that of the
        line's last character.
        """

    def describe(self) -> dict[str, Any]:
        """`manifest.tokenizer`: type, fingerprint (MD5 of all that determines ids), vocab_size, the special ids."""

    def save(self, folder: Path) -> None:
        """Write a folder that transformers' AutoTokenizer loads; the bytes depend on the vocabulary alone."""


def load_tokenizer(path: Path, settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer of a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder that holds one of them.

    Raises `UserError` naming the file and what is wrong with it.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"tokenizer.path: {path} is not there, and nothing is downloaded; get the vocabulary from its owners and "
            "give its place by tokenizer.path=PATH, or make one: tokenizer.path=null tokenizer.train.size=30000"
        )
    path = _file_in(path, settings.type) if path.is_dir() else path
    try:
        kind = settings.type if settings.type != "auto" else _type_of(path)
        if kind == "sentencepiece":
            return SentencePiece(path)
        if kind == "bpe":
            return ByteLevelBpe(path, settings.fast)
        if kind == "words":
            if path.suffix == ".json":
                return Words(path, *read_words_json(path))
            return Words(path, read_vocabulary(path), settings.split_punctuation)
        if path.suffix == ".json":
            tokens, lowercase = read_wordpiece_json(path)
        else:
            tokens, lowercase = read_vocabulary(path), settings.lowercase
            check_lowercase(path, lowercase)
        return WordPiece(path, tokens, lowercase, settings.fast)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from None


def _file_in(folder: Path, kind: str) -> Path:
    found = {"sentencepiece": sorted(folder.glob("*.model")), "wordpiece": [folder / "vocab.txt"]}
    found["bpe"] = [folder / "vocab.json", folder / "encoder.json"]
    kinds = list(found) if kind == "auto" else [kind]
    found["words"] = [folder / "tokenizer.json", folder / "vocab.txt"]
    for path in [path for kind in kinds for path in found[kind]] + [folder / "tokenizer.json"]:
        if path.exists():
            return path
    raise UserError(f"tokenizer.path: {folder} holds no vocab.txt, *.model, vocab.json or tokenizer.json")


def _type_of(path: Path) -> str:
    if path.suffix == ".model":
        return "sentencepiece"
    if path.suffix != ".json":
        return "wordpiece"
    if path.name in ("vocab.json", "encoder.json") and merges_of(path).exists():
        return "bpe"
    values = json.loads(path.read_text(encoding="utf-8"))
    model = values["model"].get("type") if isinstance(values.get("model"), dict) else "BPE"  # a vocab.json alone
    if model == "Unigram":
        raise UserError(f"{path}: a Unigram model; give the SentencePiece .model it was made from")
    return {"WordPiece": "wordpiece", "WordLevel": "words"}.get(model, "bpe")
