"""Tokenizers: transformers reads what is saved and gives the same ids; wrong vocabularies are refused in one line."""

import json
import logging
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from reread.preprocessing.config import TokenizerSettings, VocabularySettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens import base
from reread.preprocessing.tokens.fast_bpe import FastBpe
from reread.preprocessing.tokens.fast_wordpiece import FastWordPiece
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer
from reread.preprocessing.tokens.vocabulary import read_vocabulary, train_vocabulary
from tests.conftest import shared

TEXT = """春天来了，河边的柳树发了芽。孩子们在岸上放风筝，老人坐在石凳上下棋。
The river was rising slowly, and nobody in the village seemed to notice it. It didn't matter much: 3.14, 2,718.
夜里下了一场雨，第二天早上，路面还是湿的；卖豆腐的人推着车从桥上走过，喊声传得很远。
"Who's there?" asked the old keeper, lifting his lantern. Élan, naïve, 한국어 and ｗｉｄｅ 😀 were unknown to him.
"""
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"，。:[]'", "春", "天", "mask", "the", "don", "t", "##t", "a"]


def load(path: Path, **settings: Any) -> Tokenizer:
    return load_tokenizer(path, TokenizerSettings(path=path, **settings))


def write_vocabulary(path: Path, tokens: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(token + end for token in tokens).encode())
    return path


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "sentencepiece"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return train_vocabulary(texts(), VocabularySettings(type=request.param, size=400), True, folder)


def texts() -> Iterator[str]:
    yield from TEXT.split("\n") * 3


def from_transformers(folder: Path, text: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]


def test_transformers_loads_what_is_saved_and_gives_the_same_ids(trained: Path, tmp_path: Path) -> None:
    tokenizer = load(trained)
    tokenizer.save(tmp_path)
    ids, starts = tokenizer.encode(TEXT)
    assert ids.dtype == np.uint32 and starts.dtype == np.int64
    assert len(ids) > 100 and len(ids) == len(starts)
    assert ids.tolist() == from_transformers(tmp_path, TEXT)
    assert int(ids.max()) < tokenizer.vocab_size

    from transformers import AutoTokenizer

    saved = AutoTokenizer.from_pretrained(tmp_path)
    special = {role: getattr(saved, f"{role}_token_id") for role in ("pad", "unk", "cls", "sep", "mask")}
    assert special == tokenizer.special
    assert len(saved) == tokenizer.vocab_size
    sequence = saved("春", "天")["input_ids"]
    assert sequence[0] == special["cls"] and sequence[-1] == special["sep"]
    assert saved("[MASK]" if "[MASK]" in saved.get_vocab() else "<mask>")["input_ids"][1] == special["mask"]


def test_what_is_saved_loads_again_as_the_same_tokenizer(trained: Path, tmp_path: Path) -> None:
    tokenizer = load(trained)
    tokenizer.save(tmp_path / "a")
    again = load(tmp_path / "a")
    again.save(tmp_path / "b")
    assert again.describe() == tokenizer.describe()
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_training_twice_gives_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    kind = trained.parent.name.rstrip("0123456789")
    settings = VocabularySettings.parse({"type": kind, "size": 400}, "train")
    again = train_vocabulary(texts(), settings, True, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in trained.parent.iterdir())
    for path in trained.parent.iterdir():
        assert path.read_bytes() == (again.parent / path.name).read_bytes()


def test_a_token_begins_at_the_first_character_of_its_word(trained: Path) -> None:
    tokenizer = load(trained)
    text = "The river  was\nrising. 柳树 下棋"
    _, starts = tokenizer.encode(text)
    begins = {0, 4, 11, 15, 23, 26}
    assert begins <= set(starts.tolist())
    assert (np.diff(starts) >= 0).all()


def test_special_tokens_in_text_are_ordinary_text(trained: Path) -> None:
    tokenizer = load(trained)
    ids, _ = tokenizer.encode("a [MASK] b [CLS][SEP] <mask> </s> <s> [PAD] <pad>")
    symbols = set(tokenizer.special.values()) - {tokenizer.special["unk"]}
    assert not symbols & set(ids.tolist())


