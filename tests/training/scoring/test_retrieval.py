"""Search by vectors, and its scores against trec_eval's and numbers computed by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.training.scoring.bags import Bag, bm25, words
from reread.training.scoring.retrieval import Library, best, nearest
from reread.training.scoring.task_scores import scores
from tests.conftest import extra

GOLDEN = Path(__file__).parents[2] / "golden" / "retrieval.json"


def test_scores_are_those_of_trec_eval() -> None:
    """Six queries, of which one has no relevant document, over 150 documents, of which 100 are found."""
    golden = json.loads(GOLDEN.read_text())
    library, numbers = Library(), {f"d{number}": number for number in range(150)}
    for name in numbers:
        library.add(name, None)
    found, values = [], []
    for query, grades in golden["qrels"].items():
        library.ask(query, None, grades)
        run = golden["run"][query]
        found.append([numbers[name] for name in run])
        values.append([*run.values()])
    gold, predicted = library.ranked((np.array(found), np.array(values, float)))
    assert scores("embed-retrieval", gold, predicted) == pytest.approx(golden["scores"], rel=1e-5)


def test_the_nearest_documents_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    queries, documents = generator.normal(size=(3, 8)), generator.normal(size=(50, 8))
    documents[7] = documents[3] * 2  # as near as that, so the first of the two comes first
    cosines = np.array([[q @ d / np.linalg.norm(q) / np.linalg.norm(d) for d in documents] for q in queries])
    monkeypatch.setattr("reread.training.scoring.retrieval._AT_ONCE", 30)
    found, values = nearest(queries, documents, 12)
    for row, numbers, near in zip(cosines, found, values, strict=True):
        assert set(numbers) >= {one for one in range(50) if row[one] > np.sort(row)[-12] + 1e-9}
        np.testing.assert_allclose(near, np.sort(row)[::-1][:12], atol=1e-12)
    every, _ = nearest(queries, documents, 100)
    assert every.shape == (3, 50)
    for row in every.tolist():
        assert abs(row.index(3) - row.index(7)) == 1
    assert best(np.array([[4, 2, 9]]), np.array([[1.0, 1.0, 2.0]]), 2)[0].tolist() == [[9, 2]]


def test_a_query_asked_twice_wants_the_documents_of_both() -> None:
    library = Library()
    for name in "xyz":
        library.add(name, name)
    library.add("x", "again")
    library.ask("q", 0, {"x": 1.0})
    library.ask("q", 1, {"y": 2.0, "x": 0.0})
    gold, predicted = library.ranked((np.array([[2, 0]]), np.array([[0.9, 0.5]])))
    assert library.documents == ["x", "y", "z"]
    assert (gold, predicted) == ({"0": [0.0, 1.0, 2.0]}, {"0": [0.9, 0.5, -np.inf]})


def test_words_are_jiebas_where_a_text_is_chinese() -> None:
    assert words("The Ferry, 2 boats") == ["the", "ferry", "2", "boats"]
    assert words("我们在南京市长江大桥，看BERT。") == ["我们", "在", "南京市", "长江大桥", "看", "bert"]


def test_bags_find_the_texts_that_share_rare_words() -> None:
    extra("baselines", "sklearn")
    texts = ["the ferry crosses the river", "the clock in the tower", "the cake of plums", "渡船过河"]
    bag: Any = Bag(texts)
    found, values = bag.search(["a ferry on a river", "渡船"])
    assert found[:, 0].tolist() == [0, 3] and values[0, 0] > values[0, 1] and found.shape == (2, 4)
    assert bag.likeness(["the ferry", "cake"], ["the ferry", "clock"]).tolist() == pytest.approx([1.0, 0.0])


def test_bm25_is_lucenes(tmp_path: Path) -> None:
    extra("baselines", "bm25s")
    texts = ["the ferry crosses the river", "the clock", "ferry ferry cake"]
    found, values = bm25(texts, ["ferry cake", "none"])
    counts, mean = [[one.split().count(word) for word in ("ferry", "cake")] for one in texts], 10 / 3
    expected = []
    for one, (ferry, cake) in zip(texts, counts, strict=True):
        norm = 1.5 * (0.25 + 0.75 * len(one.split()) / mean)
        idf = [np.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (2, 1)]
        expected.append(sum(weight * f / (f + norm) for weight, f in zip(idf, (ferry, cake), strict=True)))
    assert found[0].tolist() == [2, 0, 1]
    np.testing.assert_allclose(values[0], np.array(expected)[[2, 0, 1]], rtol=1e-5)
    assert not values[1].any()
