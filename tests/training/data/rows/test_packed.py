import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, Corpus, Manifest, ShardWriter
from reread.preprocessing.errors import UserError
from reread.training.data.batch import IGNORED
from reread.training.data.kinds import open_dataset
from reread.training.data.loader import rows_by_step
from reread.training.data.rows.packed import Packed, PackedSettings
from reread.training.data.settings import MaskingSettings
from tests.corpora import SPECIAL, VOCABULARY, make_corpus, with_statistics

LENGTHS = [*np.random.default_rng(5).geometric(1 / 60, 400).tolist(), 1, 1, 3000, 62, 61]
"""Tiny documents, one longer than a block of 2000 tokens, and a row's text with and without its [SEP]."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("packed") / "corpus", LENGTHS)


def packed(corpus: Corpus, seed: int = 0, **settings: Any) -> Packed:
    values = {"sequence_length": 64, "copies": 3, **settings}
    return Packed(corpus, PackedSettings(kind="packed", corpus=corpus.folder, **values), seed)


def originals(rows: dict[str, NDArray[Any]]) -> NDArray[Any]:
    return np.where(rows["labels"] == IGNORED, rows["input_ids"], rows["labels"])


def ring(corpus: Corpus) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Ids of the concatenated documents, [SEP] after each, and whether each continues a word."""
    ids, continues = [], []
    for number in range(corpus.documents):
        document, flags = corpus.document(number)
        ids += [*document.tolist(), SPECIAL["sep"]]
        continues += [*(flags & CONTINUES_WORD != 0).tolist(), False]
    return np.array(ids), np.array(continues)


def same(a: dict[str, NDArray[Any]], b: dict[str, NDArray[Any]], rows: Any = slice(None)) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name][rows], b[name]) for name in a)


