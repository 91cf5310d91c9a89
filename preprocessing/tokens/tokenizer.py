"""Tokenizers: a vocabulary file in, ids and where they begin out, and a folder transformers loads.

All of them treat text as text: a literal "[MASK]" is a bracket, four letters and a bracket. (The saved folder, read by
transformers, does turn it into the mask, as everywhere else in transformers. And a literal `<unk>` is the unknown token
of a vocabulary of whole words: see `wordlevel`.)
"""

import json
import logging
import re
import shutil
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from preprocessing.config import TokenizerSettings
from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from preprocessing.tokens.vocabulary import check_lowercase, read_vocabulary, read_wordpiece_json, train_vocabulary
from preprocessing.tokens.wordlevel import END, UNKNOWN, read_words_json, words_backend
from preprocessing.tokens.wordpiece import FastWordPiece, encode_by_tokenizers

__all__ = ["Tokenizer", "load_tokenizer", "train_vocabulary"]

logger = logging.getLogger("reread")

PIECE_CHARACTERS = 1 << 16
"""Longer texts are encoded in pieces, where that cannot change an id, to bound memory."""

Encoding = tuple[NDArray[np.uint32], NDArray[np.int64]]

_SPACES = np.array([code for code in range(1 << 14) if chr(code).isspace()], np.uint32)
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer(Protocol):
    """What preprocessing asks of a tokenizer."""

    vocab_size: int
    """Ids lie below it; special tokens that had to be appended are counted in."""
    special: dict[str, int]
    """Ids of pad, unk, cls, sep, mask; of unk and eos where tokens are whole words."""

    def encode(self, text: str) -> Encoding:
        """Token ids [n] and the character of `text` at which each begins [n], past a leading space.

        No special token is added, but for the `<eos>` of each line where tokens are whole words; it is said to begin
        at the line's last character.
        """

    def describe(self) -> dict[str, Any]:
        """`manifest.tokenizer`: type, fingerprint (MD5 of all that decides ids), vocab_size, the special ids."""

    def save(self, folder: Path) -> None:
        """Write a folder that transformers' AutoTokenizer loads; the bytes depend on the vocabulary alone."""


def load_tokenizer(path: Path, settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer of a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder holding one of them.

    Raises `UserError` naming the file and what is wrong with it.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"tokenizer.path: {path}: not there")
    path = _file_in(path, settings.type) if path.is_dir() else path
    try:
        kind = settings.type if settings.type != "auto" else _type_of(path)
        if kind == "sentencepiece":
            return SentencePiece(path)
        if kind == "bpe":
            return ByteLevelBpe(path)
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


