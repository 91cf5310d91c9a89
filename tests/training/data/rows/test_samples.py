import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from reread.preprocessing.corpus import CONTINUES_WORD, Corpus, Manifest
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import open_dataset
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.settings import MaskingSettings
from tests.corpora import SPECIAL, VOCABULARY, make_corpus, with_statistics

LENGTHS = np.random.default_rng(2).integers(1, 700, 300).tolist()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("samples") / "corpus", LENGTHS)


def samples_of(corpus: Corpus, seed: int = 0, **settings: Any) -> Samples:
    return Samples(corpus, RowSettings(corpus=corpus.folder, **settings), seed)


def same(a: dict[str, NDArray[Any]], b: dict[str, NDArray[Any]], rows: Any = slice(None)) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name][rows], b[name]) for name in a)


@pytest.mark.parametrize("next_sentence", [True, False])
@pytest.mark.parametrize("length", [8, 64, 128])
def test_rows_have_berts_form(corpus: Corpus, next_sentence: bool, length: int) -> None:
    samples = samples_of(corpus, sequence_length=length, next_sentence=next_sentence)
    rows = samples.rows(np.arange(400))
    original = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"])
    assert ("next_sentence_label" in rows) == ("token_type_ids" in rows) == next_sentence
    token_types = rows.get("token_type_ids", rows["attention_mask"] * 0)
    for ids, types, attention, labels in zip(
        original, token_types, rows["attention_mask"], rows["labels"], strict=True
    ):
        used = int(attention.sum())
        assert attention[:used].all() and (ids[used:] == SPECIAL["pad"]).all()
        assert ids[0] == SPECIAL["cls"] and ids[used - 1] == SPECIAL["sep"]
        separators = np.flatnonzero(ids == SPECIAL["sep"])
        paired = next_sentence and bool(types.any())
        assert len(separators) == 1 + paired
        first = separators[0] + 1
        assert not types[:first].any() and (types[first:used] == paired).all() and not types[used:].any()
        assert (labels[[0, *separators]] == -100).all() and (labels[used:] == -100).all()
        assert (labels != -100).sum() >= 1
        # Ids count the tokens of the corpus, so each side is a stretch of it.
        for side in (ids[1 : separators[0]], ids[first : used - 1] if paired else ids[:0]):
            assert (np.diff(side) % (VOCABULARY - 5) == 1).all()


@pytest.mark.parametrize("length", [8, 64])
def test_rows_without_special_tokens_are_text_alone(corpus: Corpus, length: int) -> None:
    samples = samples_of(corpus, sequence_length=length, next_sentence=False, special_tokens=False)
    rows = samples.rows(np.arange(400))
    assert rows.keys() == {"input_ids", "attention_mask", "labels"}
    original = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"])
    used = rows["attention_mask"].sum(axis=1)
    assert used.max() > length - 2  # [CLS] and [SEP] leave more room
    for ids, attention, labels, tokens in zip(original, rows["attention_mask"], rows["labels"], used, strict=True):
        assert attention[:tokens].all() and (ids[tokens:] == SPECIAL["pad"]).all()
        assert (ids[:tokens] >= 5).all() and (np.diff(ids[:tokens]) % (VOCABULARY - 5) == 1).all()
        assert (labels[tokens:] == -100).all() and (labels != -100).any()
    assert (rows["labels"][:, 0] != -100).any()


def test_pairs_without_special_tokens_are_refused() -> None:
    with pytest.raises(UserError, match=r"data: special_tokens: .*false needs next_sentence: false"):
        RowSettings.parse({"corpus": "x", "special_tokens": False}, "data")


def test_a_sample_is_the_same_wherever_it_is_asked_for(corpus: Corpus) -> None:
    samples = samples_of(corpus)
    positions = np.arange(10**9, 10**9 + 256)
    whole = samples.rows(positions)
    assert same(whole, samples.rows(positions[100:101]), slice(100, 101))
    shuffled = np.random.default_rng(0).permutation(256)
    assert same(whole, samples_of(corpus).rows(positions[shuffled]), shuffled)


def test_same_samples_on_other_world_size(corpus: Corpus) -> None:
    samples = samples_of(corpus)
    for step in (0, 5, 10**12):
        whole = samples.rows(step * 48 + np.arange(48))
        for world in (2, 3):
            parts = [samples.rows(step * 48 + np.arange(48)[rank::world]) for rank in range(world)]
            for rank, part in enumerate(parts):
                assert same(whole, part, slice(rank, None, world))


