"""The table-driven WordPiece gives the ids and offsets of `tokenizers`."""

import lzma
import random
import tracemalloc

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from reread.preprocessing.tokens import fast_wordpiece, piece_cache
from reread.preprocessing.tokens.fast_wordpiece import FastWordPiece, encode_by_tokenizers
from tests.conftest import shared

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"!,.;-=[]`·。，…《》中文一回a",
    "##a",
    "##b",
    "ab",
    "e",
    "x",
]
VOCABULARY += [
    "##x",
    "don",
    "t",
    "'",
    "mask",
    "é",
    "Ab",
    "##é",
    "가",
    "##가",
    "\u1100",
    "##\u1161",
    "12",
    "##3",
    "＝",
    "ａ",
]

NASTY = """a\u200bb \ufeffab\ufeff \x00a\x07b\ufffd\u00ad;中\u0301文\u0301e\u0301\u0316x \u0301 a\u0301b
!\u0301a ≠\u0301a \u2260 \u226e 한국어 가\u1100\u1161 \u302a中\u302e\u302f \U0001d165\u0301 İstanbul ẞ ǅ ﬁ Å
\u037e\u1fef\u0387 [MASK] [UNK]don't ##a a##b 㐀㐁豈\uf900\U0002f800𠀀\U0003ffff 😀 \U000e0041 ＡｂＣ＝ａ ①㈱
\u2028\u2029\x85\x1c\x1f\xa0\u3000\u180e\u2000a हिन्दी ไทย \ue000中\ue000"""


def backend(vocabulary: dict[str, int], lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["lowercase", "cased"])
def fast(request: pytest.FixtureRequest) -> FastWordPiece:
    return FastWordPiece(backend({token: number for number, token in enumerate(VOCABULARY)}, request.param))


def assert_same(fast: FastWordPiece, text: str) -> None:
    ids, starts = fast.encode(text)
    expected_ids, expected_starts = encode_by_tokenizers(fast._backend, text)
    np.testing.assert_array_equal(ids, expected_ids, err_msg=repr(text))
    np.testing.assert_array_equal(starts, expected_starts, err_msg=repr(text))


def test_the_kind_of_each_character_is_what_tokenizers_makes_of_it_between_letters(fast: FastWordPiece) -> None:
    """Three words of one token are a character that stands alone, two a space; one in eleven characters is tried."""
    for code in (code for code in range(0, 1 << 16, 11) if not 0xD800 <= code < 0xE000):
        encoding = fast._backend.encode(f"x{chr(code)}x", add_special_tokens=False)
        words = [encoding.word_ids.count(number) for number in range(4)]
        starts = [begin for begin, _ in encoding.offsets]
        expected = -1
        if words == [1, 1, 1, 0] and starts == [0, 1, 2]:
            expected = encoding.ids[1]
        elif words == [1, 1, 0, 0] and starts == [0, 2]:
            expected = -2
        assert fast._kinds[code] == expected, f"U+{code:04X}"


def test_difficult_strings_are_encoded_as_tokenizers_does(fast: FastWordPiece) -> None:
    assert fast.agrees()
    for text in [
        "",
        " ",
        "\u200b",
        "\u200b \u0301",
        "a",
        "中",
        "\n",
        *NASTY,
        *NASTY.split(),
        NASTY,
        "ab" * 49,
        "a" * 100,
    ]:
        assert_same(fast, text)
    for text in ["a" * 101, "中" + "b" * 300 + "文", "a\u0301" * 100, "a\u0301" * 101, "\u200b" * 200 + "ab"]:
        assert_same(fast, text)


@pytest.mark.long
@pytest.mark.slow
def test_every_pair_with_a_character_of_the_plane_is_encoded_as_tokenizers_does(fast: FastWordPiece) -> None:
    codes = [code for code in range(1, 0x20000, 3) if not 0xD800 <= code < 0xE000]
    for pattern in ("{0}中{0}a{0},\u0301{0}{0} ", "\u0301{0}\u302e{0}가{0}\u200b"):
        for block in range(0, len(codes), 4096):
            assert_same(fast, "".join(pattern.format(chr(code)) for code in codes[block : block + 4096]))


