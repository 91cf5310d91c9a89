from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.config import CleanSettings, InputSettings, TokenizerSettings, WordSettings
from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END
from reread.preprocessing.input.read import read
from reread.preprocessing.input.sources import find_files, plan_parts
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.encode import Encoder, batches
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.conftest import shared

TEXTS = [
    "他来到了网易杭研大厦。天气很好！\n第二段 hello worlds, 3.5% of it.",
    "好",
    "他說：“這是什麼？”\n\u3400\u3401 café naïve [MASK] end",
    "unaffable",
    "Don't stop. He said so! 研究生命起源",
]


@pytest.fixture(scope="module")
def words() -> WordSegmenter:
    return WordSegmenter(WordSettings())


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "un", "##aff", "##able", "3", "5"]
    tokens += sorted({c for c in "".join(TEXTS) if not c.isspace()} - {"起", *tokens})
    tokens += [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(tokens)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def encoder(vocabulary: Path, words: WordSegmenter) -> Encoder:
    return Encoder(load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary)), words)


def marked(encoder: Encoder, text: str, bit: np.uint8) -> list[bool]:
    ((_, flags),) = encoder.encode([text])
    return ((flags & bit) != 0).tolist()


def test_every_token_of_a_chinese_word_but_the_first_continues_it(encoder: Encoder) -> None:
    text = "他来到了网易杭研大厦。"
    words = ["他", "来到", "了", "网易", "杭研", "大厦", "。"]
    expected = [place > 0 for word in words for place in range(len(word))]
    assert marked(encoder, text, CONTINUES_WORD) == expected


def test_pieces_of_an_english_word_continue_it(encoder: Encoder) -> None:
    text = "hello worlds unaffable"  # hello | world ##s | un ##aff ##able
    assert marked(encoder, text, CONTINUES_WORD) == [False, False, True, False, True, True]


def test_letters_with_accents_belong_to_the_word_around_them(encoder: Encoder) -> None:
    """jieba makes each a word."""
    expected = ["e\u0301tude", " ", "éa", " ", "Éa", "她", "é", "\n", "3", "é", " ", "Же", "－", "é", "x"]
    text = "".join(expected[:-1]) + "x"
    found = np.flatnonzero(encoder.words.joined_starts(text)).tolist()
    assert [text[a:b] for a, b in pairwise([*found, len(text)])] == [*expected[:-2], "éx"]
    assert marked(encoder, "café naïve", CONTINUES_WORD) == [False, *[True] * 3, False, *[True] * 4]


def test_sentence_and_paragraph_ends_sit_on_the_last_token_before_them(encoder: Encoder) -> None:
    text = "他来到了。天气很好！\n第二段。"
    ((ids, _),) = encoder.encode([text])
    assert len(ids) == len(text) - 1
    assert np.flatnonzero(marked(encoder, text, SENTENCE_END)).tolist() == [4, 9, 13]
    assert np.flatnonzero(marked(encoder, text, PARAGRAPH_END)).tolist() == [9, 13]


def test_joined_documents_encode_as_they_do_alone(encoder: Encoder) -> None:
    assert encoder.joins
    texts = [*TEXTS, "", *reversed(TEXTS), "\u0301", "end"]
    alone = [encoder.encode([text])[0] for text in texts]
    for (ids, flags), (joined_ids, joined_flags) in zip(alone, encoder.encode(texts), strict=True):
        assert np.array_equal(ids, joined_ids)
        assert np.array_equal(flags, joined_flags)


def test_a_document_without_tokens_gets_an_empty_row(encoder: Encoder) -> None:
    assert [len(ids) for ids, _ in encoder.encode(["", "好", ""])] == [0, 1, 0]
    assert [len(ids) for ids, _ in encoder.encode([""])] == [0]


def test_counts_tell_whether_whole_word_masking_has_anything_to_do(encoder: Encoder) -> None:
    encoder.encode(["他来到了大厦 worlds", "起"])  # 他 来到 了 大厦 world ##s, and one unknown
    assert encoder.counts == {
        "words": 6,
        "unknown_tokens": 1,
        "han_tokens": 7,
        "han_tokens_in_multi_token_words": 4,
        "han_tokens_in_multi_character_words": 4,
        "tokens_in_multi_token_words": 6,
    }
    assert encoder.word_tokens == {1: 3, 2: 3}
    assert encoder.document_tokens == {8: 1, 1: 1}
    assert encoder.unknown_characters == {"起": 1}


