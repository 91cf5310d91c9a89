"""The benchmark of a published encoder: its sides run, and learn from the same texts."""

import io
import lzma
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import add_result, overrides
from benchmarks.minilm import books, classified
from benchmarks.minilm import data as data_folder
from benchmarks.minilm.job import TOY, Job
from benchmarks.minilm.run import SIDES, Side
from benchmarks.minilm.table import table

pytestmark = pytest.mark.long

WORDS = ["the", "old", "ship", "sails", "north", "to", "find", "whales", "and", "comes", "home", "with", "oil"]


def text(words: int, seed: object) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=words)) + "."


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DATA of a tiny BERT and made texts."""
    from transformers import BertTokenizerFast
    from transformers.models.bert import BertConfig, BertModel

    monkeypatch.setattr(data_folder, "HELD_OUT_REVIEWS", 8)
    encoder, raw = tmp_path / "bert", tmp_path / "raw"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *dict.fromkeys(WORDS), "##s"]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)).save_pretrained(encoder)
    (encoder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(vocab=str(encoder / "vocab.txt")).save_pretrained(encoder)
    (encoder / "special_tokens_map.json").write_text("{}")
    for name in ("en_hyperpartisan", "en_imdb", "en_books"):
        (raw / name).mkdir(parents=True)
    articles = "".join(f'<article id="{one}" title="t"><p>{text(100, one)}</p></article>\n' for one in range(16))
    truth = "".join(f'<article id="{one}" hyperpartisan="{("false", "true")[one % 2]}"/>\n' for one in range(16))
    for name, lines in ((data_folder.ARTICLES, articles), (data_folder.TRUTH, truth)):
        (raw / "en_hyperpartisan" / name).write_bytes(lzma.compress(f"<articles>\n{lines}</articles>\n".encode()))
    with tarfile.open(raw / "en_imdb" / "train-5000.tar.xz", "w:xz") as archive:
        for one in range(24):
            member = tarfile.TarInfo(f"aclImdb/train/{('neg', 'pos')[one % 2]}/{one}.txt")
            content = text(40, one).encode()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (raw / "en_books" / "one.txt").write_text("\n".join(text(20, line) for line in range(2000)))
    data_folder.prepare(tmp_path / "data", raw, encoder)
    return tmp_path / "data"


def job(data: Path, work: Path) -> Job:
    data_folder.unpack(data, work)
    sizes = TOY._replace(folds=3, long=128, window=16)
    return Job(data, work, sizes, "", range(1))


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
def test_a_side_ends_with_figures(side: Side, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    found = list(side.run(job(data, tmp_path / "work")))
    for _, repeat, figures in found:
        assert repeat == 0 and 0 <= figures["accuracy"] <= 100
    for what, one, figures in found:
        add_result(tmp_path / "results", {"part": "p", "side": what, "repeat": one, **figures, "seconds": 1})
    table(tmp_path / "results")


def test_both_sides_have_the_same_folds_and_rows(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.trainer_steps import TrainerSteps
    from reread.pipeline.recipe.load import load_recipe
    from reread.pipeline.recipe.schema import task_section, train_section
    from reread.pipeline.recipe.task import finetune_recipe

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    of = job(data, tmp_path / "work")
    # Folds
    for fold in range(3):
        values = overrides(classified.fold_settings(of, fold))
        task = task_section(finetune_recipe("long-hyperpartisan", [*values, f"init={of.encoder}"]))
        theirs = classified.fold_files(of, fold)
        for ours, other in zip((task.train, task.test), theirs, strict=True):
            assert ours is not None and ours.read_bytes() == other.read_bytes()
    # Rows of the first steps
    steps = TrainerSteps(train_section(load_recipe("continue-encoder", books.book_overrides(of), "train")), tmp_path)
    rows, count = books.book_rows(of, "train"), of.sizes.book_rows
    for step in range(3):
        drawn = next(steps.batches)
        for name, values in rows.rows(np.arange(step * count, (step + 1) * count)).items():
            np.testing.assert_array_equal(drawn[name], values)
    steps.batches.close()
