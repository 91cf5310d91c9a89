"""New words in an existing vocabulary: old ids stay, transformers reads them the same way, and a model begins with the
means of their pieces."""

import logging
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from reread.preprocessing.config import TokenizerSettings, VocabularySettings, WordSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.extension import Extension, check_extensible, extend_by_list, extend_from_text
from reread.preprocessing.tokens.merges import learned_merges
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary
from reread.training.config import TrainSettings
from reread.training.exchange.run_export import export_run
from reread.training.models.build import vocabulary_of
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from reread.training.trainer import train
from tests.conftest import train_values
from tests.raw_text import make, write_raw

CHINESE = "今天天气很好，我们在图书馆研究生命的起源。\n研究生命起源的学生，都去图书馆。" * 3
ENGLISH = "The harpooneer saw the whale; the whale saw the harpooneer, and the harpooneers rowed.\nA whale-boat! " * 3
TEXTS = {"wordpiece": CHINESE + ENGLISH, "bpe": ENGLISH, "sentencepiece": CHINESE}


@pytest.fixture(scope="module", params=list(TEXTS))
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    kind, size = request.param, {"wordpiece": 130, "bpe": 270, "sentencepiece": 100}[request.param]
    path = train_vocabulary(  # backwards, so that it has all characters and few of the words
        [TEXTS[kind][::-1]], VocabularySettings(type=kind, size=size), True, tmp_path_factory.mktemp(kind)
    )
    return loaded(path)


def loaded(path: Path) -> Tokenizer:
    return load_tokenizer(path, TokenizerSettings(path=path))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(one) for one in tokenizer.encode(text)[0]]


def extended(old: Any, folder: Path, count: int = 8) -> Extension:
    check_extensible(old)
    return extend_from_text(old, TEXTS[old.type].split("\n"), WordSegmenter(WordSettings()), count, folder)


def test_old_ids_stay_and_new_ones_are_the_pieces_that_they_stand_for(old: Any, tmp_path: Path) -> None:
    made = extended(old, tmp_path)
    new: Any = loaded(made.path)
    before, after = (one.backend.get_vocab() for one in (old, new))
    assert before.items() <= after.items() and new.vocab_size == old.vocab_size + len(made.pieces)
    assert new.special == old.special and 0 < len(made.pieces) <= 8
    text = TEXTS[old.type]
    shorter = ids(new, text)
    assert len(shorter) < len(ids(old, text)) and max(shorter) >= old.vocab_size
    # Only words that WordPiece continues by another piece may be parted elsewhere than before.
    if old.type != "wordpiece":
        pieces = [made.pieces[one - old.vocab_size] if one >= old.vocab_size else [one] for one in shorter]
        assert [one for several in pieces for one in several] == ids(old, text)


def test_transformers_and_the_saved_folder_give_the_same_ids_and_places(old: Any, tmp_path: Path) -> None:
    new: Any = loaded(extended(old, tmp_path / "made").path)
    new.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    found, starts = new.encode(TEXTS[old.type])
    given = theirs(TEXTS[old.type], add_special_tokens=False, return_offsets_mapping=True)
    assert given["input_ids"] == found.tolist()
    if old.type == "wordpiece":  # the others' tokens begin with their blank in transformers
        assert [begin for begin, _ in given["offset_mapping"]] == starts.tolist()
    again = loaded(tmp_path / "saved")
    assert again.describe() == new.describe() and ids(again, TEXTS[old.type]) == found.tolist()


def test_words_of_a_list_are_one_token_each(old: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reread")
    words = ["图书馆", "天气", "研究"] if old.type == "sentencepiece" else ["harpooneer", "rowed", "whale"]
    (tmp_path / "words.txt").write_text("\n".join([*words, words[0], ""]), encoding="utf-8")
    check_extensible(old)
    made = extend_by_list(old, tmp_path / "words.txt", tmp_path / "made")
    new = loaded(made.path)
    for word in words:
        around = f"，{word}，" if old.type == "sentencepiece" else f"a {word}!"
        tokens = ids(new, around)
        assert sum(one >= old.vocab_size for one in tokens) == 1 and len(tokens) <= 4


def test_chinese_words_are_found_from_the_left_the_longest_first(tmp_path: Path) -> None:
    """Against a search written a second time."""
    characters = sorted(set(CHINESE) - {"\n"})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]))
    words = ["研究", "研究生", "生命", "命的", "图书馆"]
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    plain = loaded(tmp_path / "vocab.txt")
    new: Any = loaded(extend_by_list(plain, tmp_path / "words.txt", tmp_path / "made").path)
    text = CHINESE.replace("研究生", "研究 生", 1)
    expected, at = [], 0
    while at < len(text):
        found = max((word for word in words if text.startswith(word, at)), key=len, default=text[at])
        if not found.isspace():
            expected.append((found, at))
        at += len(found)
    tokens, starts = new.encode(text)
    assert [(new.tokens[one], start) for one, start in zip(tokens, starts.tolist(), strict=True)] == expected


