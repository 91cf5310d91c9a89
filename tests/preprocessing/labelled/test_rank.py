"""Queries and their passages, in the forms that people have them, and what is wrong in them."""

from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.rank import RankExample
from tests.preprocessing.labelled.files import write


def read(path: Path, **how: Any) -> list[tuple[Any, ...]]:
    found: list[Any] = read_examples(path, "rank", **how).examples
    assert all(isinstance(one, RankExample) for one in found)
    return [(one.id, one.query, one.passages, one.grades, one.passage_ids) for one in found]


def test_the_same_queries_are_read_from_every_form(tmp_path: Path) -> None:
    """Passages in a list, as positives and negatives (FlagEmbedding, sentence-transformers), and one a row (BEIR)."""
    expected = [("7", "何人", ("甲", "乙", "丙"), (1, 0, 0), ()), ("8", "where", ("x", "y"), (1, 0), ())]
    lists = [
        {"id": 7, "query": "何人", "passages": ["甲", "乙", "丙"], "grades": [1, 0, 0]},
        {"id": 8, "query": "where", "docs": ["x", "y"], "labels": [1, 0]},
    ]
    parts = [
        {"id": "7", "query": "何人", "pos": ["甲"], "neg": ["乙", "丙"], "prompt": "left out"},
        {"id": "8", "query": "where", "positive": "x", "negative": "y"},
    ]
    rows = [
        (7, "何人", "甲", 1),
        (8, "where", "x", 1),
        (7, "何人", "乙", 0),
        (8, "where", "y", 0),
        (7, "何人", "丙", 0),
    ]
    each = [dict(zip(("query_id", "query", "passage", "label"), row, strict=True)) for row in rows]
    table = "qid\tquery\tdocument\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    bare = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    numbered = {"id": "[0]", "query": "[1]", "passage": "[2]", "grade": "[3]"}
    assert read(write(tmp_path / "a.jsonl", lists)) == expected
    assert read(write(tmp_path / "b.jsonl", parts)) == expected
    assert read(write(tmp_path / "c.jsonl", each)) == expected
    assert read(write(tmp_path / "d.tsv", table)) == expected
    assert read(write(tmp_path / "e.csv", table.replace("\t", ","))) == expected
    assert read(write(tmp_path / "f.tsv", bare), columns=numbered) == expected


def test_rows_without_ids_belong_together_by_their_query_and_keep_the_passages_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "query\tpassage\tpid\nq\tx\td1\nr\tx\td1\nq\ty\td2\nr\tz\td3\n")
    assert read(path) == [("2", "q", ("x", "y"), None, ("d1", "d2")), ("3", "r", ("x", "z"), None, ("d1", "d3"))]


def test_queries_without_a_relevant_passage_are_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.jsonl", [{"query": q, "passages": ["x", "y"], "grades": [0, q == "r"]} for q in "qr"])
    with caplog.at_level("INFO", "reread"):
        found: list[Any] = read_examples(path, "rank").examples
    assert [one.can_be_learned for one in found] == [False, True]
    assert caplog.messages[-1] == (
        f"{path}: 1 of 2 queries (50.00%) have no passage with a grade above 0: nothing is learned from them, and "
        f"their scores are 0; the first: {path}:1"
    )


TWO = {"query": "q", "passages": ["x", "y"]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"query": "q", "pasages": ["x", "y"]}], "a:1: unknown key `pasages`; did you mean `passages`?"),
        ([{"query": "q", "passages": ["x"]}], "a:1: 1 passage; a ranking needs two or more"),
        ([{"query": "q"}], "a:1: passages: field required, or `positives` and `negatives`, or a `passage` a line"),
        ([{"query": " ", "passages": ["x", "y"]}], "a:1: query is empty"),
        ([{"query": "q", "passages": ["x", ""]}], "a:1: passage 1 is empty"),
        ([{**TWO, "grades": ["high", 0]}], "a:1: grades.0: input should be a valid number"),
        ([{**TWO, "grades": [1, -1]}], "a:1: grades.1: input should be greater than or equal to 0 (got -1)"),
        ([{**TWO, "grades": [1]}], "a:1: 1 grades for 2 passages; give each passage one"),
        ([{**TWO, "passage_ids": ["d", "d"]}], "a:1: passage id `d` stands twice"),
        ([{**TWO, "pos": ["z"]}], "a:1: both `passages` and `positives` or `negatives`"),
        ([{"id": 1, **TWO}, {"id": 1, **TWO}], "a:2: id `1` stands already at"),
        ([{"query": "q", "passage": "x", "label": 1}, {"query": "q", "passage": "y"}], "a:2: grade: another passage"),
        ("qid\tquery\tpassage\n1\tq\tx\n1\tr\ty\n", "a:3: query id `1` has another query at"),
        ("query\tpassage\tlabel\nq\tx\thigh\nq\ty\t0\n", "a:2: grade: input should be a valid number"),
        ("q\tx\t1\n", "a:1: no column for the query among q, x, 1; name it by `task.columns.query`"),
    ],
)
def test_what_is_wrong_is_one_line(content: Any, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", content)
    with pytest.raises(UserError) as caught:
        read_examples(path, "rank")
    line = str(caught.value)
    assert line.startswith(str(path.parent) + "/" + expected) and "\n" not in line
