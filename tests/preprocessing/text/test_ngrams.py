"""Units and n-grams: beside the definition, a character at a time."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, text

from reread.preprocessing.text import ngrams as module
from reread.preprocessing.text.ngrams import ngrams, pieces, units_of

ALPHABET = "aBé９ 。,'一二丁ーアか\n가ß𠀀"


def reference_units(text: str) -> list[str]:
    found, word = [], ""
    for character in [*text, " "]:
        code = ord(character)
        is_alone = code == 0x3007 or 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF
        is_alone = (is_alone and not 0x4DC0 <= code <= 0x4DFF) or (
            0x3040 <= code <= 0x30FF and code not in (12448, 12539)
        )
        if not is_alone and (character.isalnum() or unicodedata.category(character).startswith("M")):
            word += character.lower() if len(character.lower()) == 1 else character
            continue
        found += [word] if word else []
        found += [character] if is_alone else []
        word = ""
    return found


def reference_ngrams(text: str, length: int) -> list[tuple[str, ...]]:
    units = reference_units(text)
    return [tuple(units[begin : begin + length]) for begin in range(len(units) - length + 1)]


@given(lists(text(ALPHABET, max_size=30), min_size=1, max_size=5), integers(1, 4))
def test_ngrams_are_equal_where_their_units_are(texts: list[str], length: int) -> None:
    units = units_of(texts)
    expected = [unit for one in texts for unit in reference_units(one)]
    assert len(units.hashes) == len(expected)
    assert len(set(zip(expected, units.hashes.tolist(), strict=True))) == len(set(expected))
    hashes, firsts = ngrams(units, length)
    named = [(number, gram) for number, one in enumerate(texts) for gram in reference_ngrams(one, length)]
    assert units.text[firsts].tolist() == [number for number, _ in named]
    grams = [gram for _, gram in named]
    assert len(set(zip(grams, hashes.tolist(), strict=True))) == len(set(grams)) == len(set(hashes.tolist()))


def test_white_space_punctuation_and_case_make_no_difference() -> None:
    units = units_of(["Hello, World! 天气好", "hello world 天\n气 「好」"])
    assert units.hashes[:5].tolist() == units.hashes[5:].tolist()
    assert units.is_character.tolist() == [False, False, True, True, True] * 2
    assert units.begins.tolist()[:5] == [0, 7, 14, 15, 16]


def test_a_long_text_in_pieces_keeps_its_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = " ".join(f"w{number}" for number in range(2_000))
    expected, _ = ngrams(units_of([whole]), 5)
    monkeypatch.setattr(module, "PIECE", 2_000)
    monkeypatch.setattr(module, "OVERLAP", 200)
    batches = list(pieces(["short", whole, "last"]))
    assert len(batches) > 5 and [number for numbers, _ in batches for number in numbers][:2] == [0, 1]
    found = np.concatenate([ngrams(units_of(batch), 5)[0] for _, batch in batches])
    assert set(expected.tolist()) <= set(found.tolist())
    assert len(set(found.tolist())) < len(expected) + 10 * len(batches)  # of words that are cut