class _Backed:
    """What all kinds share. `names` are the special tokens; those not in the vocabulary are appended."""

    type: str

    def __init__(self, path: Path, backend: Backend, names: dict[str, str], identity: Any) -> None:
        self.path, self.backend, self.names = path, backend, names
        size = backend.get_vocab_size(with_added_tokens=False)
        self.special: dict[str, int] = {}
        self.vocab_size = size
        for role, name in names.items():
            known = backend.token_to_id(name)
            self.special[role] = self.vocab_size if known is None else known
            self.vocab_size += known is None
        if self.vocab_size > size:
            appended = [name for role, name in names.items() if self.special[role] >= size]
            logger.info("tokenizer: %s has no %s; appended as ids %d and up", path, ", ".join(appended), size)
        values = [self.type, names, self.special, identity]
        self._fingerprint = md5(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def encode(self, text: str) -> Encoding:
        return encode_by_tokenizers(self.backend, text)

    def describe(self) -> dict[str, Any]:
        values = {"type": self.type, "fingerprint": self._fingerprint, "vocab_size": self.vocab_size}
        return {**values, **self.special}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        backend = Backend.from_str(self.backend.to_str())
        backend.add_special_tokens(
            [
                AddedToken(
                    name,
                    normalized=False,
                    special=True,
                    lstrip=role == "mask" and (self._roberta or self.type == "bpe"),
                )
                for role, name in sorted(self.names.items(), key=lambda item: self.special[item[0]])
            ]
        )
        if any(backend.token_to_id(name) != self.special[role] for role, name in self.names.items()):
            raise UserError(
                f"{self.path}: its ids have gaps, so special tokens cannot be appended; add them to the file"
            )
        single, pair, inputs = self._frame()
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=pair,
            special_tokens=[(name, self.special[role]) for role, name in self.names.items() if name in single.split()],
        )
        names = {f"{role}_token": name for role, name in self.names.items()}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": inputs,
            "clean_up_tokenization_spaces": False,
            **names,
            **self._configuration(),
        }
        write_atomically(folder / "tokenizer.json", backend.to_str(pretty=True).encode())
        write_atomically(folder / "tokenizer_config.json", _json(config))
        write_atomically(folder / "special_tokens_map.json", _json(names))
        self._save_vocabulary(folder)

    @property
    def _roberta(self) -> bool:
        return self.names.get("cls") == "<s>"

    def _frame(self) -> tuple[str, str, list[str]]:
        """Where special tokens go around one text and around two, and what a model is given."""
        cls, sep = self.names["cls"], self.names["sep"]
        if self._roberta:
            return f"{cls} $A {sep}", f"{cls} $A {sep} {sep} $B {sep}", ["input_ids", "attention_mask"]
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        return f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", inputs

    def _configuration(self) -> dict[str, Any]:
        return {}

    def _save_vocabulary(self, folder: Path) -> None:
        """Beside tokenizer.json, the vocabulary in the form its own library reads; none by default."""


class WordPiece(_Backed):
    """BERT's tokenizer: the table-driven encoder where it agrees with `tokenizers`, else `tokenizers` itself."""

    type = "wordpiece"

    def __init__(self, path: Path, tokens: list[str], lowercase: bool, fast: bool) -> None:
        vocabulary = {token: number for number, token in enumerate(tokens)}
        for role, (name, *_) in _NAMES.items():
            if name not in vocabulary:
                raise UserError(f"{path}: the {role} token {name} is missing; put it into the vocabulary")
        backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        super().__init__(path, backend, {role: names[0] for role, names in _NAMES.items()}, [tokens, lowercase])
        self.tokens, self.lowercase = tokens, lowercase
        self._fast = FastWordPiece(backend) if fast else None
        if self._fast and not self._fast.agrees():
            self._fast = None
            logger.info(
                "tokenizer: the fast WordPiece differs from `tokenizers` on the test text; `tokenizers` is used"
            )

    def encode(self, text: str) -> Encoding:
        if self._fast:
            return self._fast.encode(text)
        return _in_pieces(self.backend, text, " \n")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "lowercase": self.lowercase}

    def _configuration(self) -> dict[str, Any]:
        return {"do_lower_case": self.lowercase, "strip_accents": None, "tokenize_chinese_chars": True}

    def _save_vocabulary(self, folder: Path) -> None:
        write_atomically(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens).encode())