@pytest.mark.slow
def test_random_strings_are_encoded_as_tokenizers_does(fast: FastWordPiece, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_wordpiece, "PIECE_CHARACTERS", 16)
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 500)
    random_ = random.Random(0)
    plain = "ab中文一回，。 \n12e"
    for _ in range(700):
        pools = random_.choice([(plain,), (NASTY,), (plain, NASTY), (plain, NASTY, None)])
        characters = []
        for _ in range(random_.randrange(60)):
            pool = random_.choice(pools)
            code = random_.choice([random_.randrange(0xD800), random_.randrange(0xE000, 0x110000)])
            characters.append(random_.choice(pool) if pool else chr(code))
        assert_same(fast, "".join(characters))


def test_the_cache_is_bounded_and_forgetting_changes_nothing(
    fast: FastWordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 50)
    monkeypatch.setattr(fast_wordpiece, "PIECE_CHARACTERS", 100)
    text = " ".join(f"ab{number}x" for number in range(2_000))
    assert_same(fast, text)
    assert len(fast._cache) < 150


def test_a_table_that_is_wrong_is_noticed(fast: FastWordPiece) -> None:
    broken = FastWordPiece(fast._backend)
    broken._kinds[ord("中")] += 1
    assert not broken.agrees()


def test_many_texts_take_ten_bytes_a_token(fast: FastWordPiece, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a piece and, twice, the ids of all; where tokens begin took sixteen more. Pieces end within texts."""
    texts = ["中文" * 100_000, "一回，" * 50_000]
    tracemalloc.start()
    found = fast.encode_each(texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(ids) for ids in found] == [len(text) for text in texts]
    assert peak < 10 * sum(map(len, texts)) + (2 << 20)  # a text of all characters, two bytes each, and a piece
    monkeypatch.setattr(fast_wordpiece, "PIECE_CHARACTERS", 3)
    short = ["ab ab中文", "", "don't一", "中", " ", "文ab"]
    for text, ids in zip(short, fast.encode_each(short), strict=True):
        np.testing.assert_array_equal(ids, encode_by_tokenizers(fast._backend, text)[0], err_msg=repr(text))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lowercase"),
    [("bert-base-chinese", True), ("bert-uncased", True), ("bert-base-cased_nezha-en", False)],
)
def test_real_text_is_encoded_as_tokenizers_does(name: str, lowercase: bool) -> None:
    tokens = shared(f"vocab/{name}.vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    fast = FastWordPiece(backend({token: number for number, token in enumerate(tokens)}, lowercase))
    assert fast.agrees()
    for file in ("zh_novels/红楼梦.txt.xz", "zh_wiki_bertformat/cn_wiki_sample.txt.xz", "en_books/pg84.txt.xz"):
        assert_same(fast, lzma.decompress(shared(file).read_bytes()).decode()[:200_000])


def test_the_encoder_of_a_tokenizer_and_of_many_texts(fast: FastWordPiece) -> None:
    """Its added tokens stay out. A tokenizer with another pipeline has no such encoder."""
    tokenizer = Tokenizer.from_str(fast._backend.to_str())
    tokenizer.add_special_tokens(["[MASK]"])
    of = FastWordPiece.of(tokenizer)
    assert of is not None
    texts = ["a\nab", "", *NASTY.split("\n"), "[MASK]"]
    for text, ids in zip(texts, of.encode_each(texts), strict=True):
        np.testing.assert_array_equal(ids, encode_by_tokenizers(fast._backend, text)[0], err_msg=repr(text))
    tokenizer.add_tokens(["ab"])  # which are found in normalised text
    assert FastWordPiece.of(tokenizer) is None
    without = backend({"a": 0, "b": 1}, lowercase=True)
    assert FastWordPiece.of(without) is None
    without.pre_tokenizer = pre_tokenizers.Whitespace()
    assert FastWordPiece.of(without) is None
