"""Marks that a vocabulary lacks."""

from pathlib import Path

import pytest

from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.tokens.punctuation import MARKS, marks_to_map
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from tests.conftest import shared


@pytest.mark.parametrize("known", ["", "“”", "…-", '"'])
def test_marks_that_the_vocabulary_lacks_become_marks_that_it_has(tmp_path: Path, known: str) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *known]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    settings = TokenizerSettings(path=tmp_path / "vocab.txt")
    found = marks_to_map(load_tokenizer(tmp_path / "vocab.txt", settings))
    assert not set(found) & set(known)
    assert set("".join(found.values())) <= set(known)
    assert ("“" in found) == (known == '"') and ("—" in found) == ("-" in known)
    assert set(found) <= MARKS


def test_bert_base_chinese_lacks_quotation_marks_dashes_and_ellipses() -> None:
    path = shared("vocab/bert-base-chinese.vocab.txt")
    found = marks_to_map(load_tokenizer(path, TokenizerSettings(path=path)))
    assert {mark: found[mark] for mark in "“”‘’—…"} == {"“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "…": "..."}
    assert "「" not in found and "·" not in found
