"""Byte-level BPE with a cache of pieces gives the ids and starts of `tokenizers`."""

import json
import logging
import lzma
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from reread.preprocessing.config import TokenizerSettings, WordSettings
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens import base, fast_bpe, piece_cache
from reread.preprocessing.tokens.bpe import ByteLevelBpe
from reread.preprocessing.tokens.encode import Encoder
from reread.preprocessing.tokens.fast_bpe import FastBpe, piece_begins
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from tests.conftest import shared

MERGES = ["Ġ t", "h e", "Ġt he", "' s", "Ġ Ġ", "a b", "1 2", "Ã ©", "Ċ Ċ", "n '", "Ġ '", "i n", "in g", ". .", "ä ¸"]
ATOMS = [
    *" \t\n\r\v\f\0\x1c\x1f\x85\xa0\u3000\u2028\u180e\u200b\ufeff\xad'’\".,!-%&()",
    *"aTé中文한ßǅ١½²Ⅳ1２_😀\U000e0041\u0301\u302e\ue000\u0378",
    *("  ", " \n", "\n\n", "'s", "'S", "'t", "'ll", "'ve", "n't", " the", "1st", "3.14", "e\u0301", "👍🏽", " [MASK] "),
]
TEXTS = st.lists(st.one_of(st.sampled_from(ATOMS), st.characters(exclude_categories=["Cs"])), max_size=40).map("".join)


def backend(add_prefix_space: bool) -> Tokenizer:
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return tokenizer


BACKENDS = {prefix: backend(prefix) for prefix in (False, True)}
FAST = {prefix: FastBpe(BACKENDS[prefix], prefix) for prefix in BACKENDS}


def load_backend() -> ByteLevelBpe:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(BACKENDS[False].to_str(), encoding="utf-8")
        return ByteLevelBpe(path)


JOINED, WORDS = load_backend(), WordSegmenter(WordSettings())


def assert_same(fast: FastBpe, library: Tokenizer, text: str) -> None:
    for found, expected in zip(fast.encode(text), base.encode_in_pieces(library, text, ""), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=repr(text))


@given(TEXTS)
def test_any_text_is_encoded_as_tokenizers_does(text: str) -> None:
    for prefix, fast in FAST.items():
        assert_same(fast, BACKENDS[prefix], text)


def test_every_pair_of_difficult_strings_is_encoded_as_tokenizers_does() -> None:
    for prefix, fast in FAST.items():
        assert fast.agrees()
        text = "".join(f"{first}{second}x{second}{first} " for first in ATOMS for second in ATOMS)
        assert_same(fast, BACKENDS[prefix], text)
        for first in ["", *ATOMS]:
            assert_same(fast, BACKENDS[prefix], first + "a")
            assert_same(fast, BACKENDS[prefix], "a" + first)


@pytest.mark.long
def test_every_character_is_cut_as_the_expression_cuts_it() -> None:
    blocks = (range(1, 0x3400), range(0x3400, 0xA000, 64), range(0xA000, 0xAC00), range(0xAC00, 0xD7A4, 64))
    codes = [code for block in (*blocks, range(0xF900, 0x10000), range(0x10000, 0x110000, 256)) for code in block]
    for pattern in ("a{0}a1{0}1.{0}.", "{0} \n{0}\t{0}"):
        text = "".join(pattern.format(chr(code)) for code in codes)
        places = {begin for _, (begin, _) in pre_tokenizers.ByteLevel(False).pre_tokenize_str(text)}
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        assert places.issuperset(piece_begins(codes).tolist())


def test_the_cache_is_bounded_and_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 50)
    monkeypatch.setattr(base, "PIECE_CHARACTERS", 100)
    fast = FastBpe(BACKENDS[False], False)
    assert_same(fast, BACKENDS[False], " ".join(f"ab{number}, the" for number in range(2_000)))
    assert len(fast._cache) < 150
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 1 << 20)
    monkeypatch.setattr(piece_cache, "CACHED_CHARACTERS", 500)
    assert_same(fast, BACKENDS[False], " ".join(f"theab{number}中文." for number in range(2_000)))
    assert len(fast._cache) < 150