def test_long_texts_in_pieces_have_the_ids_of_the_whole(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fast in (FastBpe, FastWordPiece):
        monkeypatch.setattr(fast, "agrees", lambda self: False)
    tokenizer = load(trained)
    text = TEXT.replace("\n", " \n\n ") * 2 + "\n"
    monkeypatch.setattr(base, "PIECE_CHARACTERS", 1 << 20)
    ids, starts = tokenizer.encode(text)
    monkeypatch.setattr(base, "PIECE_CHARACTERS", 7)
    piece_ids, piece_starts = tokenizer.encode(text)
    np.testing.assert_array_equal(piece_ids, ids)
    np.testing.assert_array_equal(piece_starts, starts)
    assert len(tokenizer.encode("")[0]) == 0


def test_a_trained_wordpiece_keeps_han_characters_single_and_special_tokens_first(tmp_path: Path) -> None:
    path = train_vocabulary(texts(), VocabularySettings(size=400), True, tmp_path)
    tokens = path.read_text(encoding="utf-8").split("\n")
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    han = {character for character in TEXT if "\u4e00" <= character <= "\u9fff"}
    assert han <= set(tokens)
    assert not any(f"##{character}" in tokens for character in han)
    assert "##ing" in tokens
    with pytest.raises(UserError, match="no text"):
        train_vocabulary(iter([]), VocabularySettings(size=400), True, tmp_path)


def test_a_trained_wordpiece_fills_its_size_with_the_characters_of_chinese_text(tmp_path: Path) -> None:
    han = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    path = train_vocabulary(iter([han, "in"]), VocabularySettings(size=312), True, tmp_path)
    assert set(han) <= set(path.read_text(encoding="utf-8").split("\n"))


def test_a_trained_sentencepiece_keeps_chinese_punctuation_and_reads_line_ends_as_spaces(tmp_path: Path) -> None:
    settings = VocabularySettings(type="sentencepiece", size=400)
    tokenizer = load(train_vocabulary(texts(), settings, True, tmp_path / "trained"))
    tokenizer.save(tmp_path / "saved")
    names = Backend.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    text = "孩子们，下棋；\n春天\u3000来\r\n了\t吗。"
    ids = tokenizer.encode(text)[0].tolist()
    assert {"，", "；", "。"} <= set("".join(names.id_to_token(number) or "" for number in ids))
    assert ids == tokenizer.encode("孩子们，下棋； 春天 来 了 吗。")[0].tolist()
    assert ids == from_transformers(tmp_path / "saved", text)


def test_that_sentencepiece_has_no_cache_of_words_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = train_vocabulary(texts(), VocabularySettings(type="sentencepiece", size=400), True, tmp_path)
    with caplog.at_level(logging.INFO, "reread"):
        load(path)
    assert sum("without a cache of words" in line for line in caplog.messages) == 1


def test_a_size_too_small_for_sentencepiece_is_refused_in_one_line(tmp_path: Path) -> None:
    han = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    with pytest.raises(
        UserError, match=r"tokenizer\.train\.size: 100 is too small for SentencePiece: 306 tokens"
    ) as raised:
        train_vocabulary(iter([han]), VocabularySettings(type="sentencepiece", size=100), True, tmp_path)
    assert "\n" not in str(raised.value)


def test_wrong_vocabularies_are_refused_in_one_line(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    for tokens, message in [
        ([token for token in BERT if token != "[MASK]"], r"vocab\.txt: the mask token \[MASK\] is missing"),
        ([*BERT, "the"], r"vocab\.txt: line 20 repeats 'the' of line 15"),
        ([*BERT, "", "x"], r"vocab\.txt: line 20 is empty"),
    ]:
        with pytest.raises(UserError, match=message):
            load(write_vocabulary(vocabulary, tokens))
    vocabulary.write_bytes("[PAD]\n春\n".encode("gbk"))
    with pytest.raises(UserError, match=r"vocab\.txt: byte 6 is not UTF-8"):
        load(vocabulary)
    way_out = r"set tokenizer\.path=PATH, or train a new one: tokenizer\.path=null tokenizer\.train\.size=30000"
    with pytest.raises(UserError, match=rf"^tokenizer\.path: {tmp_path}/nowhere is not there, .*{way_out}$"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no vocab"):
        load(tmp_path / "empty")
    for name in ("broken.model", "tokenizer.json"):
        (tmp_path / name).write_text("no model at all", encoding="utf-8")
        with pytest.raises(UserError, match=name):
            load(tmp_path / name)
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"needs the file merges\.txt in the same folder"):
        load(tmp_path / "vocab.json")


@pytest.mark.slow
def test_line_ends_and_written_ids_do_not_change_a_vocabulary(tmp_path: Path) -> None:
    plain = load(write_vocabulary(tmp_path / "a.txt", BERT))
    assert load(write_vocabulary(tmp_path / "b.txt", BERT, "\r\n")).describe() == plain.describe()
    numbered = [f"{token}\t{number}" for number, token in enumerate(BERT)]
    assert load(write_vocabulary(tmp_path / "c.txt", numbered)).describe() == plain.describe()
    changed = load(write_vocabulary(tmp_path / "d.txt", [*BERT, "x"]))
    cased = load(tmp_path / "a.txt", lowercase=False)
    assert len({each.describe()["fingerprint"] for each in (plain, changed, cased)}) == 3


def test_a_cased_vocabulary_that_nothing_says_to_be_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", [*BERT, *(f"A{'b' * size}" for size in range(1001))])
    load(path, lowercase=False)
    assert not caplog.records
    load(path)
    assert "has 1001 tokens with capitals, but text is lower-cased" in caplog.text


@pytest.mark.slow
def test_a_folder_that_says_cased_is_not_read_as_lowercase(tmp_path: Path) -> None:
    load(write_vocabulary(tmp_path / "vocab.txt", BERT), lowercase=False).save(tmp_path)
    with pytest.raises(UserError, match="write `lowercase: false`"):
        load(tmp_path)
    assert load(tmp_path / "tokenizer.json").describe() == load(tmp_path, lowercase=False).describe()


def test_the_fast_wordpiece_is_dropped_when_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", BERT)
    expected = load(vocabulary).encode(TEXT)
    monkeypatch.setattr(FastWordPiece, "agrees", lambda self: False)
    with caplog.at_level(logging.INFO, "reread"):
        found = load(vocabulary).encode(TEXT)
    assert "differs" in caplog.text
    np.testing.assert_array_equal(found, expected)


def test_missing_special_tokens_of_a_bpe_are_appended_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = train_vocabulary(texts(), VocabularySettings(type="bpe", size=300), True, tmp_path)
    values = json.loads(path.read_text(encoding="utf-8"))
    kept = {token: number - 5 for token, number in values.items() if number >= 5}
    (tmp_path / "encoder.json").write_text(json.dumps(kept), encoding="utf-8")
    shutil.copy(tmp_path / "merges.txt", tmp_path / "vocab.bpe")
    with caplog.at_level(logging.INFO, "reread"):
        tokenizer = load(tmp_path / "encoder.json")
    assert "appended as ids 295 and up" in caplog.text
    assert sorted(tokenizer.special.values()) == [295, 296, 297, 298, 299]
    tokenizer.save(tmp_path / "saved")
    assert tokenizer.encode(TEXT)[0].tolist() == from_transformers(tmp_path / "saved", TEXT)


def test_pieces_whose_ids_are_not_those_of_the_file_are_refused_in_one_line(tmp_path: Path) -> None:
    """XLM-R's: fairseq puts its special tokens before the others in an order of its own."""
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model: XLM-R's and CamemBERT's ids are not .*finetune"):
        load(tmp_path)


def test_a_user_defined_symbol_of_sentencepiece_is_not_found_in_text(tmp_path: Path) -> None:
    from sentencepiece import SentencePieceTrainer

    SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_prefix=str(tmp_path / "m"),
        vocab_size=220,
        hard_vocab_limit=False,
        user_defined_symbols=["[MASK]", "<cls>"],
        minloglevel=2,
    )
    tokenizer = load(tmp_path / "m.model")
    ids, _ = tokenizer.encode("river [MASK] river <cls>")
    assert not {tokenizer.special["mask"], tokenizer.special["cls"]} & set(ids.tolist())
    assert tokenizer.vocab_size == max(tokenizer.special.values()) + 1  # <pad> is not in the model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lowercase"),
    [("bert-base-chinese", True), ("ernie-doc-base-zh", True), ("bert-base-cased_nezha-en", False)],
)
def test_transformers_gives_the_same_ids_on_real_text(name: str, lowercase: bool, tmp_path: Path) -> None:
    tokenizer = load(shared(f"vocab/{name}.vocab.txt"), lowercase=lowercase)
    tokenizer.save(tmp_path)
    for file in ("zh_novels/红楼梦.txt.xz", "en_books/pg84.txt.xz"):
        text = lzma.decompress(shared(file).read_bytes()).decode()[:50_000]
        assert tokenizer.encode(text)[0].tolist() == from_transformers(tmp_path, text)


def test_a_vocabulary_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    """bert-base-chinese has U+2028 for a token; what else ends a line for `str.splitlines` is here, too."""
    odd = ["\u2028", "##\u2028", "\u2029", "\x85", "a\x85b", "\x0b", "\x0c", "x\x1cy", "\x1d", "\x1e", "\u3000", " b "]
    path = tmp_path / "vocab.txt"
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes("".join(token + end for token in [*BERT, *odd]).encode())
        with path.open(encoding="utf-8") as file:  # transformers' load_vocab
            expected = [line.rstrip("\n") for line in file]
        assert read_vocabulary(path) == expected == [*BERT, *odd]
    loaded = load(path)
    loaded.save(tmp_path / "saved")
    assert read_vocabulary(tmp_path / "saved" / "vocab.txt") == expected
    vocabulary = Backend.from_file(str(tmp_path / "saved" / "tokenizer.json")).get_vocab()
    assert sorted(vocabulary, key=vocabulary.__getitem__) == expected
