"""The base of all tokenizers: special tokens, the folder that transformers loads, and encoding long texts in pieces."""

import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.files import write_atomically

logger = logging.getLogger("reread")

PIECE_CHARACTERS = 1 << 16
"""Longer texts are encoded in pieces of about this length to bound memory, if that cannot change an id."""

Encoding = tuple[NDArray[np.uint32], NDArray[np.int64]]

_SPACES = np.array([code for code in range(1 << 14) if chr(code).isspace()], np.uint32)
CONFIG = "tokenizer_config.json"
FILES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    CONFIG,
    "special_tokens_map.json",
)
"""Names of a tokenizer's files; a SentencePiece model ends in `.model`."""
SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


def copy_tokenizer_files(source: Path, folder: Path) -> None:
    """Copy the files of the tokenizer in `source` to `folder`, and no other files; `auto_map` is left out.

    transformers runs the code that `auto_map` names, in the folder or in a repository, for users who trust the folder.
    Raises `UserError` for a tokenizer_config.json that is not a JSON object.
    """
    for file in sorted(source.glob("*.*")):
        if file.name in FILES or file.suffix == ".model":  # `source` may also hold a model's weights or code
            shutil.copyfile(file, folder / file.name)
    path = folder / CONFIG
    if not path.exists():
        return
    settings = read_config(source)
    if settings.pop("auto_map", None) is not None:
        logger.info("%s: auto_map is left out, since it names code that transformers would run", source / CONFIG)
        write_atomically(path, _json(settings))


def read_config(folder: Path) -> dict[str, Any]:
    """The values of tokenizer_config.json; raises `UserError` if it is not a JSON object."""
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG}: not readable as JSON ({error}); get the file from its owners") from None
    if not isinstance(settings, dict):
        raise UserError(f"{folder / CONFIG}: not the settings of a tokenizer; get the file from its owners")
    return settings


class BackedTokenizer:
    """Base class of all tokenizers.

    `names` are the special tokens by role, of which those that the vocabulary lacks are appended to it. `identity` is
    any JSON value that determines the ids, for the fingerprint.
    """

    type: str
    cuts_at_lines: bool = False  # as in `Tokenizer`

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

    def describe(self) -> dict[str, Any]:
        values = {"type": self.type, "fingerprint": self._fingerprint, "vocab_size": self.vocab_size}
        return {**values, **self.special}

    def save(self, folder: Path) -> None:
        # Append special tokens, whose ids must be those that texts were encoded with.
        folder.mkdir(parents=True, exist_ok=True)
        backend = self._copy()
        backend.add_special_tokens(
            [
                AddedToken(
                    name,
                    normalized=False,
                    special=True,
                    lstrip=role == "mask" and (self._is_roberta or self.type == "bpe"),
                )
                for role, name in sorted(self.names.items(), key=lambda item: self.special[item[0]])
            ]
        )
        if any(backend.token_to_id(name) != self.special[role] for role, name in self.names.items()):
            raise UserError(
                f"{self.path}: its ids have gaps, so special tokens cannot be appended; add these tokens to the file"
            )
        # Put them around texts.
        single, pair, inputs = self._templates()
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=pair,
            special_tokens=[(name, self.special[role]) for role, name in self.names.items() if name in single.split()],
        )
        # Write the files that transformers reads.
        names = {f"{role}_token": name for role, name in self.names.items()}
        if self._is_roberta:
            names |= {"bos_token": self.names["cls"], "eos_token": self.names["sep"]}
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
    def _is_roberta(self) -> bool:
        return self.names.get("cls") == "<s>"

    def _templates(self) -> tuple[str, str, list[str]]:
        """Templates of a single text and of a pair of texts with special tokens, and the names of a model's inputs."""
        cls, sep = self.names["cls"], self.names["sep"]
        if self._is_roberta:
            return f"{cls} $A {sep}", f"{cls} $A {sep} {sep} $B {sep}", ["input_ids", "attention_mask"]
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        return f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", inputs

    def _copy(self) -> Backend:
        """A copy of the backend that shares its model, which adding special tokens does not change."""
        copy = Backend(self.backend.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            setattr(copy, part, getattr(self.backend, part))
        return copy

    def _configuration(self) -> dict[str, Any]:
        return {}

    def _save_vocabulary(self, folder: Path) -> None:
        """Write the vocabulary also in the format of its own library; does nothing by default."""


def split_text(text: str, cuts: str) -> Iterator[str]:
    """Pieces of a long text, cut before white space that follows a visible character.

    `cuts` are the white space characters to cut at; "" keeps the text whole.
    """
    begin = 0
    if cuts:
        cut = re.compile(rf"(?<=\S)[{cuts}]")
        while len(text) - begin > PIECE_CHARACTERS:
            found = cut.search(text, begin + PIECE_CHARACTERS)
            if found is None:
                break
            yield text[begin : found.start()]
            begin = found.start()
    yield text[begin:]


def encode_in_pieces(backend: Backend, text: str, cuts: str) -> Encoding:
    def encode(piece: str) -> tuple[Encoding, int]:
        encoding = backend.encode(piece, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return (np.array(encoding.ids, np.uint32), local_starts(piece, offsets)), len(piece)

    return join_encodings(encode(piece) for piece in split_text(text, cuts))


def join_encodings(pieces: Iterator[tuple[Encoding, int]]) -> Encoding:
    ids, starts, begin = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
    for (piece_ids, piece_starts), length in pieces:
        ids.append(piece_ids)
        starts.append(piece_starts + begin)
        begin += length
    return np.concatenate(ids), np.concatenate(starts)


def local_starts(text: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n]: the first character of each token after its leading white space, or its begin if it has no other.

    `offsets` [n, 2] are the begin and end of each token in `text`.
    """
    starts = past_space(text, offsets)
    return np.where(starts < offsets[:, 1], starts, offsets[:, 0])


def past_space(text: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n]: the first character of each token after its leading white space, or its end if it has no other.

    `offsets` [n, 2] are the begin and end of each token in `text`.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    starts, ends = offsets[:, 0].copy(), offsets[:, 1]
    leading = np.flatnonzero(starts < ends)
    while len(leading := leading[np.isin(codes[starts[leading]], _SPACES)]):
        starts[leading] += 1
        leading = leading[starts[leading] < ends[leading]]
    return starts


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """The values of a tokenizer.json; raises `UserError` if `tokenizers` cannot load it."""
    values = json.loads(path.read_text(encoding="utf-8"))
    read_backend(path)
    return dict(values)


def read_backend(path: Path) -> Backend:
    """The tokenizer of a tokenizer.json; raises `UserError` if `tokenizers` cannot load it."""
    try:
        return Backend.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # `tokenizers` raises no narrower class, and a panic of Rust is not an Exception
        raise UserError(f"{path}: not a tokenizer.json ({first_line(error)})") from None


def with_tokens(backend: Backend, added: Sequence[str]) -> list[int]:
    """The ids of the special tokens `added`, after the tokenizer has got those that it lacks."""
    if not added:
        return []
    backend.add_special_tokens(list(added))
    vocabulary = backend.get_vocab()
    return [vocabulary[one] for one in added]


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=2) + "\n").encode()