@pytest.mark.parametrize("special_tokens", [True, False])
@pytest.mark.parametrize("length", [16, 128])
def test_a_pass_has_every_token_and_long_documents_fill_their_rows(
    tmp_path: Path, special_tokens: bool, length: int
) -> None:
    lengths = [1, 15, 16, 17, 300, 126, 127, 128, 129, 40]  # fewer tokens than ids, so each token has a unique id
    corpus = make_corpus(tmp_path / "corpus", lengths)
    samples = samples_of(
        corpus,
        sequence_length=length,
        next_sentence=False,
        special_tokens=special_tokens,
        short_sequence_probability=0,
    )
    rows = samples.rows(np.arange(len(samples)))
    original = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"])
    text = (rows["attention_mask"] == 1) & (original >= 5)
    reads = np.bincount(original[text] - 5, minlength=corpus.tokens)
    assert reads.min() == 1 and reads.max() <= 3
    room = length - 2 * special_tokens
    sizes = text.sum(axis=1)
    long = np.repeat(lengths, [max(1, 1 + -(-(n - room) // (room - max(1, room // 8)))) for n in lengths]) >= room
    in_order = samples.at(np.zeros(len(samples), np.int64), np.arange(len(samples)))["attention_mask"].sum(axis=1)
    assert sorted(in_order) == sorted(sizes + 2 * special_tokens)
    assert in_order[long].mean() > 0.98 * length  # the last row of a document begins with a word


def test_each_copy_has_masks_and_pairs_of_its_own(corpus: Corpus) -> None:
    samples = samples_of(corpus, copies=3)
    indices = np.arange(100)
    copies = [samples.at(np.full(100, copy), indices) for copy in range(3)]
    for other in copies[1:]:
        assert ((copies[0]["labels"] != other["labels"]).any(axis=1)).mean() > 0.99
        assert (copies[0]["next_sentence_label"] != other["next_sentence_label"]).any()


def test_the_copies_come_again_in_another_order(corpus: Corpus) -> None:
    samples = samples_of(corpus, copies=2)
    n = len(samples)
    passes = [samples.rows(np.arange(p * n, (p + 1) * n))["input_ids"] for p in range(3)]
    assert not np.array_equal(passes[0], passes[2])
    sorted_rows = [rows[np.lexsort(rows.T)] for rows in passes]
    assert np.array_equal(sorted_rows[0], sorted_rows[2])
    assert not np.array_equal(sorted_rows[0], sorted_rows[1])


def test_words_are_whole_in_samples(corpus: Corpus) -> None:
    rows = samples_of(corpus).at(np.zeros(300, np.int64), np.arange(300))
    predicted = rows["labels"] != -100
    inside = rows["continues_word"][:, 1:] & (rows["input_ids"][:, :-1] != SPECIAL["cls"])
    text = rows["attention_mask"][:, 1:] == 1
    # A word cut by [SEP] counts from its first token after it.
    previous = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"])[:, :-1]
    inside &= text & (previous != SPECIAL["sep"])
    assert (predicted[:, 1:] == predicted[:, :-1])[inside].all()
    assert inside.sum() > 5000


def test_fingerprint_names_what_decides_samples(corpus: Corpus, tmp_path: Path) -> None:
    base = samples_of(corpus)
    assert base.fingerprint == samples_of(Corpus(corpus.folder)).fingerprint
    moved = shutil.copytree(corpus.folder, tmp_path / "moved")
    assert base.fingerprint == samples_of(Corpus(moved)).fingerprint
    others = [
        samples_of(corpus, seed=1),
        samples_of(corpus, copies=3),
        samples_of(corpus, masking=MaskingSettings(strategy="span")),
        samples_of(make_corpus(tmp_path / "other", LENGTHS[:-1])),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_an_empty_split_has_no_samples(corpus: Corpus) -> None:
    assert len(open_dataset(RowSettings(corpus=corpus.folder), 0, "validation")) == 0


def test_an_altered_block_is_named_when_it_is_read(corpus: Corpus, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus.folder, tmp_path / "altered")
    path = folder / "train-00001.tar"
    with path.open("r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"\xff" * 64)
    samples = samples_of(Corpus(folder))
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        samples.rows(np.arange(len(samples)))


@pytest.mark.parametrize("strategy", ["whole-word", "span"])
def test_whole_words_without_chinese_words_are_refused(corpus: Corpus, tmp_path: Path, strategy: Any) -> None:
    without = with_statistics(corpus, tmp_path / "a", han_tokens=50_000, han_tokens_in_multi_token_words=12)
    settings = RowSettings(corpus=without, masking=MaskingSettings(strategy=strategy))
    with pytest.raises(UserError, match="12 of 50,000 Chinese tokens"):
        open_dataset(settings, 0, "train")
    open_dataset(settings.model_copy(update={"masking": MaskingSettings(strategy="token")}), 0, "train")
    good = with_statistics(corpus, tmp_path / "b", han_tokens=50_000, han_tokens_in_multi_token_words=30_000)
    open_dataset(settings.model_copy(update={"corpus": good}), 0, "train")


def test_chinese_words_are_looked_for_where_they_were_not_counted(corpus: Corpus, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus.folder, tmp_path / "corpus")
    (folder / "tokenizer").mkdir()
    vocabulary = {"[UNK]": 1, **{chr(0x4E00 + number): number for number in range(VOCABULARY) if number != 1}}
    Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")).save(str(folder / "tokenizer" / "tokenizer.json"))
    corpus.manifest.write(folder)
    open_dataset(RowSettings(corpus=folder), 0, "train")
    without = make_corpus(tmp_path / "without", LENGTHS, words=False)
    shutil.copytree(folder / "tokenizer", without.folder / "tokenizer")
    without.manifest.write(without.folder)
    assert not (without.document(0)[1] & CONTINUES_WORD).any() and not Manifest.read(without.folder).statistics
    with pytest.raises(UserError, match=r"only 0 of .* Chinese tokens"):
        open_dataset(RowSettings(corpus=without.folder), 0, "train")


@pytest.mark.slow
def test_samples_need_no_torch() -> None:
    modules = ("training.data.loader", "training.data.materialize", "pipeline.display.rows")
    program = "".join(f"import reread.{name}\n" for name in modules) + "import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
