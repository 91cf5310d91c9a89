"""The texts of a step, what is read once, and what held-out examples are scored by."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import examples_in
from reread.training.data.tasks.embed import EmbedDataset, EmbedSettings
from tests.conftest import extra
from tests.preprocessing.labelled.test_embed import beir
from tests.tasks import write_lines, write_tokenizer

LINES = [
    {"text": "a", "positives": ["b", "c"], "negatives": ["x", "y", "z"]},
    {"text": "d", "positive": "b", "negatives": ["x"]},
    {"text": "e"},
]


def opened(tokenizer: Path, split: str = "validation", **files: Any) -> EmbedDataset:
    values = {"kind": "embed", "train": "none", "tokenizer": str(tokenizer), **files}
    return EmbedDataset.open(EmbedSettings.parse(values, "test"), 0, split)


def test_epochs_show_the_next_positive_and_negatives(tmp_path: Path) -> None:
    settings: Any = {"kind": "embed", "train": "x", "tokenizer": str(write_tokenizer(tmp_path)), "negatives": 2}
    data = EmbedDataset(EmbedSettings.parse(settings, "test"), 0, examples_in(LINES, "embed"))  # type: ignore[arg-type]
    texts = [text for one in data.examples for (text,) in one.rows]
    for epoch, expected in ((0, "adebbexyx"), (1, "adecbezxx"), (2, "adebbeyzx")):
        drawn = data._drawn(np.full(3, epoch), np.arange(3))
        assert "".join(texts[one] for one in drawn) == expected
    passes = [list(data.step_passes(1, 4, 2, ranks, rank)) for ranks in (1, 2) for rank in range(ranks)]
    whole, *shares = [{number: rows["input_ids"].tolist() for number, rows in one} for one in passes]
    assert whole == {**shares[0], **shares[1]} and not shares[0].keys() & shares[1].keys()
    seen = np.concatenate([rows["example"] for _, rows in passes[0]])
    assert sorted(seen) == list(range(len(seen))) and passes[0][0][1]["count"] == [4]
    assert data.row_tokens.tolist() == [3 * 4, 3 * 3, 3 * 2]  # a word and two special tokens a text
    assert data.first_with.tolist() == [0, 1, 2, 3, 4, 5, 6, 1, 3, 9]


def test_held_out_examples_say_what_they_are_scored_by(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path)
    scored = [{"text": "a", "positive": "b", "score": 5}, {"text": "c", "positive": "d", "score": 1}]
    lines = {
        "sts": scored,
        "pairs": LINES,
        "alone": [{"text": "a"}],
        "mixed": [*scored, {"text": "a", "positive": "b"}],
    }
    files = {name: str(write_lines(tmp_path / f"{name}.jsonl", one)) for name, one in lines.items()}
    for name, measure in (("sts", "similarity"), ("pairs", "retrieval")):
        settings = EmbedSettings.parse({"kind": "embed", "train": files["pairs"], "dev": files[name]}, "test")
        assert settings.found_in([]) == {"measure": measure}
    with pytest.raises(UserError, match=r"task.dev: .*alone.jsonl: texts alone, by which no vector can be scored"):
        EmbedSettings.parse({"kind": "embed", "train": "none", "dev": files["alone"]}, "test").found_in([])
    with pytest.raises(UserError, match=r"mixed.jsonl:3: a pair without a score, where others have one"):
        opened(tokenizer, dev=files["mixed"]).scores({})
    vectors = {0: np.array([[1, 0], [1, 0.1]], np.float32), 1: np.array([[1, 0], [0, 1]], np.float32)}
    assert opened(tokenizer, dev=files["sts"]).scores(vectors) == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    assert opened(tokenizer, dev=files["alone"]).scores({0: np.ones((1, 2), np.float32)}) == {}
    # Training pairs with scores need a limit.
    with pytest.raises(UserError, match=r"sts.jsonl:1: a pair with a score, 5; say from which score on"):
        opened(tokenizer, "train", train=files["sts"])
    assert len(opened(tokenizer, "train", train=files["sts"], least_score=4)) == 1
    with pytest.raises(UserError, match=r"no pair has a score of 9 or more; lower task.least_score"):
        opened(tokenizer, "train", train=files["sts"], least_score=9)


def test_a_corpus_is_searched_and_each_of_its_documents_counts_once(tmp_path: Path) -> None:
    data = opened(write_tokenizer(tmp_path), dev=str(beir(tmp_path / "beir")))
    assert len(data.library.queries) == 2 and len(data.library.documents) == 3
    ways = {"query 1": (1, 0), "query 2": (0, 1), "A text a": (1, 0.1), "B text b": (0.2, 1), "C text c": (1, 0)}
    vectors = {
        number: np.array([ways[text] for (text,) in one.rows], np.float32) for number, one in enumerate(data.examples)
    }
    # Query 1 finds c, a, b and wants a, of grade 2; query 2 finds b and wants it.
    expected = {"ndcg@10": 50 * (1 + 1 / np.log2(3)), "mrr@10": 75.0, "recall@10": 100.0, "recall@100": 100.0}
    assert data.scores(vectors) == pytest.approx(expected)
    assert data.written(1, vectors[1]) == {"similarities": [0.995037, 0.196116]}
    wrong = data.mistake(1, np.array([[1, 0], [0, 1], [1, 1]], np.float32))
    assert wrong is not None and wrong.predicted == "B text b (0.71)" and data.mistake(1, vectors[1]) is None


def test_a_baseline_without_its_package_is_a_line_and_the_other_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extra("baselines", "sklearn")
    monkeypatch.setitem(sys.modules, "bm25s", None)
    data = opened(write_tokenizer(tmp_path), dev=str(beir(tmp_path / "beir")))
    with caplog.at_level("INFO", "reread"):
        assert [name for name, _ in data.baselines([])] == ["bag of words"]
    assert "the BM25 baseline needs bm25s" in caplog.text and "pip install 'reread[baselines]'" in caplog.text


def test_baselines_are_scored_as_a_model_is(tmp_path: Path) -> None:
    extra("baselines", "sklearn")
    extra("baselines", "bm25s")
    data = opened(write_tokenizer(tmp_path), dev=str(beir(tmp_path / "beir")))
    found = {name: data.scores(one) for name, one in data.baselines([])}
    assert set(found) == {"bag of words", "BM25"} and found["BM25"].keys() == found["bag of words"].keys()
    lines = [{"text": "a b", "positive": "a b", "score": 5}, {"text": "a", "positive": "c", "score": 0}]
    pairs = opened(write_tokenizer(tmp_path), dev=str(write_lines(tmp_path / "sts.jsonl", lines)))
    assert {name: pairs.scores(one)["spearman"] for name, one in pairs.baselines([])} == {"bag of words": 1.0}
