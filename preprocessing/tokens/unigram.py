"""Tokenizers with a unigram model of SentencePiece."""

import logging
import shutil
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import (
    SPECIAL_NAMES,
    BackedTokenizer,
    Encoding,
    join_encodings,
    past_space,
    split_text,
)

logger = logging.getLogger("reread")


class SentencePiece(BackedTokenizer):
    """A unigram SentencePiece model, which `sentencepiece` encodes with; exported as a `tokenizers` Unigram model."""

    type = "sentencepiece"

    def __init__(self, path: Path) -> None:
        from sentencepiece import SentencePieceProcessor
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        content = path.read_bytes()
        proto = ModelProto()
        try:
            proto.ParseFromString(content)
            self._processor = SentencePieceProcessor(model_proto=content)
        except Exception as error:  # protobuf and sentencepiece raise exceptions of their own
            raise UserError(f"{path}: not a SentencePiece model ({error})") from None
        if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
            raise UserError(f"{path}: not a unigram model; only unigram SentencePiece models can be exported")
        pieces = [piece.piece for piece in proto.pieces]
        bracketed = not any(name in pieces for name in ("<cls>", "<s>"))
        names = {
            role: next((name for name in known if name in pieces), known[0] if bracketed else known[-1])
            for role, known in SPECIAL_NAMES.items()
        }
        names["unk"] = pieces[self._processor.unk_id()]
        super().__init__(path, _unigram(proto), names, md5(content).hexdigest())
        symbols = {number for number in self.special.values() if number < len(pieces)}
        self._symbols = np.array(sorted(symbols - {self.special["unk"]}), np.uint32)
        # White space ends every piece and is the same before each, so a long text may be cut there.
        lines = self._processor.Normalize("a\nb") == "▁a▁b"
        # A cache of words would not be exact, since rounding decides between two splits of nearly equal score.
        logger.info(
            "tokenizer: %s: `sentencepiece` itself is used, without a cache of words: it sums the scores of a text in "
            "single precision, so the tokens of a word may depend on the text before it",
            path,
        )
        self._cuts = " \n" if lines and not any("▁" in piece[1:] for piece in pieces) else ""

    def encode(self, text: str) -> Encoding:
        return join_encodings(self._encode_piece(piece) for piece in split_text(text, self._cuts))

    def _encode_piece(self, text: str) -> tuple[Encoding, int]:
        found = self._processor.Encode(text, return_type="offset_mapping")
        ids = np.array(found["ids"], np.uint32)
        # `sentencepiece` finds user-defined symbols in text, too; here they count as unknown text.
        ids[np.isin(ids, self._symbols)] = self.special["unk"]
        # A piece that is only white space counts as a part of the following word.
        starts = past_space(text, np.array(found["offsets"], np.int64).reshape(-1, 2))
        return (ids, np.minimum(starts, len(text) - 1)), len(text)

    def _copy(self) -> Backend:
        return Backend.from_str(self.backend.to_str())  # scores are saved as `tokenizers` reads them

    def _save_vocabulary(self, folder: Path) -> None:
        shutil.copyfile(self.path, folder / "spiece.model")


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