@pytest.mark.parametrize("length", [8, 64, 5000])
def test_a_pass_is_the_documents_end_to_end_cut_to_rows(corpus: Corpus, length: int) -> None:
    dataset = packed(corpus, sequence_length=length)
    ids, continues = ring(corpus)
    step = length - 2
    assert len(dataset) == -(-len(ids) // step)
    firsts = set()
    for copy in range(3):
        rows = dataset.at(np.full(len(dataset), copy), np.arange(len(dataset)))
        found = originals(rows)
        assert (found[:, 0] == SPECIAL["cls"]).all() and (found[:, -1] == SPECIAL["sep"]).all()
        (first,) = (shift for shift in range(step) if np.array_equal(found[0, 1:-1], ids[shift : shift + step]))
        places = (first + np.arange(found[:, 1:-1].size)) % len(ids)
        assert np.array_equal(found[:, 1:-1].ravel(), ids[places])
        assert np.array_equal(rows["continues_word"][:, 1:-1].ravel(), continues[places])
        assert rows["attention_mask"].all() and (rows["labels"][found < 5] == IGNORED).all()
        assert {name: values.dtype for name, values in rows.items()} == {
            **dict.fromkeys(["input_ids", "attention_mask", "labels"], np.dtype(np.int32)),
            "continues_word": np.dtype(bool),
        }
        firsts.add(first)
    assert firsts == {0, step // 3, 2 * step // 3}


def test_a_row_is_the_same_wherever_it_is_asked_for(corpus: Corpus) -> None:
    dataset = packed(corpus)
    positions = np.arange(10**9, 10**9 + 200)
    whole = dataset.rows(positions)
    assert whole.keys() == {"input_ids", "attention_mask", "labels"}
    assert same(whole, dataset.rows(positions[100:101]), slice(100, 101))
    shuffled = np.random.default_rng(0).permutation(200)
    assert same(whole, packed(Corpus(corpus.folder)).rows(positions[shuffled]), shuffled)


def test_other_world_sizes_see_the_same_rows(corpus: Corpus) -> None:
    def steps(lanes: range, start: int) -> list[dict[str, NDArray[Any]]]:
        batches = rows_by_step(packed(corpus), 12, lanes, start)
        return [next(batches) for _ in range(40)]

    whole = steps(range(12), 7)
    for world in (2, 3):
        share = 12 // world
        for rank in range(world):
            lanes = range(rank * share, (rank + 1) * share)
            parts = steps(lanes, 7)
            assert all(same(a, b, slice(lanes.start, lanes.stop)) for a, b in zip(whole, parts, strict=True))


def test_fewer_long_rows_are_drawn_at_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, asked = packed(corpus, sequence_length=5000), []
    draw = dataset.rows
    monkeypatch.setattr(dataset, "rows", lambda positions: asked.append(len(positions)) or draw(positions))
    batches = rows_by_step(dataset, 8, range(8), 0)
    for _ in range(16):
        next(batches)
    assert asked == [8, 16, 32, 64, 104]  # twice as many each time, up to the most steps below 2**19 tokens


def test_passes_come_in_another_order_and_copies_come_again(corpus: Corpus) -> None:
    dataset = packed(corpus, copies=2)
    n = len(dataset)
    passes = [dataset.rows(np.arange(p * n, (p + 1) * n))["input_ids"] for p in range(3)]
    assert not np.array_equal(passes[0], passes[2])
    first, second, third = (rows[np.lexsort(rows.T)] for rows in passes)
    assert np.array_equal(first, third) and not np.array_equal(first, second)


def test_each_copy_is_masked_anew(corpus: Corpus) -> None:
    """This also holds if two copies have the same rows: there are more copies than places to cut."""
    dataset = packed(corpus, sequence_length=16, copies=28)
    rows = [dataset.at(np.full(100, copy), np.arange(100)) for copy in (0, 1, 2)]
    assert np.array_equal(originals(rows[0]), originals(rows[1]))
    assert not np.array_equal(originals(rows[0]), originals(rows[2]))
    assert (rows[0]["labels"] != rows[1]["labels"]).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("strategy", ["whole-word", "span"])
def test_words_are_masked_whole_and_so_are_the_rests_of_cut_words(corpus: Corpus, strategy: Any) -> None:
    rows = packed(corpus, masking=MaskingSettings(strategy=strategy)).rows_with_words(np.arange(600))
    predicted, continues = rows["labels"] != IGNORED, rows["continues_word"]
    inside = continues[:, 2:]
    assert (predicted[:, 2:] == predicted[:, 1:-1])[inside].all() and inside.sum() > 5000
    rests = continues[:, 1] & continues[:, 2]  # at least two pieces of a word that began in the row before
    assert 0 < predicted[rests, 1].sum() < rests.sum()


def test_the_shares_are_those_of_the_settings(corpus: Corpus) -> None:
    rows = packed(corpus).rows(np.arange(2000))
    predicted = rows["labels"] != IGNORED
    assert abs(predicted.mean() - 0.15) < 0.01
    assert abs((rows["input_ids"] == SPECIAL["mask"])[predicted].mean() - 0.8) < 0.02


def test_a_split_shorter_than_a_row_is_one_padded_row(tmp_path: Path) -> None:
    dataset = packed(make_corpus(tmp_path / "corpus", [10, 1, 20]))
    rows = dataset.at(np.array([0]), np.array([0]))
    tokens = np.arange(5, 36)
    text = [*tokens[:10], SPECIAL["sep"], tokens[10], SPECIAL["sep"], *tokens[11:], SPECIAL["sep"]]
    padding = [SPECIAL["pad"]] * (64 - len(text) - 2)
    assert len(dataset) == 1
    assert originals(rows)[0].tolist() == [SPECIAL["cls"], *text, SPECIAL["sep"], *padding]
    assert rows["attention_mask"].sum() == len(text) + 2
    assert 0 < (rows["labels"] != IGNORED).sum() <= 6


def test_an_empty_split_has_no_rows(corpus: Corpus) -> None:
    settings = PackedSettings(kind="packed", corpus=corpus.folder)
    assert len(open_dataset(settings, 0, "validation")) == 0
    assert isinstance(open_dataset(settings, 0, "train"), Packed)


def test_a_hundred_thousand_documents_with_large_ids_are_not_held_in_memory(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train-00000.tar", "train", "uint32")
    flags = np.zeros(2, np.uint8)
    for number in range(100_000):
        writer.add(np.array([70_000 + number, 5]), flags)
    tokenizer = {"fingerprint": "many", "type": "wordpiece", "vocab_size": 170_000, **SPECIAL}
    Manifest.of(tokenizer, "uint32", [writer.close()]).write(tmp_path)
    corpus = Corpus(tmp_path)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    dataset = packed(corpus, sequence_length=3002, masking=MaskingSettings(strategy="token", probability=0.01))
    texts = originals(dataset.rows_with_words(np.arange(len(dataset))))[:, 1:-1]
    first, row = int(texts[:, 0].min()), texts[7].tolist()
    held = tracemalloc.get_traced_memory()[0] - before - texts.base.nbytes - dataset._replacements.nbytes
    tracemalloc.stop()
    assert held < 100_000 and len(dataset) == 100 and first == 70_000
    assert row == [token for number in range(row[0], row[0] + 1000) for token in (number, 5, SPECIAL["sep"])]


def test_an_altered_block_is_named_when_it_is_read(corpus: Corpus, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus.folder, tmp_path / "altered")
    path = folder / "train-00001.tar"
    with path.open("r+b") as file:
        file.seek(int(Corpus(folder).ids_at[-1]))
        file.write(b"\xff" * 8)
    dataset = packed(Corpus(folder))
    for read in (lambda: dataset.rows(np.arange(len(dataset))), dataset.verify):
        with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
            read()


def test_whole_words_without_chinese_words_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    folder = with_statistics(corpus, tmp_path / "corpus", han_tokens=50_000, han_tokens_in_multi_token_words=12)
    settings = PackedSettings(kind="packed", corpus=folder, sequence_length=64)
    with pytest.raises(UserError, match="12 of 50,000 Chinese tokens"):
        open_dataset(settings, 0, "train")
    open_dataset(settings.model_copy(update={"masking": MaskingSettings(strategy="token")}), 0, "train")


def test_fingerprint_names_what_decides_rows(corpus: Corpus, tmp_path: Path) -> None:
    moved = Corpus(shutil.copytree(corpus.folder, tmp_path / "moved"))
    assert packed(corpus).fingerprint == packed(moved).fingerprint
    others = [
        packed(corpus, seed=1),
        packed(corpus, sequence_length=32),
        packed(corpus, copies=2),
        packed(corpus, masking=MaskingSettings(probability=0.2)),
        packed(make_corpus(tmp_path / "other", LENGTHS[:-1])),
    ]
    assert len({packed(corpus).fingerprint, *(other.fingerprint for other in others)}) == 6
    assert packed(corpus).vocab_size == VOCABULARY


def test_documents_that_are_read_apart_are_numbered_from_sep_to_sep(corpus: Corpus) -> None:
    """Also where one ends with the row, which is otherwise the same; a split of less than a row has padding."""
    plain, numbers = packed(corpus), np.arange(60)
    apart = packed(corpus, separate_documents=True).rows(numbers)
    documents = apart.pop("documents")
    assert same(plain.rows(numbers), apart)
    assert (documents[:, 0] == 0).all() and documents.max() > 1
    assert np.array_equal(np.diff(documents, axis=1) == 1, originals(apart)[:, :-1] == SPECIAL["sep"])
    assert set(np.diff(documents, axis=1).ravel().tolist()) == {0, 1}
    long = packed(corpus, separate_documents=True, sequence_length=1 << 16).rows(np.arange(1))
    assert np.array_equal(long["documents"] == -1, long["attention_mask"] == 0)