class ByteLevelBpe(_Backed):
    """Byte-level BPE (GPT-2, RoBERTa), from a tokenizer.json or from vocab.json and merges.txt beside it."""

    type = "bpe"

    def __init__(self, path: Path) -> None:
        backend = self._from_json(path) if path.name.endswith("tokenizer.json") else self._from_merges(path)
        vocabulary = backend.get_vocab(with_added_tokens=False)
        bracketed = "[MASK]" in vocabulary
        names = {role: known[0] if bracketed else known[-1] for role, known in _NAMES.items()}
        super().__init__(path, backend, names, json.loads(backend.to_str()))
        split = json.loads(backend.to_str())["pre_tokenizer"]
        plain = split["type"] == "ByteLevel" and split.get("use_regex", True) and backend.normalizer is None
        # With add_prefix_space a piece must begin with a blank, else one would be put before it.
        self._cuts = "" if not plain else " " if split["add_prefix_space"] else " \n"

    def encode(self, text: str) -> Encoding:
        return _in_pieces(self.backend, text, self._cuts)

    def _save_vocabulary(self, folder: Path) -> None:
        model = json.loads(self.backend.to_str())["model"]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        write_atomically(folder / "vocab.json", json.dumps(model["vocab"], ensure_ascii=False).encode())
        write_atomically(folder / "merges.txt", "\n".join(["#version: 0.2", *merges, ""]).encode())

    @staticmethod
    def _from_json(path: Path) -> Backend:
        values = json.loads(path.read_text(encoding="utf-8"))
        if "ByteLevel" not in json.dumps(values.get("pre_tokenizer")):
            raise UserError(f"{path}: a BPE that is not byte-level; only byte-level BPE is read")
        for added in values.get("added_tokens", []):
            values["model"]["vocab"].setdefault(added["content"], added["id"])
        values.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        try:
            return Backend.from_str(json.dumps(values))
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise UserError(f"{path}: not a tokenizer.json ({error})") from None

    @staticmethod
    def _from_merges(path: Path) -> Backend:
        merges = path.with_name("vocab.bpe" if path.name == "encoder.json" else "merges.txt")
        if not merges.exists():
            raise UserError(f"{path}: byte-level BPE needs {merges.name} beside it")
        try:
            vocabulary, pairs = models.BPE.read_file(str(path), str(merges))
            backend = Backend(models.BPE(vocabulary, pairs))
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise UserError(f"{path}, {merges}: not the two files of a byte-level BPE ({error})") from None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        return backend


class SentencePiece(_Backed):
    """A unigram SentencePiece model: encodes by `sentencepiece`, is exported as a `tokenizers` Unigram model."""

    type = "sentencepiece"

    def __init__(self, path: Path) -> None:
        from sentencepiece import SentencePieceProcessor
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        content = path.read_bytes()
        proto = ModelProto()
        try:
            proto.ParseFromString(content)
            self._processor = SentencePieceProcessor(model_proto=content)
        except Exception as error:  # protobuf and sentencepiece raise their own kinds
            raise UserError(f"{path}: not a SentencePiece model ({error})") from None
        if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
            raise UserError(f"{path}: not a unigram model; transformers can only be given unigram SentencePiece models")
        pieces = [piece.piece for piece in proto.pieces]
        bracketed = not any(name in pieces for name in ("<cls>", "<s>"))
        names = {
            role: next((name for name in known if name in pieces), known[0] if bracketed else known[-1])
            for role, known in _NAMES.items()
        }
        names["unk"] = pieces[self._processor.unk_id()]
        super().__init__(path, _unigram(proto), names, md5(content).hexdigest())
        symbols = {number for number in self.special.values() if number < len(pieces)}
        self._symbols = np.array(sorted(symbols - {self.special["unk"]}), np.uint32)
        # White space ends every piece and is the same before each, so a long text may be cut there.
        lines = self._processor.Normalize("a\nb") == "▁a▁b"
        self._cuts = " \n" if lines and not any("▁" in piece[1:] for piece in pieces) else ""

    def encode(self, text: str) -> Encoding:
        return _joined(self._encode_piece(piece) for piece in _pieces(text, self._cuts))

    def _encode_piece(self, text: str) -> tuple[Encoding, int]:
        found = self._processor.Encode(text, return_type="offset_mapping")
        ids = np.array(found["ids"], np.uint32)
        # Symbols a model marks as user-defined are found in text too; here they are no more than text it does not know.
        ids[np.isin(ids, self._symbols)] = self.special["unk"]
        # A piece of white space alone belongs to the word it stands before, as the one before the first word must.
        starts = _past_space(text, np.array(found["offsets"], np.int64).reshape(-1, 2))
        return (ids, np.minimum(starts, len(text) - 1)), len(text)

    def _save_vocabulary(self, folder: Path) -> None:
        shutil.copyfile(self.path, folder / "spiece.model")


