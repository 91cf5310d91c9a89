"""The rows of a query's passages, which of them training reads, and the order that is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.rank import RankDataset, RankSettings
from tests.tasks import dataset_of, number_of, task_values, write_lines, write_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model")


def settings(tokenizer: Path, **more: Any) -> RankSettings:
    values = {"kind": "rank", "train": "train.jsonl", "tokenizer": str(tokenizer), "sequence_length": 16, **more}
    return RankSettings.parse(values, "test")


def example(count: int, relevant: tuple[int, ...] = (0,), ids: tuple[str, ...] = ()) -> RankExample:
    passages = tuple("abcdefghijkl"[:count])
    return RankExample("1", "f:1", "q", passages, tuple(float(n in relevant) for n in range(count)), ids)


@pytest.mark.parametrize(
    ("count", "relevant", "most", "kept"),
    [
        (4, (3,), 4, "abcd"),
        (8, (6,), 4, "abcg"),
        (8, (0, 2, 4, 6), 4, "abcd"),
        (8, (3, 4, 5, 6, 7), 4, "abde"),
        (8, tuple(range(1, 8)), 4, "abcd"),
        (8, (7,), None, "abcdefgh"),
    ],
)
def test_training_reads_relevant_passages_and_the_first_others(
    count: int, relevant: tuple[int, ...], most: int | None, kept: str, tokenizer: Path
) -> None:
    names = tuple(f"d{n}" for n in range(count))
    found = settings(tokenizer, passages=most).shortened(example(count, relevant, names))
    assert "".join(found.passages) == kept
    assert found.grades == tuple(float("abcdefgh".index(one) in relevant) for one in kept)
    assert found.passage_ids == tuple(f"d{'abcdefgh'.index(one)}" for one in kept)


@pytest.mark.parametrize("model", ["nezha", "ernie_doc"])
def test_training_reads_a_query_in_one_pass_and_a_prediction_in_several(model: str, tokenizer: Path) -> None:
    data: Any = dataset_of(task_values(model, "rank", tokenizer, sequence_length=16), [example(7), example(2)])
    (first, second) = ([len(rows["learns"]) for rows in data.passes([n], 3, training=True)] for n in (0, 1))
    assert (first, second) == ([7], [2])
    found = list(data.passes([0, 1], 3, training=False))
    assert max(len(rows["learns"]) for rows in found) <= 3
    read = [(int(e), int(o)) for rows in found for e, o in zip(rows["example"], rows["option"], strict=True)]
    assert sorted(read) == [(0, n) for n in range(7)] + [(1, 0), (1, 1)]
    (row,) = data.passes([1], 8, training=True)
    assert row["share"].tolist() == [1, 0]
    words = row["input_ids"][0][row["attention_mask"][0] == 1].tolist()
    assert words.index(number_of("q")) < words.index(number_of("a"))


def test_passages_are_written_in_the_order_of_their_scores(tokenizer: Path) -> None:
    values = task_values("nezha", "rank", tokenizer)
    scores = np.array([0.25, 2.0, -1.0])
    (plain, named) = (dataset_of(values, [example(3, ids=ids)]) for ids in ((), ("x", "y", "z")))
    assert [one["passage"] for one in plain.written(0, scores)["ranking"]] == [1, 0, 2]
    assert named.written(0, scores) == {
        "ranking": [{"passage": "y", "score": 2.0}, {"passage": "x", "score": 0.25}, {"passage": "z", "score": -1.0}]
    }
    wrong = plain.mistake(0, scores)
    assert wrong is not None and (wrong.gold, wrong.predicted, wrong.weight) == ("a (0.25)", "b (2.00)", 1.75)


def test_only_queries_with_a_relevant_passage_are_learned_and_all_are_scored(tokenizer: Path, tmp_path: Path) -> None:
    lines = [{"query": q, "passages": ["a", "b"], "grades": [int(q == "y"), 0]} for q in "xy"]
    path = write_lines(tmp_path / "train.jsonl", lines)
    given = settings(tokenizer, train=str(path), dev=str(path), irrelevant=0.5)
    assert [one.query for one in RankDataset.open(given, 0, "train").examples] == ["y"]
    assert len(RankDataset.open(given, 0, "validation")) == 2
    none = write_lines(tmp_path / "none.jsonl", lines[:1])
    with pytest.raises(UserError, match="no example has an answer that can be learned"):
        examples_of(settings(tokenizer, train=str(none), wrong="skip"), "train")


def test_more_than_a_few_queries_to_learn_from_without_a_relevant_passage_stop(tokenizer: Path, tmp_path: Path) -> None:
    """However they are written; held-out ones are scored, and one in a hundred is a line."""

    def file(queries: int, without: int) -> str:
        none = {"passages": ["a", "b"], "grades": [0, 0]}, {"pos": [], "neg": ["a", "b"]}
        lines = [
            {"query": f"q{number}", "passages": ["a", "b"], "grades": [0, 1]} for number in range(queries - without)
        ]
        lines += [{"query": f"n{number}", **none[number % 2]} for number in range(without)]
        return str(write_lines(tmp_path / f"{queries}-{without}.jsonl", lines))

    path = file(100, 2)
    with pytest.raises(UserError) as caught:
        examples_of(settings(tokenizer, train=path), "train")
    assert str(caught.value) == (
        f"{path}: 2 of 100 queries (2.00%) have no passage with a grade above 0, where task.irrelevant allows 1.00%; "
        f"grade a passage of each, or leave such queries out of training by `task.wrong=skip`; the first: {path}:99"
    )
    for way in ({"wrong": "skip"}, {"irrelevant": 0.02}):
        assert len(examples_of(settings(tokenizer, train=path, **way), "train")) == 98
    assert len(examples_of(settings(tokenizer, train=file(100, 1)), "train")) == 99
    given = settings(tokenizer, train=file(100, 1), dev=path)
    assert len(examples_of(given, "validation")) == len(examples_of(settings(tokenizer, train=path), "predict")) == 100