def test_further_merges_are_those_of_training_a_bpe() -> None:
    """Against a training that counts all pairs again after each merge."""
    draw = np.random.default_rng(0)
    words = Counter(tuple("abc"[one] for one in draw.integers(0, 3, draw.integers(1, 7))) for _ in range(300))
    known = {"ab", "cab"}
    expected, now = [], dict(words)
    while len(expected) < 25:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in now.items():
            for pair in pairwise(word):
                pairs[pair] += times
        allowed = [(-times, pair) for pair, times in pairs.items() if times >= 2 and "".join(pair) not in known]
        if not allowed:
            break
        times, best = min(allowed)
        expected.append((best, -times))
        merged: Counter[tuple[str, ...]] = Counter()
        for word, often in now.items():
            text = "\0".join(("", *word, ""))
            while f"\0{best[0]}\0{best[1]}\0" in text:
                text = text.replace(f"\0{best[0]}\0{best[1]}\0", f"\0{''.join(best)}\0", 1)
            merged[tuple(text.strip("\0").split("\0"))] += often
        now = dict(merged)
    assert learned_merges(words, 25, known) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("云计算 5 n\n", r"words.txt: line 1: `云计算 5 n`: several words; write one in each line"),
        ("\n\n", r"words.txt: no word in it"),
        ("图\n", r"words.txt: no word of it is new to the vocabulary"),
        ("covid-19\n", r"words.txt: no word of it is new"),
        (b"\xff\xfe", r"words.txt: byte 0 is not UTF-8"),
        (None, r"tokenizer.extend: .*words.txt: No such file or directory; give a file with a word in each line"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    write_raw(tmp_path)
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        make(tmp_path, tmp_path / "corpus", tokenizer={"path": str(tmp_path / "vocab.txt"), "extend": str(path)})


def test_vocabularies_that_cannot_be_extended_are_refused_before_any_work(tmp_path: Path) -> None:
    write_raw(tmp_path)
    (tmp_path / "words.txt").write_text("<unk>\n<eos>\n我们\n", encoding="utf-8")
    words = {"type": "words", "path": str(tmp_path / "words.txt"), "extend": 5}
    with pytest.raises(UserError, match="a vocabulary of whole words has no pieces"):
        make(tmp_path, tmp_path / "corpus", tokenizer=words)
    with pytest.raises(UserError, match="`extend` is for an existing vocabulary"):
        make(tmp_path, tmp_path / "corpus", tokenizer={"train": {"size": 100}, "extend": 5})
    for wrong in (True, 0, ["我们"]):
        with pytest.raises(UserError, match=r"extend: a file with a word in each line, or how many words"):
            make(tmp_path, tmp_path / "corpus", tokenizer={"path": str(tmp_path / "vocab.txt"), "extend": wrong})
    assert not (tmp_path / "corpus" / ".work").exists()


def test_a_model_begins_new_rows_as_the_means_of_old_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pretrained on a corpus, then continued from its weights on one with new words, exported and read again."""
    caplog.set_level(logging.INFO, "reread")
    write_raw(tmp_path)
    make(tmp_path, tmp_path / "old")
    first = TrainSettings.parse(train_values(tmp_path / "old", steps=1), "test")
    (tmp_path / "first").mkdir()
    train(first, tmp_path / "first")
    export_run(tmp_path / "first", tmp_path / "init", first, [])
    tokenizer = {"path": str(tmp_path / "init"), "extend": 6}
    manifest = make(tmp_path, tmp_path / "new", tokenizer=tokenizer)
    assert len(manifest.tokenizer["new"]) == 6
    assert Manifest.read(tmp_path / "new").statistics["tokens"] < Manifest.read(tmp_path / "old").statistics["tokens"]
    assert make(tmp_path, tmp_path / "new", tokenizer=tokenizer) == manifest  # nothing is left to do

    values = train_values(tmp_path / "new", steps=0, init=str(tmp_path / "init"))
    (tmp_path / "second").mkdir()
    second = TrainSettings.parse(values, "test")
    train(second, tmp_path / "second")
    assert "6 rows of tokens that init lacks begin as the means of their pieces' rows" in caplog.text
    model, _ = restore_model(tmp_path / "second", read_run_model(tmp_path / "second", second))
    init, _ = restore_model(tmp_path / "first", read_run_model(tmp_path / "first", first))
    size = manifest.tokenizer["vocab_size"] - 6
    for of in (
        lambda one: one.get_input_embeddings().weight,
        lambda one: one.get_output_embeddings().bias,
    ):
        table, before = of(model), of(init)
        assert torch.equal(table[:size], before[:size])
        for row, pieces in enumerate(manifest.tokenizer["new"], size):
            expected = np.mean([before[one].detach().double().numpy() for one in pieces], axis=0)
            np.testing.assert_allclose(table[row].detach().numpy(), expected, rtol=1e-6, atol=1e-7)
    # A start that has the rows already keeps them, and its tokenizer knows the words.
    export_run(tmp_path / "second", tmp_path / "again", second, [])
    assert len(vocabulary_of(tmp_path / "again")) == size + 6
    caplog.clear()
    (tmp_path / "third").mkdir()
    train(TrainSettings.parse(values | {"init": str(tmp_path / "again")}, "test"), tmp_path / "third")
    assert "rows of tokens" not in caplog.text
    # Other new words at the same ids are another vocabulary.
    (tmp_path / "words.txt").write_text("火车\n银行\n", encoding="utf-8")
    make(tmp_path, tmp_path / "other", tokenizer={**tokenizer, "extend": str(tmp_path / "words.txt")})
    (tmp_path / "fourth").mkdir()
    other = train_values(tmp_path / "other", steps=1, init=str(tmp_path / "again"))
    with pytest.raises(UserError, match=r"the vocabulary in .* differs from the corpus'"):
        train(TrainSettings.parse(other, "test"), tmp_path / "fourth")
