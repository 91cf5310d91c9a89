"""Bytes as tokens: what language models of characters read is the text, byte for byte."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from reread.preprocessing.config import CleanSettings, PreprocessSettings
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.preprocessing.text.clean import Cleaner
from reread.training.data.rows.stream import Stream, StreamSettings


def settings(folder: Path, paths: list[str], **values: Any) -> PreprocessSettings:
    given = {
        "input": {"paths": paths, "format": "document-per-file", "bad_input": "refuse"},
        "output": folder / "corpus",
        "clean": {"as_is": True, "nfkc": False},
        "dedup": {"documents": False},
        "tokenizer": {"train": {"type": "bpe", "size": 261}},
        "validation_share": 0,
        "workers": 1,
    }
    return PreprocessSettings.parse({**given, **values}, "test")


def byte_of() -> dict[str, int]:
    """GPT-2's letter of each byte: itself if it is visible, else the next one from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


def test_every_byte_of_all_files_is_a_token_in_order(tmp_path: Path) -> None:
    pieces = [
        "  two  blanks\n\n\n and\ttabs \r\n",
        "<s> [MASK] </s>\n",
        " \n",
        "中文，é \u200b\0\x1f x², ＡＢ\u3000\n\nend",
    ]
    pieces += ["".join(random.Random(0).choices("ab \n<é。", k=3000))]
    (tmp_path / "text").mkdir()
    for number, piece in enumerate(pieces):
        (tmp_path / "text" / f"part-{number}").write_bytes(piece.encode())
    build(settings(tmp_path, [str(tmp_path / "text")]))
    folder, letters = tmp_path / "corpus", byte_of()
    stream = Stream(Corpus(folder), StreamSettings(kind="stream", corpus=folder))
    assert stream.is_bytes and stream.vocab_size == 261
    ids = stream.rows(np.array([0]), len(stream))["input_ids"][0].tolist()
    tokens = Backend.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    assert bytes(letters[str(tokens.id_to_token(one))] for one in ids) == "".join(pieces).encode()


def test_a_border_within_a_character_is_refused_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("ab é".encode()[:-1])
    with pytest.raises(UserError, match=r"not utf-8 \(byte 3 of it\)") as error:
        build(settings(tmp_path, [str(tmp_path / "text")]))
    assert "\n" not in str(error.value)


def test_text_as_it_is_goes_with_no_option_that_changes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="as_is keeps every character, but nfkc changes them; set nfkc: false"):
        settings(tmp_path, ["x"], clean={"as_is": True})
    with pytest.raises(UserError, match="but html changes them"):
        settings(tmp_path, ["x"], clean={"as_is": True, "nfkc": False, "html": True})
    cleaner = Cleaner(CleanSettings(as_is=True, nfkc=False))
    assert cleaner.clean(" a\n\n") == " a\n\n" and cleaner.reason_to_drop("") == "empty"