class Words(_Backed):
    """Whole words, and `<eos>` at the end of each line that holds any (`wordlevel`)."""

    type = "words"

    def __init__(self, path: Path, tokens: list[str], split_punctuation: bool) -> None:
        for name in (UNKNOWN, END):
            if name not in tokens:
                raise UserError(f"{path}: the token {name} is missing; put it into the vocabulary")
        backend = words_backend(tokens, split_punctuation)
        super().__init__(path, backend, {"unk": UNKNOWN, "eos": END}, [tokens, split_punctuation])
        self.split_punctuation = split_punctuation

    def encode(self, text: str) -> Encoding:
        ids, starts = _in_pieces(self.backend, text, " \n")
        ids[ids == self.special["eos"]] = self.special["unk"]  # a literal one
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        line_ends = np.append(np.flatnonzero(codes == ord("\n")), len(codes))
        places = np.searchsorted(starts, line_ends)
        holds_words = np.diff(places, prepend=0) > 0
        places, last = places[holds_words], line_ends[holds_words] - 1
        return np.insert(ids, places, self.special["eos"]), np.insert(starts, places, last)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "split_punctuation": self.split_punctuation}

    def _frame(self) -> tuple[str, str, list[str]]:
        return f"$A {END}", f"$A {END} $B {END}", ["input_ids"]


def _unigram(proto: Any) -> Backend:
    """The `tokenizers` form of a unigram SentencePiece model."""
    spec = proto.normalizer_spec
    backend = Backend(
        models.Unigram(
            [(piece.piece, piece.score) for piece in proto.pieces],
            unk_id=proto.trainer_spec.unk_id,
            byte_fallback=proto.trainer_spec.byte_fallback,
        )
    )
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return backend


def _pieces(text: str, cuts: str) -> Iterator[str]:
    """Cut a long text before white space that follows other text; `cuts` are the characters to cut at, may be none."""
    begin = 0
    if cuts:
        place = re.compile(rf"(?<=\S)[{cuts}]")
        while len(text) - begin > PIECE_CHARACTERS:
            found = place.search(text, begin + PIECE_CHARACTERS)
            if found is None:
                break
            yield text[begin : found.start()]
            begin = found.start()
    yield text[begin:]


def _in_pieces(backend: Backend, text: str, cuts: str) -> Encoding:
    def encode(piece: str) -> tuple[Encoding, int]:
        encoding = backend.encode(piece, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        starts = _past_space(piece, offsets)
        starts = np.where(starts < offsets[:, 1], starts, offsets[:, 0])  # white space alone stays where it is
        return (np.array(encoding.ids, np.uint32), starts), len(piece)

    return _joined(encode(piece) for piece in _pieces(text, cuts))


def _joined(pieces: Iterator[tuple[Encoding, int]]) -> Encoding:
    ids, starts, begin = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
    for (piece_ids, piece_starts), length in pieces:
        ids.append(piece_ids)
        starts.append(piece_starts + begin)
        begin += length
    return np.concatenate(ids), np.concatenate(starts)


def _past_space(text: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each token [n, 2] begins, past the white space it starts with; its end if it holds nothing else."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    starts, ends = offsets[:, 0].copy(), offsets[:, 1]
    leading = np.flatnonzero(starts < ends)
    while len(leading := leading[np.isin(codes[starts[leading]], _SPACES)]):
        starts[leading] += 1
        leading = leading[starts[leading] < ends[leading]]
    return starts


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
    values = json.loads(path.read_text(encoding="utf-8"))
    model = values["model"].get("type") if isinstance(values.get("model"), dict) else "BPE"  # else a vocab.json
    if model == "Unigram":
        raise UserError(f"{path}: a Unigram model; give the SentencePiece .model it was made from")
    return {"WordPiece": "wordpiece", "WordLevel": "words"}.get(model, "bpe")


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=2) + "\n").encode()