def test_unknown_characters_are_counted_over_all_texts(encoder: Encoder) -> None:
    encoder.encode(["起了起", "\U00020000起"])
    encoder.encode(["起"])
    assert encoder.unknown_characters == {"起": 4, "\U00020000": 1}


def test_a_paragraph_without_tokens_ends_on_the_token_before_it(encoder: Encoder) -> None:
    text = "\u0301\n好。好\n\u0301\n好"  # the accents leave no token
    assert marked(encoder, text, SENTENCE_END) == [False, True, True, True]
    assert marked(encoder, text, PARAGRAPH_END) == [False, False, True, True]


class Stub(Tokenizer):
    """A tokenizer that breaks `text` at the given characters, as SentencePiece and byte-level BPE may.

    A piece begins past the space that it holds before its word.
    """

    vocab_size, special = 8, {"unk": 1}

    def __init__(self, text: str, starts: list[int]) -> None:
        self.text, self.starts = text, starts

    def describe(self) -> dict[str, Any]:
        return {"type": "bpe"}

    def encode(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        assert text == self.text
        return np.full(len(self.starts), 7, np.uint32), np.array(self.starts, np.int64)

    def save(self, folder: Path) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "starts", "continues"),
    [
        ("the worlds", [0, 4, 7], [False, False, True]),  # the| wor|ds
        ("他 来到了", [0, 1, 2, 3, 4], [False, False, False, True, False]),  # a space of its own joins no word
        ("他\n来到了", [0, 1, 2, 3, 4], [False, False, False, True, False]),
        (
            "他来到了",
            [0, 0, 0, 1, 1, 1, 2, 3],
            [False, True, True, False, True, True, True, False],
        ),  # bytes of a character
        ("来到了", [0, 2], [False, False]),  # one token for a whole word
    ],
)
def test_pieces_of_other_tokenizers_keep_to_words(
    words: WordSegmenter, text: str, starts: list[int], continues: list[bool]
) -> None:
    assert marked(Encoder(Stub(text, starts), words), text, CONTINUES_WORD) == continues


def test_a_word_of_one_token_and_several_characters_counts_as_such(words: WordSegmenter) -> None:
    encoder = Encoder(Stub("来到了", [0, 2]), words)
    encoder.encode(["来到了"])
    assert encoder.counts["han_tokens_in_multi_character_words"] == 1
    assert encoder.counts["han_tokens_in_multi_token_words"] == 0


def test_batches_keep_order_and_lose_nothing() -> None:
    texts = [(number, "x" * (number * 37 % 9000)) for number in range(200)]
    grouped = list(batches(texts))
    assert [text for batch in grouped for text in batch] == texts
    assert 1 < len(grouped) < 50


@pytest.mark.long
@pytest.mark.slow
def test_a_whole_novel_encodes_as_one_document(words: WordSegmenter) -> None:
    vocabulary = shared("vocab/bert-base-chinese.vocab.txt")
    settings = InputSettings(paths=[str(shared("zh_novels"))])
    pieces = [piece for part in plan_parts(find_files([settings]), 1 << 26) for piece in part]
    cleaner = Cleaner(CleanSettings())
    novels = [cleaner.clean(document.text) for piece in pieces for document in read(piece, settings, print)]
    encoder = Encoder(load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary)), words)
    ((ids, flags),) = encoder.encode(["\n".join(novels * 2)])  # 14 MB of UTF-8
    assert len(ids) == len(flags) > 4_000_000
    assert encoder.counts["han_tokens_in_multi_token_words"] > 0.6 * encoder.counts["han_tokens"]
    paragraphs = sum(novel.count("\n") + 1 for novel in novels) * 2
    assert 0.99 * paragraphs < np.count_nonzero(flags & PARAGRAPH_END) <= paragraphs
