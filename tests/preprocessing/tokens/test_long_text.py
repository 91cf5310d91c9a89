"""Pieces of a long text have the tokens of the whole, where a tokenizer's rule allows it; other texts stay whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from reread.preprocessing.labelled.tasks.answer import AnswerExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.tokens import long_text
from reread.preprocessing.tokens.long_text import cuts_of, pieces_of
from reread.training.data.tasks import encoder
from tests.tasks import dataset_of, task_values, write_tokenizer

WORDS = ["[PAD]", "[UNK]", "[MASK]", *"abc中文字é!", "##a", "##b", "##中", "ab"]
TEXT = "ab c'll  中文\n\n a1 23 b!? \u0301e 한국 x\t y"


def bert(*tokens: AddedToken, **how: bool) -> Tokenizer:
    found = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    found.normalizer, found.pre_tokenizer = normalizers.BertNormalizer(**how), pre_tokenizers.BertPreTokenizer()
    found.add_special_tokens(["[MASK]", *tokens])
    return found


def gpt(*tokens: AddedToken, **how: bool) -> Tokenizer:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(**how)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        [TEXT * 9], trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    )
    found.add_special_tokens([AddedToken("<mask>", lstrip=True), *tokens])
    return found


CUT = {
    "bert": bert(),
    "bert, ideographs in words": bert(handle_chinese_chars=False),
    "bert, accents and capitals": bert(lowercase=False, strip_accents=False, clean_text=False),
    "gpt": gpt(add_prefix_space=False),
    "gpt, prefix": gpt(add_prefix_space=True),
    "gpt, offsets with blanks": gpt(add_prefix_space=True, trim_offsets=False),
}
PARTS = [
    *" \n\t\r\u3000\u2028\u00a0\u200b",
    *"abcé中文字豈한!'1\u0301\u0300\ufeff😀𠀀",
    " <mask>",
    "[MASK] ",
    "'ll",
    "\u1100\u1161",
]


def tokens(backend: Tokenizer, text: str, begin: int = 0) -> list[Any]:
    found = backend.encode(text, add_special_tokens=False)
    return [
        (number, first + begin, last + begin) for number, (first, last) in zip(found.ids, found.offsets, strict=True)
    ]


@pytest.mark.parametrize("name", CUT)
def test_pieces_have_the_tokens_and_places_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "PIECE_CHARACTERS", 2)
    backend = CUT[name]
    cut, reason = cuts_of(backend)
    assert cut and not reason
    counts = []

    @example(TEXT)
    @given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
    def holds(text: str) -> None:
        pieces = list(pieces_of(text, cut))
        assert "".join(piece for _, piece in pieces) == text
        assert [one for begin, piece in pieces for one in tokens(backend, piece, begin)] == tokens(backend, text)
        counts.append(len(pieces))

    holds()
    assert max(counts) > 3


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (bert(AddedToken("[X]", rstrip=True)), "its token `[X]` may reach over any place"),
        (bert(AddedToken("a b")), "its token `a b` may reach over any place"),
        (gpt(AddedToken("中", single_word=True)), "its token `中` may reach over any place"),
        (gpt(use_regex=False), "nothing is known of words that ByteLevel makes after nothing"),
        (Tokenizer(models.Unigram()), "nothing is known of words that no pre-tokeniser makes after nothing"),
    ],
)
def test_other_tokenizers_read_a_text_whole(backend: Tokenizer, reason: str) -> None:
    assert cuts_of(backend) == (None, reason)
    assert list(pieces_of(TEXT * 9999, None)) == [(0, TEXT * 9999)]


def test_a_long_document_has_the_tokens_that_it_has_in_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pieces, by the table-driven encoder, and a few characters at a time."""
    tokenizer = write_tokenizer(tmp_path)
    text = "a b ? c\nx [MASK]  y unknown " * 40
    given_to = {"answer": AnswerExample("1", "", text, "b ?"), "classify": ClassifyExample("1", "", text, None, "u")}
    for kind, one in given_to.items():
        labels = {"labels": ["u"]} if kind == "classify" else {}
        values = task_values("ernie_doc", kind, tokenizer, sequence_length=16, **labels)
        (expected,) = dataset_of(values, [one]).documents
        for together, long in ((10_000, 10_000), (10, 10_000), (10, 100)):
            with monkeypatch.context() as patch:
                patch.setattr(long_text, "PIECE_CHARACTERS", 9)
                patch.setattr(encoder, "TOGETHER", together)
                patch.setattr(encoder, "LONG", long)
                (found,) = dataset_of(values, [one]).documents
            assert np.array_equal(found.ids, expected.ids) and np.array_equal(found.offsets, expected.offsets)
            assert len(found.offsets) == (len(found.ids) if kind == "answer" else 0)