def test_pieces_that_share_a_slot_or_do_not_fit_into_one_keep_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_cache, "SLOT_BITS", 3)
    fast = FastBpe(BACKENDS[False], False)
    long = "internationalisation"
    words = [
        "abc",
        "abcя",
        "abc\x00",
        "abc\x01",
        "abcж",
        "é’",
        "á”",
        long[:15],
        long[:16],
        long,
        long + "s",
        "中",
        "문",
    ]
    for _ in range(2):  # learnt, then looked up
        assert_same(fast, BACKENDS[False], " ".join(words + words[::-1]))


def test_a_wrong_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = fast_bpe._character_kinds().copy()
    kinds[ord("'")] = kinds[ord(".")]
    monkeypatch.setattr(fast_bpe, "_character_kinds", lambda: kinds)
    assert not FAST[False].agrees()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(use_regex=False)}, "pre-tokeniser is not that of GPT-2"),
        ({"normalizer": normalizers.Lowercase()}, "it has a normaliser (Lowercase)"),
        ({"model.dropout": 0.1}, "it has dropout"),
        ({}, ""),
    ],
)
def test_another_tokenizer_json_falls_back_in_one_line(
    change: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = backend(False)
    for name, value in change.items():
        target, _, field = name.rpartition(".")
        setattr(tokenizer.model if target else tokenizer, field, value)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    with caplog.at_level(logging.INFO, "reread"):
        loaded = load_tokenizer(path, TokenizerSettings(path=path))
    lines = [line for line in caplog.messages if "is used" in line]
    assert [reason in line for line in lines] == ([True] if reason else [])
    assert isinstance(loaded, ByteLevelBpe)
    if "dropout" not in reason:
        text = "The cat's in the RING.\n\n  It is"
        np.testing.assert_array_equal(loaded.encode(text)[0], tokenizer.encode(text).ids)


@given(st.lists(TEXTS.map(lambda text: f"'{text}."), max_size=5) | st.lists(TEXTS, max_size=3))
def test_documents_encoded_together_have_the_tokens_and_flags_of_each_alone(texts: list[str]) -> None:
    encoder = Encoder(JOINED, WORDS)
    assert encoder.drops_newlines
    for found, text in zip(encoder.encode(texts), texts, strict=True):
        for values, expected in zip(found, encoder.encode([text])[0], strict=True):
            np.testing.assert_array_equal(values, expected, err_msg=repr(texts))


def test_added_tokens_are_found_and_saved_as_transformers_has_them(tmp_path: Path) -> None:
    """ModernBERT's runs of blanks; special tokens stay text."""
    library = Tokenizer.from_str(BACKENDS[False].to_str())
    library.normalizer = normalizers.NFC()
    library.add_tokens([AddedToken(" " * blanks, normalized=True) for blanks in (3, 2)])
    library.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    library.save(str(tmp_path / "tokenizer.json"))
    text = "the  the   1st\n    ab the e\u0301"
    tokenizer = load_tokenizer(tmp_path, TokenizerSettings(path=tmp_path))
    expected = library.encode(text).ids
    assert {library.token_to_id("  "), library.token_to_id("   ")} < {*expected}
    assert tokenizer.encode(text)[0].tolist() == expected
    assert library.token_to_id("[MASK]") not in tokenizer.encode("the [MASK]")[0]
    tokenizer.save(tmp_path / "saved")
    saved = Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert saved.encode(text, add_special_tokens=False).ids == expected


def english() -> list[str]:
    files = ["en_books/pg84.txt.xz", "en_books/austen-emma.sentence-per-line.txt.xz", "en_wikiextractor/AA_wiki_00.xz"]
    texts = [lzma.decompress(shared(file).read_bytes()).decode()[:60_000] for file in files]
    with tarfile.open(shared("en_imdb/train-5000.tar.xz")) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                texts.append(file.read().decode())
            if len(texts) == 60:
                break
    return texts


def test_real_text_is_encoded_as_tokenizers_does(tmp_path: Path) -> None:
    vocabulary = shared("vocab/gpt2.encoder.json")
    (tmp_path / "encoder.json").symlink_to(vocabulary)
    (tmp_path / "vocab.bpe").symlink_to(vocabulary.with_name("gpt2.vocab.bpe"))
    tokenizer = load_tokenizer(tmp_path, TokenizerSettings(path=tmp_path))
    assert isinstance(tokenizer, ByteLevelBpe) and tokenizer._fast is not None
    for text in english():
        assert_same(tokenizer._fast, tokenizer.backend, text)
    assert json.loads(vocabulary.read_text(encoding="utf-8"))["Ġthe"] in tokenizer.encode("in the end")[0]
